//! The client's messages of SCRAM (RFC 5802, section 7).
//!
//! The exchange is signed over the messages as they were sent, byte for byte. So they are parsed without being changed,
//! and the parts that the signature needs are slices of what has arrived.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::failure::{Failure, check_authorization, check_name};

/// Longest nonce of a client, bytes.
const CLIENT_NONCE_BYTES_MAX: usize = 1_024;

/// The first message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientFirst<'a> {
    /// The GS2 header with its final comma, which the last message repeats.
    pub(crate) gs2_header: &'a str,
    /// The message without the header, part of `AuthMessage`.
    pub(crate) bare: &'a str,
    pub(crate) user: String,
    pub(crate) nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Parses `gs2-header [reserved-mext ","] username "," nonce ["," extensions]`.
    pub(crate) fn parse(token: &'a [u8]) -> Result<Self, Failure> {
        let text = parse_utf8(token)?;
        let malformed = Failure::Malformed("the first message has no GS2 header");
        let (binding, rest) = text.split_once(',').ok_or(malformed)?;
        let (authorization, bare) = rest.split_once(',').ok_or(malformed)?;
        match binding {
            // `y`: the client could bind to the channel, but has not seen that this server can. It cannot.
            "n" | "y" => {}
            _ if binding.starts_with("p=") => return Err(Failure::ChannelBinding),
            _ => return Err(malformed),
        }
        let mut attributes = bare.split(',');
        let mut next = || attributes.next().unwrap_or_default();
        let first = next();
        if first.starts_with("m=") {
            return Err(Failure::MandatoryExtension);
        }
        let name = first.strip_prefix("n=").ok_or(Failure::Malformed("the first message has no name"))?;
        let user = unescape(name)?;
        check_name(&user)?;
        let nonce = next().strip_prefix("r=").ok_or(Failure::Malformed("the first message has no nonce"))?;
        check_nonce(nonce)?;
        check_extensions(attributes)?;
        match authorization.strip_prefix("a=") {
            Some(escaped) => check_authorization(&unescape(escaped)?, &user)?,
            None if authorization.is_empty() => {}
            None => return Err(malformed),
        }
        let gs2_header = &text[..text.len() - bare.len()];
        Ok(Self { gs2_header, bare, user, nonce })
    }
}

/// The last message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientFinal<'a> {
    /// The GS2 header; this server takes no data of a channel.
    pub(crate) channel_binding: Vec<u8>,
    pub(crate) nonce: &'a str,
    /// The message without the proof, part of `AuthMessage`.
    pub(crate) without_proof: &'a str,
    pub(crate) proof: Vec<u8>,
}

impl<'a> ClientFinal<'a> {
    /// Parses `channel-binding "," nonce ["," extensions] "," proof`.
    pub(crate) fn parse(token: &'a [u8]) -> Result<Self, Failure> {
        let text = parse_utf8(token)?;
        let no_proof = Failure::Malformed("the last message has no proof");
        let (without_proof, proof) = text.rsplit_once(',').ok_or(no_proof)?;
        let proof = proof.strip_prefix("p=").and_then(|proof| BASE64.decode(proof).ok()).ok_or(no_proof)?;
        let mut attributes = without_proof.split(',');
        let mut next = || attributes.next().unwrap_or_default();
        let no_binding = Failure::Malformed("the last message has no channel binding");
        let binding = next().strip_prefix("c=").and_then(|binding| BASE64.decode(binding).ok());
        let channel_binding = binding.ok_or(no_binding)?;
        let nonce = next().strip_prefix("r=").ok_or(Failure::Malformed("the last message has no nonce"))?;
        check_extensions(attributes)?;
        Ok(Self { channel_binding, nonce, without_proof, proof })
    }
}

fn parse_utf8(token: &[u8]) -> Result<&str, Failure> {
    let text = std::str::from_utf8(token).map_err(|_| Failure::Malformed("the message is not UTF-8"))?;
    if text.contains('\0') { Err(Failure::Malformed("the message has a NUL character")) } else { Ok(text) }
}

/// `nonce = 1*(%x21-2B / %x2D-7E)`.
fn check_nonce(nonce: &str) -> Result<(), Failure> {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x2B | 0x2D..=0x7E);
    if nonce.is_empty() || nonce.len() > CLIENT_NONCE_BYTES_MAX || !nonce.bytes().all(is_printable) {
        return Err(Failure::Malformed(
            "the nonce is empty, too long, or has other than printable characters",
        ));
    }
    Ok(())
}

