//! CONNECT (3.1).

use super::DecodeError;
use super::publish::message_property;
use crate::frame::{Header, PacketType};
use crate::packet::{Connect, MessageProperties, QoS, Version, Will};
use crate::properties::{PropertyParser, id, not_allowed};
use crate::wire::Reader;

pub(super) fn connect<'a>(header: &Header, mut body: Reader<'a>) -> Result<Connect<'a>, DecodeError> {
    let version = version(&mut body)?;
    super::check_header(version, PacketType::Connect, header)?;
    let flags = Flags::read(version, &mut body)?;
    let mut connect = Connect::new(version, "");
    connect.clean_start = flags.has(Flags::CLEAN_START);
    connect.keep_alive = body.u16()?;
    if version == Version::V5 {
        properties(&mut connect, &mut body)?;
    }
    connect.client_id = body.string()?;
    if flags.has(Flags::WILL) {
        connect.will = Some(will(version, flags, &mut body)?);
    }
    if flags.has(Flags::USERNAME) && !is_omitted(version, &body) {
        connect.username = Some(body.string()?);
    }
    if flags.has(Flags::PASSWORD) && !is_omitted(version, &body) {
        connect.password = Some(body.binary()?);
    }
    body.finish()?;
    Ok(connect)
}

/// Reads the protocol name and level (3.1.2.1, 3.1.2.2). A wrong name may be answered like a wrong level
/// [MQTT-3.1.2-1].
fn version(body: &mut Reader<'_>) -> Result<Version, DecodeError> {
    let name = body.string()?;
    let version = Version::try_from(body.u8()?);
    match (name, version) {
        ("MQTT", Ok(Version::V4 | Version::V5)) | ("MQIsdp", Ok(Version::V3)) | (_, Err(_)) => version,
        _ => {
            Err(DecodeError::unsupported_version("protocol name is not the one of the level [MQTT-3.1.2-1]"))
        }
    }
}

/// Whether user name or password is missing despite its flag, which MQTT 3.1 allows for older clients (3.1, 3.1 "User
/// name and password flags").
fn is_omitted(version: Version, body: &Reader<'_>) -> bool {
    version == Version::V3 && body.is_empty()
}

/// Connect Flags (3.1.2.3).
#[derive(Clone, Copy, Debug)]
struct Flags(u8);

impl Flags {
    const RESERVED: u8 = 1;
    const CLEAN_START: u8 = 1 << 1;
    const WILL: u8 = 1 << 2;
    const WILL_QOS: u8 = 0b11 << 3;
    const WILL_RETAIN: u8 = 1 << 5;
    const PASSWORD: u8 = 1 << 6;
    const USERNAME: u8 = 1 << 7;

    /// Reads the flags and checks that they are consistent. MQTT 3.1 ignores will QoS and will retain without a will.
    /// It reserves bit 0 for future use and has senders clear unused bits, so a client that sets it means something
    /// that no version defines: it is refused as in 3.1.1.
    fn read(version: Version, body: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flags = Self(body.u8()?);
        if flags.has(Self::RESERVED) {
            return Err(DecodeError::malformed("reserved connect flag [MQTT-3.1.2-3]"));
        }
        if version != Version::V3 && !flags.has(Self::WILL) && flags.has(Self::WILL_QOS | Self::WILL_RETAIN) {
            return Err(DecodeError::malformed(
                "will QoS or will retain without a will [MQTT-3.1.2-11] [MQTT-3.1.2-13]",
            ));
        }
        if version != Version::V5 && flags.has(Self::PASSWORD) && !flags.has(Self::USERNAME) {
            return Err(DecodeError::malformed("password without user name (3.1.1) [MQTT-3.1.2-22]"));
        }
        Ok(flags)
    }

    const fn has(self, mask: u8) -> bool {
        self.0 & mask != 0
    }
}

/// Reads will properties, will topic and will payload (3.1.3.2 to 3.1.3.4).
fn will<'a>(version: Version, flags: Flags, body: &mut Reader<'a>) -> Result<Will<'a>, DecodeError> {
    let qos = QoS::try_from((flags.0 & Flags::WILL_QOS) >> 3)
        .map_err(|_| DecodeError::malformed("will QoS 3 [MQTT-3.1.2-12]"))?;
    let mut delay_interval = None;
    let mut properties = MessageProperties::default();
    if version == Version::V5 {
        let mut parser = PropertyParser::take(body)?;
        while let Some(id) = parser.next_id()? {
            match id {
                id::WILL_DELAY_INTERVAL => parser.u32(&mut delay_interval)?,
                _ => message_property(&mut properties, id, &mut parser)?,
            }
        }
        properties.user_properties = parser.user_properties();
    }
    let topic = body.string()?;
    let payload = body.binary()?;
    Ok(Will { qos, retain: flags.has(Flags::WILL_RETAIN), topic, payload, delay_interval, properties })
}

/// CONNECT properties (3.1.2.11).
fn properties<'a>(connect: &mut Connect<'a>, body: &mut Reader<'a>) -> Result<(), DecodeError> {
    let mut parser = PropertyParser::take(body)?;
    while let Some(id) = parser.next_id()? {
        match id {
            id::SESSION_EXPIRY_INTERVAL => parser.u32(&mut connect.session_expiry)?,
            id::RECEIVE_MAXIMUM => parser.receive_maximum(&mut connect.receive_maximum)?,
            id::MAXIMUM_PACKET_SIZE => parser.maximum_packet_size(&mut connect.maximum_packet_size)?,
            id::TOPIC_ALIAS_MAXIMUM => parser.u16(&mut connect.topic_alias_maximum)?,
            id::REQUEST_RESPONSE_INFORMATION => parser.flag(&mut connect.request_response_information)?,
            id::REQUEST_PROBLEM_INFORMATION => parser.flag(&mut connect.request_problem_information)?,
            id::AUTHENTICATION_METHOD => parser.string(&mut connect.authentication_method)?,
            id::AUTHENTICATION_DATA => parser.binary(&mut connect.authentication_data)?,
            id::USER_PROPERTY => parser.user_property()?,
            _ => return Err(not_allowed()),
        }
    }
    if connect.authentication_data.is_some() && connect.authentication_method.is_none() {
        return Err(DecodeError::protocol("Authentication Data without Authentication Method (3.1.2.11.10)"));
    }
    connect.user_properties = parser.user_properties();
    Ok(())
}
