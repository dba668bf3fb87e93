//! MQTT connection setup: CONNECT, CONNACK, and for subscribers SUBSCRIBE and SUBACK.
//!
//! These packets are rare, so they use the full codec. Any refusal becomes a [`Fault`] with the broker's reason
//! code, and a granted QoS below the requested one counts as a refusal, because it would change the load.

use std::net::SocketAddr;

use mainstem_mqtt::packet::{
    Connect, Packet, QoS, Subscribe, SubscribeFilter, SubscribeOptions, UserProperties, Version,
};
use mainstem_mqtt::{Header, PacketType, ReasonCode, decode};

use crate::error::BenchError;
use crate::net::{Fault, Net, io_error_text};
use crate::options::Options;
use crate::sockets;
use crate::transport::Stream;

/// Topic filters per SUBSCRIBE.
const FILTERS_PER_SUBSCRIBE: usize = 100;

/// Session expiry interval of persistent sessions, in seconds.
const EXPIRY_S: u32 = 3600;
/// Connection kind in client identifiers: subscribers of a traffic scenario.
pub(crate) const SUBSCRIBER: char = 's';
/// Connection kind in client identifiers: sessions whose messages the broker queues while they are offline.
pub(crate) const QUEUED: char = 'q';

/// Setup state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// CONNECT sent; CONNACK outstanding.
    Connecting,
    /// Number of outstanding SUBACKs.
    Subscribing(usize),
    /// Ready for traffic.
    Ready,
}

/// Limits that the broker announced in CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) receive_maximum: u16,
    /// Server Keep Alive in seconds; 0 if absent.
    pub(crate) keep_alive: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { receive_maximum: u16::MAX, keep_alive: 0 }
    }
}

/// Starts connections.
#[derive(Debug)]
pub(crate) struct Opener<'a> {
    options: &'a Options,
    broker: SocketAddr,
    /// Distinguishes the client identifiers of this run from those of other runs.
    run_id: &'a str,
    /// Number of connections of the run, over all threads.
    total: u32,
}

impl<'a> Opener<'a> {
    pub(crate) fn new(options: &'a Options, broker: SocketAddr, run_id: &'a str, total: u32) -> Self {
        Self { options, broker, run_id, total }
    }

    /// Starts connection `index` of the run, the `number`th of its `kind`, and queues its CONNECT. Returns its id.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub(crate) fn start(
        &self,
        net: &mut Net,
        index: u32,
        kind: char,
        number: u32,
    ) -> Result<usize, BenchError> {
        let stream = sockets::start_connect(self.broker, index, self.total)
            .map_err(|error| BenchError::Open(self.cannot_connect(&Fault::new(io_error_text(&error)))))?;
        let stream = Stream::new(stream, self.options.tls.as_ref(), &self.options.host)?;
        let id = net.add(stream).map_err(|error| BenchError::system("epoll", error))?;
        let version = self.options.version;
        let receive_maximum = (version == Version::V5 && self.options.receive_maximum != u16::MAX)
            .then_some(self.options.receive_maximum);
        // At most 23 characters, all letters and digits [MQTT-3.1.3-5].
        let client_id = format!("b{}{kind}{number}", self.run_id);
        let credentials = self.options.credentials.as_ref();
        let is_persistent = kind == QUEUED || self.options.durable && kind == SUBSCRIBER;
        let connect = Connect {
            username: credentials.map(|(name, _)| name.as_str()),
            password: credentials.map(|(_, password)| password.as_bytes()),
            receive_maximum,
            clean_start: !is_persistent,
            session_expiry: (is_persistent && version == Version::V5).then_some(EXPIRY_S),
            // The maximum, so that no ping is due during a run. Some brokers reject 0, which would disable it.
            keep_alive: u16::MAX,
            ..Connect::new(version, &client_id)
        };
        Packet::Connect(connect)
            .encode(version, net.output(id))
            .map_err(|error| BenchError::Options(format!("CONNECT: {error}")))?;
        Ok(id)
    }

    /// Error message for a connection that could not be opened.
    pub(crate) fn cannot_connect(&self, fault: &Fault) -> String {
        format!("cannot connect to {}: {fault}", self.broker)
    }
}

/// Parses a CONNACK.
///
/// # Errors
/// If the packet is not a CONNACK, refuses the connection, or has a Maximum QoS below `qos`.
pub(crate) fn connack(version: Version, qos: QoS, frame: &[u8]) -> Result<Limits, Fault> {
    let connack = match decode(version, frame).map_err(Fault::new)? {
        Packet::ConnAck(connack) => connack,
        other => return Err(Fault::new(format_args!("{} instead of CONNACK", packet_name(&other)))),
    };
    if connack.reason != ReasonCode::Success {
        return Err(Fault::new(format_args!(
            "the broker refused the connection: {}",
            describe(connack.reason)
        )));
    }
    if let Some(highest) = connack.maximum_qos.filter(|highest| *highest < qos) {
        return Err(Fault::new(format_args!("the broker allows no more than QoS {}", highest as u8)));
    }
    Ok(Limits {
        receive_maximum: connack.receive_maximum.unwrap_or(u16::MAX),
        keep_alive: connack.server_keep_alive.unwrap_or(0),
    })
}

