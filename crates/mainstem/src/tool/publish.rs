//! `mainstem pub`: publishes messages and waits for their acknowledgements.

use std::collections::HashMap;
use std::io::{self, Read};
use std::time::Instant;

use mainstem_mqtt::ReasonCode;
use mainstem_mqtt::packet::{Ack, Packet, Publish, QoS};
use mainstem_topic::check_name;

use super::client::Client;
use super::failure::{Failure, io_message};
use super::lines::Lines;
use super::properties::{Properties, borrowed};
use super::session::Session;
use crate::cli::PubArgs;

/// Queued bytes above which the queue is flushed.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Publishes the messages and waits for their acknowledgements.
///
/// # Errors
/// If a message could not be published, or the broker rejected it.
pub(crate) fn run(args: &PubArgs) -> Result<(), Failure> {
    let flags = args.connect.properties().map_err(Failure::new)?;
    let mut properties = Properties::new(&flags)?;
    properties.add_message_flags(args);
    let session = Session::new(&args.connect, properties, "pub")?;
    let topic = args.topic.as_ref().or(session.target.topic.as_ref());
    let topic = topic.ok_or_else(|| Failure::new("neither --topic nor --url names a topic"))?;
    check_name(topic).map_err(|error| Failure::new(format!("topic {topic:?} {error}")))?;
    let payload = payload(args)?;

    let client = Client::connect(&session)?;
    let mut publisher = Publisher::new(client, args, &session, topic)?;
    match payload {
        Some(payload) => publisher.repeat(&payload)?,
        None => publisher.lines()?,
    }
    publisher.finish()
}

/// Reads the payload before connecting. `None` if each line of standard input is a payload.
fn payload(args: &PubArgs) -> Result<Option<Vec<u8>>, Failure> {
    let cannot_read = |name: &str, error: &io::Error| Failure::new(format!("{name}: {}", io_message(error)));
    let payload = if let Some(text) = &args.message {
        text.clone().into_bytes()
    } else if let Some(path) = &args.file {
        std::fs::read(path).map_err(|error| cannot_read(&path.display().to_string(), &error))?
    } else if args.stdin {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map_err(|error| cannot_read("standard input", &error))?;
        bytes
    } else if args.lines {
        return Ok(None);
    } else {
        Vec::new()
    };
    Ok(Some(payload))
}

/// The acknowledgement that an unacknowledged message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedAck {
    PubAckOrPubRec,
    PubComp,
}

struct Publisher<'a> {
    client: Client,
    args: &'a PubArgs,
    session: &'a Session<'a>,
    topic: &'a str,
    /// Whether the topic alias has been set.
    alias_is_set: bool,
    in_flight: HashMap<u16, ExpectedAck>,
    in_flight_max: usize,
    published: u64,
    refused: u64,
    first_error: Option<Failure>,
    frame: Vec<u8>,
}

impl<'a> Publisher<'a> {
    /// # Errors
    /// If the broker does not support the QoS, retained messages or the topic alias.
    fn new(
        client: Client,
        args: &'a PubArgs,
        session: &'a Session<'a>,
        topic: &'a str,
    ) -> Result<Self, Failure> {
        let connack = client.connack();
        if args.qos > connack.maximum_qos {
            return Err(Failure::new(format!(
                "the broker supports QoS {} at most",
                connack.maximum_qos as u8
            )));
        }
        if args.retain && !connack.retain_available {
            return Err(Failure::new("the broker does not support retained messages"));
        }
        if session.properties.topic_alias.is_some_and(|alias| alias > connack.topic_alias_maximum) {
            let highest = connack.topic_alias_maximum;
            return Err(Failure::new(format!("the broker supports topic aliases up to {highest}")));
        }
        Ok(Self {
            in_flight_max: usize::from(args.max_inflight.min(connack.receive_maximum)),
            client,
            args,
            session,
            topic,
            alias_is_set: false,
            in_flight: HashMap::new(),
            published: 0,
            refused: 0,
            first_error: None,
            frame: Vec::new(),
        })
    }

    /// Publishes one message `--repeat` times.
    fn repeat(&mut self, payload: &[u8]) -> Result<(), Failure> {
        for round in 1..=self.args.repeat {
            self.publish(payload)?;
            if round < self.args.repeat && !self.args.repeat_delay.is_zero() {
                let until = Instant::now() + self.args.repeat_delay;
                while self.client.receive(&mut self.frame, Some(until))? {
                    self.handle_packet()?;
                }
            }
        }
        Ok(())
    }

