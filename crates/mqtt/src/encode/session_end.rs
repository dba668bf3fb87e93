//! DISCONNECT (3.14) and AUTH (3.15).

use super::ack::check_reason;
use super::{Body, EncodeError, put_binary, put_string, put_u32, put_user_properties};
use crate::frame::PacketType;
use crate::packet::{Auth, Disconnect, Version};
use crate::properties::id;
use crate::wire::{Section, Sink};

impl Body for Disconnect<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Disconnect.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        check_reason(PacketType::Disconnect, self.reason, version)
    }

    fn write<S: Sink>(&self, version: Version, sink: &mut S) {
        if version != Version::V5 || *self == Disconnect::default() {
            // Normal disconnection without properties is omitted (3.14.2.1).
            return;
        }
        sink.u8(self.reason as u8);
        // An empty section may be omitted (3.14.2.2.1), but some clients reject a DISCONNECT without one.
        sink.section(self);
    }
}

/// DISCONNECT properties (3.14.2.2).
impl Section for Disconnect<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_u32(sink, id::SESSION_EXPIRY_INTERVAL, self.session_expiry);
        put_string(sink, id::REASON_STRING, self.reason_string);
        put_string(sink, id::SERVER_REFERENCE, self.server_reference);
        put_user_properties(sink, &self.user_properties);
    }
}

impl Body for Auth<'_> {
    fn first_byte(&self) -> u8 {
        PacketType::Auth.first_byte()
    }

    fn check(&self, version: Version) -> Result<(), EncodeError> {
        if version != Version::V5 {
            return Err(EncodeError::NotInVersion);
        }
        check_reason(PacketType::Auth, self.reason, version)?;
        if self.authentication_method.is_none() && *self != Auth::default() {
            return Err(EncodeError::Invalid("AUTH without an Authentication Method (3.15.2.2.2)"));
        }
        Ok(())
    }

    fn write<S: Sink>(&self, _version: Version, sink: &mut S) {
        if *self == Auth::default() {
            // Success without properties is omitted (3.15.2.1).
            return;
        }
        sink.u8(self.reason as u8);
        sink.section(self);
    }
}

/// AUTH properties (3.15.2.2).
impl Section for Auth<'_> {
    fn write<S: Sink>(&self, sink: &mut S) {
        put_string(sink, id::AUTHENTICATION_METHOD, self.authentication_method);
        put_binary(sink, id::AUTHENTICATION_DATA, self.authentication_data);
        put_string(sink, id::REASON_STRING, self.reason_string);
        put_user_properties(sink, &self.user_properties);
    }
}