/// Appends the SUBSCRIBEs for `filters`. Returns their number.
///
/// # Errors
/// If the filters cannot be encoded.
pub(crate) fn subscribe(
    version: Version,
    qos: QoS,
    filters: &[String],
    out: &mut Vec<u8>,
) -> Result<usize, Fault> {
    let chunks = filters.chunks(FILTERS_PER_SUBSCRIBE);
    let count = chunks.len();
    for (i, chunk) in chunks.enumerate() {
        let filters: Vec<SubscribeFilter<'_>> = chunk
            .iter()
            .map(|filter| SubscribeFilter { filter, options: SubscribeOptions::qos(qos) })
            .collect();
        let subscribe = Subscribe {
            packet_id: i as u16 + 1,
            subscription_id: None,
            user_properties: UserProperties::default(),
            filters: filters.as_slice().into(),
        };
        Packet::Subscribe(subscribe).encode(version, out).map_err(Fault::new)?;
    }
    Ok(count)
}

/// Parses a SUBACK.
///
/// # Errors
/// If a filter was refused or granted less than `qos`.
pub(crate) fn suback(version: Version, qos: QoS, frame: &[u8]) -> Result<(), Fault> {
    let Packet::SubAck(suback) = decode(version, frame).map_err(Fault::new)? else {
        return Err(Fault::new("expected SUBACK"));
    };
    match suback.reasons.iter().find(|reason| **reason != qos as u8) {
        None => Ok(()),
        Some(granted @ 0..=2) => Err(Fault::new(format_args!("the broker granted only QoS {granted}"))),
        Some(reason) => Err(Fault::new(match ReasonCode::try_from(*reason) {
            Ok(reason) => format!("the broker refused a subscription: {}", describe(reason)),
            Err(_) => format!("the broker refused a subscription with {reason:#04x}"),
        })),
    }
}

/// Handles a packet that is not part of the load: ignores PINGRESP, and fails on anything else, such as DISCONNECT.
pub(crate) fn unexpected(version: Version, header: &Header, frame: &[u8]) -> Result<(), Fault> {
    if PacketType::of(header.first) == Ok(PacketType::PingResp) {
        return Ok(());
    }
    match decode(version, frame).map_err(Fault::new)? {
        Packet::Disconnect(disconnect) => {
            Err(Fault::new(format_args!("the broker disconnected: {}", describe(disconnect.reason))))
        }
        other => Err(Fault::new(format_args!("unexpected {}", packet_name(&other)))),
    }
}

/// Name and number of a reason code.
pub(crate) fn describe(reason: ReasonCode) -> String {
    format!("{reason:?} ({:#04x})", reason as u8)
}

/// Packet name as in the specification, such as `CONNACK`.
fn packet_name(packet: &Packet<'_>) -> String {
    let debug = format!("{packet:?}");
    let end = debug.find(|c: char| !c.is_alphanumeric()).unwrap_or(debug.len());
    debug[..end].to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_mqtt::packet::{ConnAck, Disconnect, SubAck};

    fn frame(version: Version, packet: impl Into<Packet<'static>>) -> Vec<u8> {
        let mut out = Vec::new();
        packet.into().encode(version, &mut out).unwrap();
        out
    }

    #[test]
    fn refused_connection_error_names_the_reason() {
        let refusal = ConnAck { reason: ReasonCode::NotAuthorized, ..ConnAck::default() };
        let fault = connack(Version::V5, QoS::AtMostOnce, &frame(Version::V5, refusal)).unwrap_err();
        assert!(fault.0.contains("NotAuthorized (0x87)"), "{fault}");
    }

    #[test]
    fn connack_limits_are_applied() {
        let accepted = ConnAck {
            receive_maximum: Some(20),
            maximum_qos: Some(QoS::AtLeastOnce),
            server_keep_alive: Some(9),
            ..ConnAck::default()
        };
        let bytes = frame(Version::V5, accepted);
        let limits = connack(Version::V5, QoS::AtLeastOnce, &bytes).unwrap();
        assert_eq!(limits, Limits { receive_maximum: 20, keep_alive: 9 });
        assert!(connack(Version::V5, QoS::ExactlyOnce, &bytes).is_err());
    }

    #[test]
    fn many_filters_are_split_over_several_subscribes() {
        let filters: Vec<String> = (0..250).map(|i| format!("t/{i}")).collect();
        let mut out = Vec::new();
        assert_eq!(subscribe(Version::V4, QoS::AtLeastOnce, &filters, &mut out), Ok(3));
        let first = Header::parse(&out).unwrap().unwrap();
        assert_eq!(PacketType::of(first.first), Ok(PacketType::Subscribe));
    }

    #[test]
    fn lower_granted_qos_is_an_error() {
        let granted = |reasons: &'static [u8]| {
            let suback = SubAck {
                packet_id: 1,
                reason_string: None,
                user_properties: UserProperties::default(),
                reasons,
            };
            super::suback(Version::V5, QoS::AtLeastOnce, &frame(Version::V5, Packet::SubAck(suback)))
        };
        assert_eq!(granted(&[1, 1]), Ok(()));
        assert!(granted(&[1, 0]).unwrap_err().0.contains("only QoS 0"));
        assert!(granted(&[0x8F]).unwrap_err().0.contains("TopicFilterInvalid"));
    }

    #[test]
    fn disconnect_is_an_error_and_pingresp_is_ignored() {
        let check = |bytes: &[u8]| unexpected(Version::V5, &Header::parse(bytes).unwrap().unwrap(), bytes);
        assert_eq!(check(&frame(Version::V5, Packet::PingResp)), Ok(()));
        let bye = Disconnect { reason: ReasonCode::ServerShuttingDown, ..Disconnect::default() };
        assert!(check(&frame(Version::V5, bye)).unwrap_err().0.contains("ServerShuttingDown"));
        assert!(check(&frame(Version::V5, ConnAck::default())).unwrap_err().0.contains("CONNACK"));
    }
}
