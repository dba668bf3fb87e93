//! `mainstem pub`: messages out, acknowledgements in.

use std::collections::HashMap;
use std::io::{self, Read};
use std::time::Instant;

use mainstem_mqtt::ReasonCode;
use mainstem_mqtt::packet::{Ack, Packet, Publish, QoS};
use mainstem_topic::check_name;

use super::client::Client;
use super::failure::{Failure, io_words};
use super::lines::Lines;
use super::properties::{Properties, borrowed};
use super::session::Session;
use crate::cli::PubArgs;

/// Queued bytes from which on they are written at once.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Publishes what `args` say and waits for the acknowledgements.
///
/// # Errors
/// If anything could not be published, or was refused.
pub(crate) fn run(args: &PubArgs) -> Result<(), Failure> {
    let given = args.connect.properties().map_err(Failure::new)?;
    let mut properties = Properties::new(&given)?;
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

/// The one message, read before anything is sent; `None` if every line is one.
fn payload(args: &PubArgs) -> Result<Option<Vec<u8>>, Failure> {
    let cannot_read = |name: &str, error: &io::Error| Failure::new(format!("{name}: {}", io_words(error)));
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

/// What is due for an unacknowledged message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// PUBACK, or PUBREC.
    FirstAnswer,
    /// PUBCOMP.
    Completion,
}

struct Publisher<'a> {
    client: Client,
    args: &'a PubArgs,
    session: &'a Session<'a>,
    topic: &'a str,
    /// Whether the broker knows what the topic alias stands for.
    alias_known: bool,
    in_flight: HashMap<u16, Due>,
    in_flight_max: usize,
    published: u64,
    refused: u64,
    first_refusal: Option<Failure>,
    frame: Vec<u8>,
}

impl<'a> Publisher<'a> {
    /// # Errors
    /// If the broker does not take such messages.
    fn new(
        client: Client,
        args: &'a PubArgs,
        session: &'a Session<'a>,
        topic: &'a str,
    ) -> Result<Self, Failure> {
        let server = client.server();
        if args.qos > server.maximum_qos {
            return Err(Failure::new(format!("the broker takes QoS {} at most", server.maximum_qos as u8)));
        }
        if args.retain && !server.retain_available {
            return Err(Failure::new("the broker does not support retained messages"));
        }
        if session.properties.topic_alias.is_some_and(|alias| alias > server.topic_alias_maximum) {
            let highest = server.topic_alias_maximum;
            return Err(Failure::new(format!("the broker takes topic aliases up to {highest}")));
        }
        Ok(Self {
            in_flight_max: usize::from(args.max_inflight.min(server.receive_maximum)),
            client,
            args,
            session,
            topic,
            alias_known: false,
            in_flight: HashMap::new(),
            published: 0,
            refused: 0,
            first_refusal: None,
            frame: Vec::new(),
        })
    }

    /// Publishes one message as often as was asked.
    fn repeat(&mut self, payload: &[u8]) -> Result<(), Failure> {
        for round in 1..=self.args.repeat {
            self.publish(payload)?;
            if round < self.args.repeat && !self.args.repeat_delay.is_zero() {
                let until = Instant::now() + self.args.repeat_delay;
                while self.client.receive(&mut self.frame, Some(until))? {
                    self.answer()?;
                }
            }
        }
        Ok(())
    }

    /// Publishes every line of standard input as it comes.
    fn lines(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::new(io::stdin());
        loop {
            while let Some(line) = lines.next() {
                self.publish(line)?;
            }
            if lines.is_ended() {
                return Ok(());
            }
            self.answers()?;
            if self.client.wait(Some(lines.fd()), None)?.other {
                lines.read()?;
            }
        }
    }

    /// Publishes one message, once there is room for it among the unacknowledged ones.
    fn publish(&mut self, payload: &[u8]) -> Result<(), Failure> {
        while self.in_flight.len() >= self.in_flight_max {
            self.await_answer()?;
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
            topic: if self.alias_known { "" } else { self.topic },
            packet_id,
            topic_alias: properties.topic_alias,
            properties: properties.message.packet(&user),
            payload,
            ..Publish::default()
        };
        self.client.send(&Packet::Publish(publish))?;
        self.alias_known = properties.topic_alias.is_some();
        self.published += 1;
        if packet_id != 0 {
            self.in_flight.insert(packet_id, Due::FirstAnswer);
        }
        if self.client.pending_bytes() > PENDING_BYTES_MAX {
            self.client.flush()?;
            self.answers()?;
        }
        Ok(())
    }

    fn free_packet_id(&mut self) -> u16 {
        // There is one: fewer than all are in flight.
        loop {
            let id = self.client.next_packet_id();
            if !self.in_flight.contains_key(&id) {
                return id;
            }
        }
    }

    /// Handles the answers that have been read.
    fn answers(&mut self) -> Result<(), Failure> {
        while self.client.take(&mut self.frame)? {
            self.answer()?;
        }
        Ok(())
    }

    /// Waits for one answer.
    fn await_answer(&mut self) -> Result<(), Failure> {
        let until = Instant::now() + self.args.ack_timeout;
        if !self.client.receive(&mut self.frame, Some(until))? {
            let missing = self.in_flight.len();
            let seconds = self.args.ack_timeout.as_secs_f64();
            return Err(Failure::lost(format!(
                "no acknowledgement within {seconds} s; {missing} of {} messages are without",
                self.published
            )));
        }
        self.answer()
    }

    /// Handles the packet in `frame`.
    fn answer(&mut self) -> Result<(), Failure> {
        let packet = self.client.decode(&self.frame)?;
        let (ack, due) = match packet {
            Packet::PubAck(ack) | Packet::PubRec(ack) => (ack, Due::FirstAnswer),
            Packet::PubComp(ack) => (ack, Due::Completion),
            // A stored session may have messages waiting. They stay there: without acknowledgement they are
            // delivered again to whoever subscribes with this identifier.
            _ => return Ok(()),
        };
        if self.in_flight.remove(&ack.packet_id) != Some(due) {
            let text = format!("the broker acknowledged message {}, which was not due", ack.packet_id);
            return Err(Failure::new(text));
        }
        if matches!(packet, Packet::PubRec(_)) && !ack.reason.is_error() {
            self.in_flight.insert(ack.packet_id, Due::Completion);
            let release = Ack { packet_id: ack.packet_id, ..Ack::default() };
            self.client.send(&Packet::PubRel(release))?;
        }
        if ack.reason.is_error() {
            self.refused += 1;
            self.first_refusal
                .get_or_insert_with(|| Failure::refused("refused", ack.reason, ack.reason_string));
        } else if ack.reason == ReasonCode::NoMatchingSubscribers && self.args.connect.debug {
            eprintln!("nobody subscribes to {}", self.topic);
        }
        Ok(())
    }

    /// Waits for what is still unacknowledged and takes leave.
    fn finish(mut self) -> Result<(), Failure> {
        while !self.in_flight.is_empty() {
            self.await_answer()?;
        }
        let properties = &self.session.properties;
        self.client.disconnect(properties.disconnect_session_expiry, &properties.disconnect_user)?;
        match self.first_refusal {
            None => Ok(()),
            Some(refusal) if self.published == 1 => Err(refusal),
            Some(refusal) => {
                let (refused, published) = (self.refused, self.published);
                Err(refusal.with_prefix(&format!("{refused} of {published} messages refused, the first")))
            }
        }
    }
}