/// Optional extensions, which this server ignores: `ALPHA "=" 1*value-char`.
fn check_extensions<'a>(extensions: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    for extension in extensions {
        let is_valid = match extension.as_bytes() {
            [name, b'=', _, ..] => name.is_ascii_alphabetic(),
            _ => false,
        };
        if !is_valid {
            return Err(Failure::Malformed("an extension is not NAME=VALUE"));
        }
        if extension.starts_with("m=") {
            return Err(Failure::MandatoryExtension);
        }
    }
    Ok(())
}

/// Decodes a `saslname`: `=2C` is a comma, `=3D` an equals sign.
fn unescape(name: &str) -> Result<String, Failure> {
    let mut parts = name.split('=');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match part.split_at_checked(2) {
            Some(("2C", rest)) => (',', rest),
            Some(("3D", rest)) => ('=', rest),
            _ => return Err(Failure::Malformed("a name has an equals sign that is not =2C or =3D")),
        };
        plain.push(character);
        plain.push_str(rest);
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_messages() {
        for (token, header, user) in [
            ("n,,n=user,r=abc", "n,,", "user"),
            ("y,,n=user,r=abc,x=1,y=a=b", "y,,", "user"),
            ("n,a=a=2Cb=3D,n=a=2Cb=3D,r=abc", "n,a=a=2Cb=3D,", "a,b="),
            ("n,,n=Jürgen,r=abc", "n,,", "Jürgen"),
        ] {
            let first = ClientFirst::parse(token.as_bytes()).unwrap();
            assert_eq!((first.gs2_header, first.user.as_str(), first.nonce), (header, user, "abc"));
            assert_eq!(format!("{}{}", first.gs2_header, first.bare), token);
        }
        for (token, failure) in [
            ("", Failure::Malformed("the first message has no GS2 header")),
            ("n=user,r=abc", Failure::Malformed("the first message has no GS2 header")),
            ("x,,n=user,r=abc", Failure::Malformed("the first message has no GS2 header")),
            ("n,user,n=user,r=abc", Failure::Malformed("the first message has no GS2 header")),
            ("p=tls-unique,,n=user,r=abc", Failure::ChannelBinding),
            ("n,a=root,n=user,r=abc", Failure::OtherAuthorizationId),
            ("n,,m=future,n=user,r=abc", Failure::MandatoryExtension),
            ("n,,n=user,r=abc,m=future", Failure::MandatoryExtension),
            ("n,,r=abc,n=user", Failure::Malformed("the first message has no name")),
            ("n,,n=,r=abc", Failure::Malformed("the name is empty")),
            ("n,,n=user", Failure::Malformed("the first message has no nonce")),
            ("n,,n=user,r=abc,", Failure::Malformed("an extension is not NAME=VALUE")),
            ("n,,n=user,r=abc,tokenauth=true", Failure::Malformed("an extension is not NAME=VALUE")),
        ] {
            assert_eq!(ClientFirst::parse(token.as_bytes()), Err(failure), "{token}");
        }
        for name in ["a=b", "a=2c", "=", "=2", "a=ü"] {
            let failure = Failure::Malformed("a name has an equals sign that is not =2C or =3D");
            assert_eq!(ClientFirst::parse(format!("n,,n={name},r=abc").as_bytes()), Err(failure));
        }
        for nonce in ["", "a b", "ü", &"x".repeat(CLIENT_NONCE_BYTES_MAX + 1)] {
            assert!(ClientFirst::parse(format!("n,,n=user,r={nonce}").as_bytes()).is_err());
        }
    }

    #[test]
    fn last_messages() {
        let last = ClientFinal::parse(b"c=biws,r=abc,x=1,p=AQI=").unwrap();
        assert_eq!((last.channel_binding.as_slice(), last.nonce), (b"n,,".as_slice(), "abc"));
        assert_eq!((last.without_proof, last.proof.as_slice()), ("c=biws,r=abc,x=1", [1, 2].as_slice()));
        for token in [
            "",
            "c=biws,r=abc",
            "c=biws,r=abc,p=?",
            "c=?,r=abc,p=AQI=",
            "r=abc,c=biws,p=AQI=",
            "c=biws,p=AQI=",
            "c=biws,r=abc,x,p=AQI=",
            "c=biws,r=abc,p=AQI=,x=1",
            "c=biws,r=abc\0,p=AQI=",
        ] {
            assert!(ClientFinal::parse(token.as_bytes()).is_err(), "{token}");
        }
    }
}
