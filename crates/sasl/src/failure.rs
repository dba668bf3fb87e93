//! Why a log-in fails, and the checks that both kinds of mechanisms make.

use std::fmt;

/// Longest name of a user, bytes.
const NAME_BYTES_MAX: usize = 1_024;

/// Why a log-in failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user does not exist, or the password is wrong. Nothing tells which.
    Credentials,
    /// A message is malformed.
    Malformed(&'static str),
    /// The client wants the rights of another user.
    OtherAuthorizationId,
    /// The client binds to the channel, or its messages disagree about that. Somebody may have altered them.
    ChannelBinding,
    /// The client requires an extension.
    MandatoryExtension,
    /// A message came while none was expected.
    Unexpected,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credentials => "invalid credentials",
            Self::Malformed(what) => what,
            Self::OtherAuthorizationId => "the authorization id is not the name of the user",
            Self::ChannelBinding => "channel binding is not supported, or was altered",
            Self::MandatoryExtension => "the client requires an extension that is not supported",
            Self::Unexpected => "a message came while none was expected",
        })
    }
}

impl std::error::Error for Failure {}

/// Checks the name of a user.
///
/// # Errors
/// It is empty or too long.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() {
        return Err(Failure::Malformed("the name is empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::Malformed("the name is too long"));
    }
    Ok(())
}

/// Checks that a client asks for its own rights: by no authorization id, or by its name, as Kafka requires.
///
/// # Errors
/// It asks for the rights of another user.
pub(crate) fn check_authorization(authorization: &str, user: &str) -> Result<(), Failure> {
    if authorization.is_empty() || authorization == user {
        Ok(())
    } else {
        Err(Failure::OtherAuthorizationId)
    }
}
