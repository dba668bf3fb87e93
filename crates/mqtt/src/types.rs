//! Types that several packets share: the protocol version, QoS and subscription options.

use crate::error::DecodeError;

/// The protocol level of a connection, from its CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1 (`MQIsdp`, level 3).
    V3 = 3,
    /// MQTT 3.1.1 (`MQTT`, level 4).
    V4 = 4,
    /// MQTT 5 (`MQTT`, level 5).
    V5 = 5,
}

/// Quality of service of one message or one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    /// At most once: no acknowledgement.
    #[default]
    AtMostOnce = 0,
    /// At least once: PUBACK.
    AtLeastOnce = 1,
    /// Exactly once: PUBREC, PUBREL, PUBCOMP.
    ExactlyOnce = 2,
}

/// One filter of a SUBSCRIBE with its options (3.8.3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubscribeFilter<'a> {
    /// Topic filter. The codec checks only that it is UTF-8.
    pub filter: &'a str,
    /// Subscription options. 3.x has only the QoS.
    pub options: SubscribeOptions,
}

/// Subscription options (3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Maximum QoS.
    pub qos: QoS,
    /// Do not deliver messages that this client published itself.
    pub no_local: bool,
    /// Forward the RETAIN flag as it was published.
    pub retain_as_published: bool,
    /// When to send retained messages.
    pub retain_handling: RetainHandling,
}

/// Retain Handling of a subscription (3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RetainHandling {
    /// Send retained messages on every subscribe.
    #[default]
    Send = 0,
    /// Send retained messages only if the subscription is new.
    SendIfNew = 1,
    /// Do not send retained messages.
    DoNotSend = 2,
}

impl SubscribeOptions {
    /// Creates options with only a maximum QoS, which is all that 3.x has.
    pub const fn qos(qos: QoS) -> Self {
        Self { qos, no_local: false, retain_as_published: false, retain_handling: RetainHandling::Send }
    }
}

impl TryFrom<u8> for Version {
    type Error = DecodeError;

    /// Converts a protocol level.
    ///
    /// # Errors
    /// `UnsupportedProtocolVersion` for a level other than 3, 4 or 5 [MQTT-3.1.2-2].
    fn try_from(level: u8) -> Result<Self, DecodeError> {
        match level {
            3 => Ok(Self::V3),
            4 => Ok(Self::V4),
            5 => Ok(Self::V5),
            _ => Err(DecodeError::unsupported_version("protocol level is none of 3, 4, 5 [MQTT-3.1.2-2]")),
        }
    }
}

impl TryFrom<u8> for QoS {
    type Error = DecodeError;

    /// # Errors
    /// `MalformedPacket` for a value above 2 [MQTT-3.3.1-4].
    #[inline]
    fn try_from(bits: u8) -> Result<Self, DecodeError> {
        match bits {
            0 => Ok(Self::AtMostOnce),
            1 => Ok(Self::AtLeastOnce),
            2 => Ok(Self::ExactlyOnce),
            _ => Err(DecodeError::malformed("QoS 3 [MQTT-3.3.1-4]")),
        }
    }
}

impl TryFrom<u8> for SubscribeOptions {
    type Error = DecodeError;

    /// Converts the options byte of an MQTT 5 SUBSCRIBE (3.8.3.1).
    ///
    /// # Errors
    /// `ProtocolError` for QoS 3 or Retain Handling 3, `MalformedPacket` for reserved bits [MQTT-3.8.3-5].
    fn try_from(byte: u8) -> Result<Self, DecodeError> {
        if byte & 0b1100_0000 != 0 {
            return Err(DecodeError::malformed("reserved bits of subscription options set [MQTT-3.8.3-5]"));
        }
        let qos = QoS::try_from(byte & 0b11)
            .map_err(|_| DecodeError::protocol("maximum QoS of a subscription is 3 (3.8.3.1)"))?;
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::protocol("Retain Handling is 3 (3.8.3.1)")),
        };
        Ok(Self {
            qos,
            no_local: byte & 0b100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

impl From<SubscribeOptions> for u8 {
    fn from(options: SubscribeOptions) -> Self {
        options.qos as u8
            | u8::from(options.no_local) << 2
            | u8::from(options.retain_as_published) << 3
            | (options.retain_handling as u8) << 4
    }
}
