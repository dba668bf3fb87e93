//! Reason codes (2.4) and the return codes of 3.1.1 (3.2.2.3), under the names of the specification.
#![expect(missing_docs, reason = "each constant is the reason code of that name")]

pub const SUCCESS: u8 = 0x00;
pub const GRANTED_QOS_1: u8 = 0x01;
pub const GRANTED_QOS_2: u8 = 0x02;
pub const DISCONNECT_WITH_WILL: u8 = 0x04;
pub const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;
pub const NO_SUBSCRIPTION_EXISTED: u8 = 0x11;
pub const CONTINUE_AUTHENTICATION: u8 = 0x18;
pub const RE_AUTHENTICATE: u8 = 0x19;
pub const UNSPECIFIED_ERROR: u8 = 0x80;
pub const MALFORMED_PACKET: u8 = 0x81;
pub const PROTOCOL_ERROR: u8 = 0x82;
pub const IMPLEMENTATION_SPECIFIC_ERROR: u8 = 0x83;
pub const UNSUPPORTED_PROTOCOL_VERSION: u8 = 0x84;
pub const CLIENT_IDENTIFIER_NOT_VALID: u8 = 0x85;
pub const BAD_USER_NAME_OR_PASSWORD: u8 = 0x86;
pub const NOT_AUTHORIZED: u8 = 0x87;
pub const SERVER_UNAVAILABLE: u8 = 0x88;
pub const SERVER_BUSY: u8 = 0x89;
pub const SERVER_SHUTTING_DOWN: u8 = 0x8B;
pub const BAD_AUTHENTICATION_METHOD: u8 = 0x8C;
pub const KEEP_ALIVE_TIMEOUT: u8 = 0x8D;
pub const SESSION_TAKEN_OVER: u8 = 0x8E;
pub const TOPIC_FILTER_INVALID: u8 = 0x8F;
pub const TOPIC_NAME_INVALID: u8 = 0x90;
pub const PACKET_IDENTIFIER_IN_USE: u8 = 0x91;
pub const PACKET_IDENTIFIER_NOT_FOUND: u8 = 0x92;
pub const RECEIVE_MAXIMUM_EXCEEDED: u8 = 0x93;
pub const TOPIC_ALIAS_INVALID: u8 = 0x94;
pub const PACKET_TOO_LARGE: u8 = 0x95;
pub const QUOTA_EXCEEDED: u8 = 0x97;
pub const ADMINISTRATIVE_ACTION: u8 = 0x98;
pub const PAYLOAD_FORMAT_INVALID: u8 = 0x99;
pub const RETAIN_NOT_SUPPORTED: u8 = 0x9A;
pub const QOS_NOT_SUPPORTED: u8 = 0x9B;
pub const USE_ANOTHER_SERVER: u8 = 0x9C;
pub const SERVER_MOVED: u8 = 0x9D;
pub const SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: u8 = 0x9E;
pub const SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: u8 = 0xA1;
pub const WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: u8 = 0xA2;

/// Return code of 3.1.1: unacceptable protocol version.
pub const V4_UNACCEPTABLE_PROTOCOL_VERSION: u8 = 0x01;
/// Return code of 3.1.1: identifier rejected.
pub const V4_IDENTIFIER_REJECTED: u8 = 0x02;
/// The failure code of a 3.1.1 SUBACK.
pub const V4_SUBSCRIBE_FAILURE: u8 = 0x80;

const REFUSED: &[u8] = &[0x80, 0x81, 0x82, 0x83];

/// Whether a server may send `reason` in a packet of type `kind` (the upper four bits of its first byte) to a
/// version 5 client: the tables of 3.2.2.2, 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.9.3, 3.11.3, 3.14.2.1, 3.15.2.1.
pub fn server_may_send(kind: u8, reason: u8) -> bool {
    let common = REFUSED.contains(&reason);
    match kind {
        2 => {
            common
                || matches!(reason, 0x00 | 0x84..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99 | 0x9A..=0x9D | 0x9F)
        }
        4 | 5 => matches!(reason, 0x00 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99),
        6 | 7 => matches!(reason, 0x00 | 0x92),
        9 => {
            matches!(reason, 0x00..=0x02 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2)
        }
        11 => matches!(reason, 0x00 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91),
        14 => common || matches!(reason, 0x00 | 0x87 | 0x89 | 0x8B | 0x8D..=0x90 | 0x93..=0x9F | 0xA0..=0xA2),
        15 => matches!(reason, 0x00 | 0x18),
        _ => false,
    }
}
