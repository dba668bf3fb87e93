//! A password in memory: not shown by `Debug`, and overwritten when it is dropped.

use std::fmt;

use zeroize::Zeroizing;

/// A password as the client sent it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<String>);

impl Password {
    /// The password, for a check or a derivation.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Password {
    fn from(password: &str) -> Self {
        Self(Zeroizing::new(password.to_owned()))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_it() {
        assert_eq!(format!("{:?}", Password::from("pencil")), "Password(..)");
    }
}
