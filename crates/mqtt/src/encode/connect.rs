//! CONNECT (3.1).

use super::publish::{check_message, put_message};
use super::{Body, EncodeError, put_binary, put_flag, put_string, put_u16, put_u32, put_user_properties};
use crate::frame::PacketType;
use crate::packet::{Connect, Version, Will};
use crate::properties::id;
use crate::wire::{Section, Sink};

impl Body for Connect<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Connect.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        if version != Version::V5 {
            return if self.password.is_some() && self.username.is_none() {
                Err(EncodeError::Invalid("password without user name (3.1.1) [MQTT-3.1.2-22]"))
            } else {
                Ok(())
            };
        }
        check_limits(self.receive_maximum, self.maximum_packet_size)?;
        if self.authentication_data.is_some() && self.authentication_method.is_none() {
            return Err(EncodeError::Invalid(
                "Authentication Data without Authentication Method (3.1.2.11.10)",
            ));
        }
        self.will.as_ref().map_or(Ok(()), |will| check_message(&will.properties))
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        sink.string(if version == Version::V3 { "MQIsdp" } else { "MQTT" });
        sink.u8(version as u8);
        sink.u8(flags(self));
        sink.u16(self.keep_alive);
        if version == Version::V5 {
            sink.section(&ConnectProperties(self));
        }
        sink.string(self.client_id);
        if let Some(will) = &self.will {
            if version == Version::V5 {
                sink.section(&WillProperties(will));
            }
            sink.string(will.topic);
            sink.binary(will.payload);
        }
        if let Some(username) = self.username {
            sink.string(username);
        }
        if let Some(password) = self.password {
            sink.binary(password);
        }
    }
}

/// Rejects a Receive Maximum or Maximum Packet Size of 0 (3.1.2.11.3, 3.1.2.11.4).
pub(super) fn check_limits(
    receive_maximum: Option<u16>,
    maximum_packet_size: Option<u32>,
) -> Result<(), EncodeError> {
    if receive_maximum == Some(0) {
        return Err(EncodeError::Invalid("Receive Maximum 0 (3.1.2.11.3)"));
    }
    if maximum_packet_size == Some(0) {
        return Err(EncodeError::Invalid("Maximum Packet Size 0 (3.1.2.11.4)"));
    }
    Ok(())
}

/// Connect Flags (3.1.2.3).
fn flags(connect: &Connect<'_>) -> u8 {
    let will =
        connect.will.as_ref().map_or(0, |will| 1 << 2 | (will.qos as u8) << 3 | u8::from(will.retain) << 5);
    u8::from(connect.clean_start) << 1
        | will
        | u8::from(connect.password.is_some()) << 6
        | u8::from(connect.username.is_some()) << 7
}

/// CONNECT properties (3.1.2.11).
struct ConnectProperties<'a>(&'a Connect<'a>);

impl Section for ConnectProperties<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        let connect = self.0;
        put_u32(sink, id::SESSION_EXPIRY_INTERVAL, connect.session_expiry);
        put_u16(sink, id::RECEIVE_MAXIMUM, connect.receive_maximum);
        put_u32(sink, id::MAXIMUM_PACKET_SIZE, connect.maximum_packet_size);
        put_u16(sink, id::TOPIC_ALIAS_MAXIMUM, connect.topic_alias_maximum);
        put_flag(sink, id::REQUEST_RESPONSE_INFORMATION, connect.request_response_information);
        put_flag(sink, id::REQUEST_PROBLEM_INFORMATION, connect.request_problem_information);
        put_string(sink, id::AUTHENTICATION_METHOD, connect.authentication_method);
        put_binary(sink, id::AUTHENTICATION_DATA, connect.authentication_data);
        put_user_properties(sink, &connect.user_properties);
    }
}

/// Will properties (3.1.3.2).
struct WillProperties<'a>(&'a Will<'a>);

impl Section for WillProperties<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_u32(sink, id::WILL_DELAY_INTERVAL, self.0.delay_interval);
        put_message(sink, &self.0.properties);
    }
}
