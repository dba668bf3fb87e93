//! 128-bit identifiers, for example of topics (KIP-516).

use std::fmt;

/// A 128-bit identifier. The default, all zero, means no identifier.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// No identifier.
    pub const ZERO: Self = Self([0; 16]);

    /// Whether this is [`Self::ZERO`].
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// Formats like Kafka's tools: URL-safe base64 (RFC 4648, section 5), without padding.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let bits = u128::from_be_bytes(self.0);
        // 21 digits of six bits, and one for the last two bits.
        for place in (0..=20).map(|digit| 122 - 6 * digit) {
            let digit = DIGITS[(bits >> place) as usize & 63];
            fmt::Write::write_char(f, char::from(digit))?;
        }
        fmt::Write::write_char(f, char::from(DIGITS[(bits << 4) as usize & 63]))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_base64() {
        assert_eq!(Uuid::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(Uuid([0xFF; 16]).to_string(), "_____________________w");
        let counting = std::array::from_fn(|index| index as u8);
        assert_eq!(Uuid(counting).to_string(), "AAECAwQFBgcICQoLDA0ODw");
    }
}