    /// Publishes each line of standard input.
    fn lines(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::new(io::stdin());
        loop {
            while let Some(line) = lines.next() {
                self.publish(line)?;
            }
            if lines.is_ended() {
                return Ok(());
            }
            self.handle_acks()?;
            if self.client.wait(Some(lines.fd()), None)?.other {
                lines.read()?;
            }
        }
    }

    /// Publishes one message. Waits first while the maximum number of messages is in flight.
    fn publish(&mut self, payload: &[u8]) -> Result<(), Failure> {
        while self.in_flight.len() >= self.in_flight_max {
            self.await_ack()?;
        }
        let packet_id = match self.args.qos {
            QoS::AtMostOnce => 0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.free_packet_id(),
        };
        let properties = &self.session.properties;
        let user = borrowed(&properties.message.user);
        let publish = Publish {
            qos: self.args.qos,
            retain: self.args.retain,
            topic: if self.alias_is_set { "" } else { self.topic },
            packet_id,
            topic_alias: properties.topic_alias,
            properties: properties.message.packet(&user),
            payload,
            ..Publish::default()
        };
        self.client.send(&Packet::Publish(publish))?;
        self.alias_is_set = properties.topic_alias.is_some();
        self.published += 1;
        if packet_id != 0 {
            self.in_flight.insert(packet_id, ExpectedAck::PubAckOrPubRec);
        }
        if self.client.pending_bytes() > PENDING_BYTES_MAX {
            self.client.flush()?;
            self.handle_acks()?;
        }
        Ok(())
    }

    fn free_packet_id(&mut self) -> u16 {
        // Fewer messages are in flight than there are identifiers.
        loop {
            let id = self.client.next_packet_id();
            if !self.in_flight.contains_key(&id) {
                return id;
            }
        }
    }

    /// Handles the acknowledgements that have been read.
    fn handle_acks(&mut self) -> Result<(), Failure> {
        while self.client.try_receive(&mut self.frame)? {
            self.handle_packet()?;
        }
        Ok(())
    }

    /// Waits for one acknowledgement.
    fn await_ack(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + self.args.ack_timeout;
        if !self.client.receive(&mut self.frame, Some(until))? {
            let unacknowledged = self.in_flight.len();
            let seconds = self.args.ack_timeout.as_secs_f64();
            return Err(Failure::transient(format!(
                "no acknowledgement within {seconds} s; {unacknowledged} of {} messages are unacknowledged",
                self.published
            )));
        }
        self.handle_packet()
    }

    /// Handles the packet in `frame`.
    fn handle_packet(&mut self) -> Result<(), Failure> {
        let packet = self.client.decode(&self.frame)?;
        let (ack, expected) = match packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) => (ack, ExpectedAck::PubAckOrPubRec),
            Packet::PubComp(ack) => (ack, ExpectedAck::PubComp),
            // A resumed session may receive messages. They are not acknowledged, so the broker delivers them again to
            // the next client with this identifier.
            _ => return Ok(()),
        };
        if self.in_flight.remove(&ack.packet_id) != Some(expected) {
            let text = format!("unexpected acknowledgement of message {}", ack.packet_id);
            return Err(Failure::new(text));
        }
        if matches!(packet, Packet::PubRec(_)) && !ack.reason.is_error() {
            self.in_flight.insert(ack.packet_id, ExpectedAck::PubComp);
            let release = Ack { packet_id: ack.packet_id, ..Ack::default() };
            self.client.send(&Packet::PubRel(release))?;
        }
        if ack.reason.is_error() {
            self.refused += 1;
            self.first_error
                .get_or_insert_with(|| Failure::refused("refused", ack.reason, ack.reason_string));
        } else if ack.reason == ReasonCode::NoMatchingSubscribers && self.args.connect.debug {
            eprintln!("no subscriptions match {}", self.topic);
        }
        Ok(())
    }

    /// Waits for all acknowledgements and disconnects.
    fn finish(mut self) -> Result<(), Failure> {
        while !self.in_flight.is_empty() {
            self.await_ack()?;
        }
        let properties = &self.session.properties;
        self.client.disconnect(properties.disconnect_session_expiry, &properties.disconnect_user)?;
        match self.first_error {
            None => Ok(()),
            Some(error) if self.published == 1 => Err(error),
            Some(error) => {
                let (refused, published) = (self.refused, self.published);
                Err(error.with_prefix(&format!("{refused} of {published} messages refused, the first one")))
            }
        }
    }
}
