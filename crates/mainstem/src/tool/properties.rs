//! MQTT 5 properties from the command line. Checks the type of each, and that its packet may have it.

use std::str::FromStr;

use mainstem_mqtt::packet::{MessageProperties, UserProperties};

use super::failure::Failure;
use crate::cli::{PacketKind, PropertyArg, PubArgs};

/// User properties, in order.
pub(crate) type Pairs = Vec<(String, String)>;

/// Borrows user properties for the codec.
pub(crate) fn borrowed(pairs: &Pairs) -> Vec<(&str, &str)> {
    pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Properties of a message or a will.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageArgs {
    pub(crate) payload_format: Option<u8>,
    pub(crate) message_expiry: Option<u32>,
    pub(crate) content_type: Option<String>,
    pub(crate) response_topic: Option<String>,
    pub(crate) correlation_data: Option<Vec<u8>>,
    pub(crate) user: Pairs,
}

impl MessageArgs {
    /// Converts to the codec's type. `user` is [`borrowed`] from `self.user`.
    pub(crate) fn packet<'a>(&'a self, user: &'a [(&'a str, &'a str)]) -> MessageProperties<'a> {
        MessageProperties {
            payload_format: self.payload_format,
            message_expiry: self.message_expiry,
            content_type: self.content_type.as_deref(),
            response_topic: self.response_topic.as_deref(),
            correlation_data: self.correlation_data.as_deref(),
            user_properties: UserProperties::Pairs(user),
        }
    }

    /// Sets one property. Returns false if messages have no such property.
    fn set(&mut self, property: &PropertyArg) -> Result<bool, Failure> {
        match property.name.as_str() {
            "payload-format-indicator" => self.payload_format = Some(number(property)?),
            "message-expiry-interval" => self.message_expiry = Some(number(property)?),
            "content-type" => self.content_type = Some(property.value.clone()),
            "response-topic" => self.response_topic = Some(property.value.clone()),
            "correlation-data" => self.correlation_data = Some(property.value.clone().into_bytes()),
            "user-property" => self.user.push(pair(property)),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// All properties of a command line, by packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) connect: ConnectProperties,
    pub(crate) message: MessageArgs,
    pub(crate) topic_alias: Option<u16>,
    pub(crate) will: MessageArgs,
    pub(crate) will_delay: Option<u32>,
    pub(crate) subscribe_user: Pairs,
    pub(crate) subscription_id: Option<u32>,
    pub(crate) unsubscribe_user: Pairs,
    pub(crate) disconnect_user: Pairs,
    pub(crate) disconnect_session_expiry: Option<u32>,
}

/// Properties of CONNECT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectProperties {
    pub(crate) session_expiry: Option<u32>,
    pub(crate) receive_maximum: Option<u16>,
    pub(crate) maximum_packet_size: Option<u32>,
    pub(crate) topic_alias_maximum: Option<u16>,
    pub(crate) request_response_information: Option<bool>,
    pub(crate) request_problem_information: Option<bool>,
    pub(crate) authentication_method: Option<String>,
    pub(crate) authentication_data: Option<Vec<u8>>,
    pub(crate) user: Pairs,
}

impl Properties {
    /// Parses the grouped `-D` flags.
    ///
    /// # Errors
    /// If a packet has no such property, or the value has the wrong type.
    pub(crate) fn new(args: &[PropertyArg]) -> Result<Self, Failure> {
        let mut properties = Self::default();
        for arg in args {
            if !properties.set(arg)? {
                let packet = format!("{:?}", arg.packet).to_ascii_lowercase();
                return Err(Failure::new(format!("-D {packet} has no property {}", arg.name)));
            }
        }
        Ok(properties)
    }

    /// Adds the properties that have flags of their own in `pub`.
    pub(crate) fn add_message_flags(&mut self, args: &PubArgs) {
        let message = &mut self.message;
        message.payload_format = args.payload_format.or(message.payload_format);
        message.message_expiry = args.message_expiry.or(message.message_expiry);
        if args.content_type.is_some() {
            message.content_type.clone_from(&args.content_type);
        }
        if args.response_topic.is_some() {
            message.response_topic.clone_from(&args.response_topic);
        }
        if let Some(data) = &args.correlation_data {
            message.correlation_data = Some(data.clone().into_bytes());
        }
        message.user.extend(args.user_property.iter().cloned());
        self.topic_alias = args.topic_alias.or(self.topic_alias);
    }

    /// Whether no property is set.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn set(&mut self, arg: &PropertyArg) -> Result<bool, Failure> {
        match (arg.packet, arg.name.as_str()) {
            (PacketKind::Connect, _) => return self.connect.set(arg),
            (PacketKind::Publish, "topic-alias") => self.topic_alias = Some(number(arg)?),
            (PacketKind::Publish, _) => return self.message.set(arg),
            (PacketKind::Will, "will-delay-interval") => self.will_delay = Some(number(arg)?),
            (PacketKind::Will, _) => return self.will.set(arg),
            (PacketKind::Subscribe, "user-property") => self.subscribe_user.push(pair(arg)),
            (PacketKind::Subscribe, "subscription-identifier") => self.subscription_id = Some(number(arg)?),
            (PacketKind::Unsubscribe, "user-property") => self.unsubscribe_user.push(pair(arg)),
            (PacketKind::Disconnect, "user-property") => self.disconnect_user.push(pair(arg)),
            (PacketKind::Disconnect, "session-expiry-interval") => {
                self.disconnect_session_expiry = Some(number(arg)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl ConnectProperties {
    fn set(&mut self, arg: &PropertyArg) -> Result<bool, Failure> {
        match arg.name.as_str() {
            "session-expiry-interval" => self.session_expiry = Some(number(arg)?),
            "receive-maximum" => self.receive_maximum = Some(number(arg)?),
            "maximum-packet-size" => self.maximum_packet_size = Some(number(arg)?),
            "topic-alias-maximum" => self.topic_alias_maximum = Some(number(arg)?),
            "request-response-information" => self.request_response_information = Some(flag(arg)?),
            "request-problem-information" => self.request_problem_information = Some(flag(arg)?),
            "authentication-method" => self.authentication_method = Some(arg.value.clone()),
            "authentication-data" => self.authentication_data = Some(arg.value.clone().into_bytes()),
            "user-property" => self.user.push(pair(arg)),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn number<T: FromStr>(arg: &PropertyArg) -> Result<T, Failure> {
    arg.value.parse().map_err(|_| Failure::new(format!("{}: {:?} is not in range", arg.name, arg.value)))
}

fn flag(arg: &PropertyArg) -> Result<bool, Failure> {
    match arg.value.as_str() {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(Failure::new(format!("{}: {other:?} is not 0 or 1", arg.name))),
    }
}

fn pair(arg: &PropertyArg) -> (String, String) {
    (arg.value.clone(), arg.second.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arg(packet: PacketKind, name: &str, value: &str) -> PropertyArg {
        PropertyArg::new(packet, name, value, (name == "user-property").then_some("v"))
    }

    #[test]
    fn groups_properties_by_packet() {
        let properties = Properties::new(&[
            arg(PacketKind::Connect, "receive-maximum", "7"),
            arg(PacketKind::Publish, "message-expiry-interval", "60"),
            arg(PacketKind::Publish, "user-property", "a"),
            arg(PacketKind::Publish, "user-property", "a"),
            arg(PacketKind::Will, "will-delay-interval", "5"),
            arg(PacketKind::Subscribe, "subscription-identifier", "9"),
        ])
        .unwrap();
        assert_eq!(properties.connect.receive_maximum, Some(7));
        assert_eq!(properties.message.message_expiry, Some(60));
        assert_eq!(properties.message.user.len(), 2, "user properties may repeat");
        assert_eq!((properties.will_delay, properties.subscription_id), (Some(5), Some(9)));
        assert!(properties.subscribe_user.is_empty());
    }

    #[test]
    fn rejects_wrong_packets_and_values() {
        for (packet, name, value) in [
            (PacketKind::Publish, "receive-maximum", "7"),
            (PacketKind::Connect, "receive-maximum", "65536"),
            (PacketKind::Connect, "request-problem-information", "2"),
            (PacketKind::Will, "topic-alias", "1"),
            (PacketKind::Unsubscribe, "content-type", "x"),
        ] {
            assert!(Properties::new(&[arg(packet, name, value)]).is_err(), "{name} {value}");
        }
    }
}
