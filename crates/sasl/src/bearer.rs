//! OAUTHBEARER (RFC 7628, KIP-255): one message with a token. If it is not valid, the server answers with JSON, and the
//! client acknowledges that with one byte before the exchange fails.

use crate::failure::Failure;
use crate::password::Password;

/// Answer to a token that is not valid (RFC 7628, section 3.2.2).
pub(crate) const REFUSAL: &[u8] = br#"{"status":"invalid_token"}"#;
/// What the client then sends.
pub(crate) const ACKNOWLEDGMENT: &[u8] = b"\x01";
/// Ends a part of the message.
const SEPARATOR: char = '\x01';

/// Parses `n,[a=AUTHORIZATION],^A{KEY=VALUE^A}^A`, of which `auth=Bearer TOKEN` is one pair. The extensions of KIP-342
/// are other pairs, which are ignored.
///
/// # Errors
/// The message is malformed.
pub(crate) fn parse(message: &[u8]) -> Result<(String, Password), Failure> {
    const MALFORMED: Failure = Failure::Malformed("the message is not that of RFC 7628");
    let text = std::str::from_utf8(message).map_err(|_| Failure::Malformed("the message is not UTF-8"))?;
    let rest = match text.split_once(',') {
        Some(("n" | "y", rest)) => rest,
        Some((binding, _)) if binding.starts_with("p=") => return Err(Failure::ChannelBinding),
        _ => return Err(MALFORMED),
    };
    let (authorization, pairs) = rest.split_once(',').ok_or(MALFORMED)?;
    let authorization = match authorization.strip_prefix("a=") {
        Some(name) => unescape(name).ok_or(MALFORMED)?,
        None if authorization.is_empty() => String::new(),
        None => return Err(MALFORMED),
    };
    let pairs =
        pairs.strip_prefix(SEPARATOR).and_then(|pairs| pairs.strip_suffix(SEPARATOR)).ok_or(MALFORMED)?;
    let mut token = None;
    for pair in pairs.split_terminator(SEPARATOR) {
        let (key, value) = pair.split_once('=').ok_or(MALFORMED)?;
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphabetic()) {
            return Err(MALFORMED);
        }
        if key == "auth" && token.replace(value).is_some() {
            return Err(MALFORMED);
        }
    }
    let (scheme, token) = token.and_then(|value| value.split_once(' ')).ok_or(MALFORMED)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || !pairs.ends_with(SEPARATOR) {
        return Err(MALFORMED);
    }
    Ok((authorization, token.into()))
}

/// A name of RFC 5801, section 4: `=2C` is a comma, `=3D` an equals sign.
fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let plain = part.strip_prefix("2C").map(|rest| (',', rest));
        let (c, rest) = plain.or_else(|| part.strip_prefix("3D").map(|rest| ('=', rest)))?;
        text.push(c);
        text.push_str(rest);
    }
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Exchange, Mechanism, NONCE_BYTES, Step};

    #[test]
    fn the_message_has_a_token_and_perhaps_a_name() {
        for (message, authorization, token) in [
            ("n,,\x01auth=Bearer a.b-c_d\x01\x01", "", "a.b-c_d"),
            ("n,a=alice,\x01auth=bearer  t\x01\x01", "alice", "t"),
            ("n,a=a=2Cb=3D,\x01traceId=12 34\x01auth=Bearer t\x01\x01", "a,b=", "t"),
            // RFC 7628, section 4.1.
            (
                "n,a=user@example.com,\x01host=server.example.com\x01port=143\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01",
                "user@example.com",
                "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==",
            ),
        ] {
            assert_eq!(
                parse(message.as_bytes()),
                Ok((authorization.to_owned(), token.into())),
                "{message:?}"
            );
        }
        for message in [
            "",
            "n",
            "n,,",
            "n,,\x01",
            "n,,\x01\x01",
            "n,,auth=Bearer t\x01\x01",
            "n,,\x01auth=Bearer t\x01",
            "n,,\x01auth=Bearer t",
            "n,,\x01auth=Bearer \x01\x01",
            "n,,\x01auth=Basic t\x01\x01",
            "n,,\x01auth=t\x01\x01",
            "n,b=x,\x01auth=Bearer t\x01\x01",
            "n,a=,\x01auth=Bearer t\x01\x01",
            "n,a==2E,\x01auth=Bearer t\x01\x01",
            "n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
            "n,,\x01=x\x01auth=Bearer t\x01\x01",
            "x,,\x01auth=Bearer t\x01\x01",
        ] {
            assert!(parse(message.as_bytes()).is_err(), "{message:?}");
        }
        assert_eq!(parse(b"p=tls-unique,,\x01auth=Bearer t\x01\x01"), Err(Failure::ChannelBinding));
    }

    fn checking(message: &str) -> Exchange {
        let mut exchange = Exchange::new(Mechanism::OauthBearer, [0; NONCE_BYTES]);
        assert_eq!(exchange.receive(message.as_bytes()), Step::CheckToken { token: "t".into() });
        exchange
    }

    #[test]
    fn a_refused_token_is_answered_before_the_exchange_fails() {
        let mut exchange = checking("n,,\x01auth=Bearer t\x01\x01");
        assert_eq!(exchange.token_checked(None), Step::Challenge(REFUSAL.to_vec()));
        assert_eq!(exchange.receive(ACKNOWLEDGMENT), Step::Failure(Failure::Credentials));
        assert_eq!(exchange.receive(ACKNOWLEDGMENT), Step::Failure(Failure::Unexpected));
        let mut exchange = checking("n,,\x01auth=Bearer t\x01\x01");
        exchange.token_checked(None);
        assert_eq!(exchange.receive(b"n,,\x01auth=Bearer t\x01\x01"), Step::Failure(Failure::Unexpected));
    }

    #[test]
    fn the_user_is_that_of_the_token() {
        let success = Step::Success { user: "alice".into(), message: Vec::new() };
        assert_eq!(checking("n,,\x01auth=Bearer t\x01\x01").token_checked(Some("alice")), success);
        assert_eq!(checking("n,a=alice,\x01auth=Bearer t\x01\x01").token_checked(Some("alice")), success);
        let other = checking("n,a=bob,\x01auth=Bearer t\x01\x01").token_checked(Some("alice"));
        assert_eq!(other, Step::Failure(Failure::OtherAuthorizationId));
    }
}
