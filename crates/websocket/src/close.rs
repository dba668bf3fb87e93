//! Close codes (RFC 6455, section 7.4) and the payload of close frames.

use std::fmt;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseCode(pub(crate) u16);

impl CloseCode {
    /// The purpose of the connection is fulfilled.
    pub(crate) const NORMAL: Self = Self(1000);
    /// A violation of the protocol.
    pub(crate) const PROTOCOL_ERROR: Self = Self(1002);
    /// A kind of data that is not accepted, such as text.
    pub(crate) const UNSUPPORTED_DATA: Self = Self(1003);
    /// Text that is not UTF-8.
    pub(crate) const INVALID_PAYLOAD: Self = Self(1007);
    /// A frame that is too long.
    pub(crate) const TOO_BIG: Self = Self(1009);

    /// Whether a peer may send it: the codes in the IANA registry that are not reserved, and those of libraries and
    /// applications.
    fn may_be_received(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }
}

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) code: CloseCode,
    pub(crate) reason: &'static str,
}

impl Violation {
    pub(crate) const fn protocol(reason: &'static str) -> Self {
        Self { code: CloseCode::PROTOCOL_ERROR, reason }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebSocket close code {}: {}", self.code.0, self.reason)
    }
}

impl std::error::Error for Violation {}

/// Parses the payload of a close frame from the peer. Returns the code to respond with.
///
/// # Errors
/// The payload is invalid.
pub(crate) fn parse_close(payload: &[u8]) -> Result<CloseCode, Violation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        if payload.is_empty() {
            return Ok(CloseCode::NORMAL);
        }
        return Err(Violation::protocol("a close frame has half a code"));
    };
    let code = CloseCode(u16::from_be_bytes(*code));
    if !code.may_be_received() {
        return Err(Violation::protocol("a close frame has a code that must not be sent"));
    }
    if std::str::from_utf8(reason).is_err() {
        let reason = "the reason of a close frame is not UTF-8";
        return Err(Violation { code: CloseCode::INVALID_PAYLOAD, reason });
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_may_be_received_are_echoed() {
        assert_eq!(parse_close(b""), Ok(CloseCode::NORMAL));
        for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1014, 3000, 3999, 4000, 4999]
        {
            assert_eq!(parse_close(&[&u16::to_be_bytes(code)[..], b"why"].concat()), Ok(CloseCode(code)));
        }
    }

    #[test]
    fn invalid_payloads_are_violations() {
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
            let violation = parse_close(&u16::to_be_bytes(code)).unwrap_err();
            assert_eq!(violation.code, CloseCode::PROTOCOL_ERROR, "{code}");
        }
        assert_eq!(parse_close(&[3]).unwrap_err().code, CloseCode::PROTOCOL_ERROR);
        assert_eq!(parse_close(b"\x03\xE8\xCE\xBA\xE1").unwrap_err().code, CloseCode::INVALID_PAYLOAD);
    }
}
