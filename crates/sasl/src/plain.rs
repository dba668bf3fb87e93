//! PLAIN (RFC 4616): one message with an authorization identity, a name and a password.

use crate::failure::{Failure, check_authorization, check_name};
use crate::password::Password;

/// Longest password, bytes.
const PASSWORD_BYTES_MAX: usize = 1_024;

/// Parses `[authzid] NUL authcid NUL passwd`.
///
/// # Errors
/// The message is malformed, or asks for the rights of another user.
pub(crate) fn parse(token: &[u8]) -> Result<(String, Password), Failure> {
    let text = std::str::from_utf8(token).map_err(|_| Failure::Malformed("the message is not UTF-8"))?;
    let parts: Vec<&str> = text.split('\0').collect();
    let &[authorization, user, password] = parts.as_slice() else {
        return Err(Failure::Malformed("the message has not three parts"));
    };
    check_name(user)?;
    if password.is_empty() {
        return Err(Failure::Malformed("the password is empty"));
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(Failure::Malformed("the password is too long"));
    }
    check_authorization(authorization, user)?;
    Ok((user.to_owned(), password.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_three_parts() {
        // RFC 4616, section 4, and a character beyond ASCII.
        for (token, user, password) in [
            ("\0tim\0tanstaaftanstaaf", "tim", "tanstaaftanstaaf"),
            ("tim\0tim\0x", "tim", "x"),
            ("\0Jürgen\0Straße, 5=6", "Jürgen", "Straße, 5=6"),
        ] {
            assert_eq!(parse(token.as_bytes()), Ok((user.to_owned(), password.into())));
        }
        for (token, reason) in [
            (b"".as_slice(), "the message has not three parts"),
            (b"tim\0pass", "the message has not three parts"),
            (b"\0tim\0pass\0", "the message has not three parts"),
            (b"\0\0pass", "the name is empty"),
            (b"\0tim\0", "the password is empty"),
            (b"\0tim\0\xFF", "the message is not UTF-8"),
        ] {
            assert_eq!(parse(token), Err(Failure::Malformed(reason)));
        }
        let long = format!("\0tim\0{}", "x".repeat(PASSWORD_BYTES_MAX + 1));
        assert_eq!(parse(long.as_bytes()), Err(Failure::Malformed("the password is too long")));
        // "Ursel" asks for the rights of "Kurt", as in the RFC's example.
        assert_eq!(parse(b"Ursel\0Kurt\0xipj3plmq"), Err(Failure::OtherAuthorizationId));
    }
}
