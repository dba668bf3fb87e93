//! Reason codes of MQTT 5 (2.4) and the return codes of 3.1.1 (3.2.2.3) they map to.

use crate::decode::DecodeError;
use crate::frame::PacketType;

/// A reason code. One byte has several names in the specification where only the packet tells them apart
/// (0x00: Success, Normal disconnection, Granted QoS 0); here it has the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "each variant is the reason code of that name")]
pub enum ReasonCode {
    #[default]
    Success = 0x00,
    GrantedQoS1 = 0x01,
    GrantedQoS2 = 0x02,
    DisconnectWithWill = 0x04,
    NoMatchingSubscribers = 0x10,
    NoSubscriptionExisted = 0x11,
    ContinueAuthentication = 0x18,
    ReAuthenticate = 0x19,
    UnspecifiedError = 0x80,
    MalformedPacket = 0x81,
    ProtocolError = 0x82,
    ImplementationSpecificError = 0x83,
    UnsupportedProtocolVersion = 0x84,
    ClientIdentifierNotValid = 0x85,
    BadUserNameOrPassword = 0x86,
    NotAuthorized = 0x87,
    ServerUnavailable = 0x88,
    ServerBusy = 0x89,
    Banned = 0x8A,
    ServerShuttingDown = 0x8B,
    BadAuthenticationMethod = 0x8C,
    KeepAliveTimeout = 0x8D,
    SessionTakenOver = 0x8E,
    TopicFilterInvalid = 0x8F,
    TopicNameInvalid = 0x90,
    PacketIdentifierInUse = 0x91,
    PacketIdentifierNotFound = 0x92,
    ReceiveMaximumExceeded = 0x93,
    TopicAliasInvalid = 0x94,
    PacketTooLarge = 0x95,
    MessageRateTooHigh = 0x96,
    QuotaExceeded = 0x97,
    AdministrativeAction = 0x98,
    PayloadFormatInvalid = 0x99,
    RetainNotSupported = 0x9A,
    QoSNotSupported = 0x9B,
    UseAnotherServer = 0x9C,
    ServerMoved = 0x9D,
    SharedSubscriptionsNotSupported = 0x9E,
    ConnectionRateExceeded = 0x9F,
    MaximumConnectTime = 0xA0,
    SubscriptionIdentifiersNotSupported = 0xA1,
    WildcardSubscriptionsNotSupported = 0xA2,
}

impl ReasonCode {
    /// Whether the code says that something failed: 0x80 and above (2.4).
    #[inline]
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The return code, 0 to 5, that a CONNACK of 3.x carries for this reason (3.1.1, 3.2.2.3).
    ///
    /// What has no counterpart becomes 5 (not authorized) if trying again is pointless, or else 3 (server
    /// unavailable).
    pub const fn connect_return_code(self) -> u8 {
        match self {
            Self::UnsupportedProtocolVersion => 1,
            Self::ClientIdentifierNotValid => 2,
            Self::BadUserNameOrPassword | Self::BadAuthenticationMethod => 4,
            Self::NotAuthorized
            | Self::Banned
            | Self::TopicNameInvalid
            | Self::PacketTooLarge
            | Self::PayloadFormatInvalid
            | Self::RetainNotSupported
            | Self::QoSNotSupported => 5,
            _ if self.is_error() => 3,
            _ => 0,
        }
    }

    /// The reason for a return code in a CONNACK of 3.x (3.1.1, 3.2.2.3).
    ///
    /// # Errors
    /// `ProtocolError` for a code above 5: those are reserved.
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

    /// Whether a packet of this type may carry the code (2.4, and the table in the section of each packet).
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
    /// `ProtocolError` for a byte that is no reason code.
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
