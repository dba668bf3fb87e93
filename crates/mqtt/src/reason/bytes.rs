//! Reason codes as bytes: which are valid, in which packet, and the return codes of 3.x.

use super::ReasonCode;
use crate::error::DecodeError;
use crate::frame::PacketType;

impl ReasonCode {
    /// Returns the reason for the return code of a 3.x CONNACK (3.1.1, 3.2.2.3).
    ///
    /// # Errors
    /// `ProtocolError` for a code above 5, which are reserved.
    pub const fn from_connect_return_code(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            0 => Self::Success,
            1 => Self::UnsupportedProtocolVersion,
            2 => Self::ClientIdentifierNotValid,
            3 => Self::ServerUnavailable,
            4 => Self::BadUserNameOrPassword,
            5 => Self::NotAuthorized,
            _ => return Err(DecodeError::protocol("return code above 5 (3.1.1, 3.2.2.3)")),
        })
    }

    /// Returns whether a packet of this type may carry the code (2.4, and the table in the section of each packet).
    pub const fn is_allowed_in(self, packet: PacketType) -> bool {
        let byte = self as u8;
        match packet {
            PacketType::ConnAck => matches!(
                byte,
                0 | 0x80..=0x8A | 0x8C | 0x90 | 0x95 | 0x97 | 0x99 | 0x9A..=0x9D | 0x9F
            ),
            PacketType::PubAck | PacketType::PubRec => {
                matches!(byte, 0 | 0x10 | 0x80 | 0x83 | 0x87 | 0x90 | 0x91 | 0x97 | 0x99)
            }
            PacketType::PubRel | PacketType::PubComp => matches!(byte, 0 | 0x92),
            PacketType::SubAck => {
                matches!(byte, 0..=2 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91 | 0x97 | 0x9E | 0xA1 | 0xA2)
            }
            PacketType::UnsubAck => matches!(byte, 0 | 0x11 | 0x80 | 0x83 | 0x87 | 0x8F | 0x91),
            PacketType::Disconnect => matches!(
                byte,
                0 | 4 | 0x80..=0x83 | 0x87 | 0x89 | 0x8B..=0x90 | 0x93..=0xA2
            ),
            PacketType::Auth => matches!(byte, 0 | 0x18 | 0x19),
            _ => false,
        }
    }
}

impl TryFrom<u8> for ReasonCode {
    type Error = DecodeError;

    /// # Errors
    /// `ProtocolError` for a byte that is not a reason code.
    #[inline]
    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        Ok(match byte {
            0x00 => Self::Success,
            0x01 => Self::GrantedQoS1,
            0x02 => Self::GrantedQoS2,
            0x04 => Self::DisconnectWithWill,
            0x10 => Self::NoMatchingSubscribers,
            0x11 => Self::NoSubscriptionExisted,
            0x18 => Self::ContinueAuthentication,
            0x19 => Self::ReAuthenticate,
            0x80 => Self::UnspecifiedError,
            0x81 => Self::MalformedPacket,
            0x82 => Self::ProtocolError,
            0x83 => Self::ImplementationSpecificError,
            0x84 => Self::UnsupportedProtocolVersion,
            0x85 => Self::ClientIdentifierNotValid,
            0x86 => Self::BadUserNameOrPassword,
            0x87 => Self::NotAuthorized,
            0x88 => Self::ServerUnavailable,
            0x89 => Self::ServerBusy,
            0x8A => Self::Banned,
            0x8B => Self::ServerShuttingDown,
            0x8C => Self::BadAuthenticationMethod,
            0x8D => Self::KeepAliveTimeout,
            0x8E => Self::SessionTakenOver,
            0x8F => Self::TopicFilterInvalid,
            0x90 => Self::TopicNameInvalid,
            0x91 => Self::PacketIdentifierInUse,
            0x92 => Self::PacketIdentifierNotFound,
            0x93 => Self::ReceiveMaximumExceeded,
            0x94 => Self::TopicAliasInvalid,
            0x95 => Self::PacketTooLarge,
            0x96 => Self::MessageRateTooHigh,
            0x97 => Self::QuotaExceeded,
            0x98 => Self::AdministrativeAction,
            0x99 => Self::PayloadFormatInvalid,
            0x9A => Self::RetainNotSupported,
            0x9B => Self::QoSNotSupported,
            0x9C => Self::UseAnotherServer,
            0x9D => Self::ServerMoved,
            0x9E => Self::SharedSubscriptionsNotSupported,
            0x9F => Self::ConnectionRateExceeded,
            0xA0 => Self::MaximumConnectTime,
            0xA1 => Self::SubscriptionIdentifiersNotSupported,
            0xA2 => Self::WildcardSubscriptionsNotSupported,
            _ => return Err(DecodeError::protocol("unknown reason code (2.4)")),
        })
    }
}
