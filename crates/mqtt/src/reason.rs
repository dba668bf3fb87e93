//! Reason codes of MQTT 5 (2.4), and their mapping to the return codes of 3.1.1 (3.2.2.3).
//!
//! The rest of the broker uses MQTT 5 reason codes only. The codec converts them for 3.x clients, and checks that a
//! packet type may carry a code.

mod bytes;

/// A reason code.
///
/// The specification has several names for the same byte, depending on the packet type (0x00: Success, Normal
/// disconnection, Granted QoS 0). Each variant uses the first of them.
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
    /// Returns whether the code is an error: 0x80 or above (2.4).
    #[inline]
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// Returns the return code, 0 to 5, of a 3.x CONNACK for this reason (3.1.1, 3.2.2.3).
    ///
    /// A reason without a counterpart becomes 5 (not authorized) if a retry is pointless, and 3 (server unavailable)
    /// otherwise.
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
}
