//! Handling of the messages that `mainstem sub` receives: printing, acknowledging, clearing retained ones, counting.
//!
//! A message is acknowledged after it has been printed: [`MessageHandler::flush`] runs before the client writes the
//! queued acknowledgements.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Stdout, Write};

use mainstem_mqtt::packet::{Ack, Packet, Publish, QoS};
use mainstem_topic::matches;

use super::client::Client;
use super::clock::Moment;
use super::failure::{Failure, io_message};
use super::format::Format;
use crate::cli::SubArgs;

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Everything requested has been received.
    Done,
    TimedOut,
    /// Standard output is closed.
    OutputClosed,
}

/// Receives messages over all connections of the process.
#[derive(Debug)]
pub(crate) struct MessageHandler<'a> {
    args: &'a SubArgs,
    format: Format,
    /// Messages left to print, with `-C`.
    remaining: Option<u64>,
    out: BufWriter<Stdout>,
    line: Vec<u8>,
    output_closed: bool,
    /// Topic aliases set by the broker on this connection.
    aliases: HashMap<u16, String>,
    /// Packet identifiers of QoS 2 messages received in this session and not released by PUBREL.
    unreleased: HashSet<u16>,
}

impl<'a> MessageHandler<'a> {
    /// # Errors
    /// If the format is wrong.
    pub(crate) fn new(args: &'a SubArgs) -> Result<Self, Failure> {
        let format = match &args.format {
            Some(text) => Format::parse(text)?,
            None if args.json => Format::json(),
            None if args.verbose => Format::verbose(),
            None => Format::payload(),
        };
        Ok(Self {
            args,
            format,
            remaining: args.count,
            out: BufWriter::new(io::stdout()),
            line: Vec::new(),
            output_closed: false,
            aliases: HashMap::new(),
            unreleased: HashSet::new(),
        })
    }

    /// Prepares for a new connection. `session_present` is the flag of its CONNACK.
    pub(crate) fn connected(&mut self, session_present: bool) {
        self.aliases.clear();
        if !session_present {
            self.unreleased.clear();
        }
    }

    /// Handles a packet and queues its acknowledgement.
    ///
    /// # Errors
    /// If the packet violates the protocol or output fails.
    pub(crate) fn packet(&mut self, client: &mut Client, packet: &Packet<'_>) -> Result<Flow, Failure> {
        match packet {
            Packet::Publish(publish) => self.message(client, publish),
            Packet::PubRel(release) => {
                self.release(client, release.packet_id)?;
                Ok(Flow::Continue)
            }
            _ => Ok(Flow::Continue),
        }
    }

    /// Handles the packet in `frame` if it is a PUBREL. Leaves all other packets unacknowledged.
    ///
    /// # Errors
    /// As [`MessageHandler::packet`].
    pub(crate) fn release_only(&mut self, client: &mut Client, frame: &[u8]) -> Result<(), Failure> {
        match client.decode(frame)? {
            Packet::PubRel(release) => self.release(client, release.packet_id),
            _ => Ok(()),
        }
    }

    /// Whether QoS 2 exchanges are incomplete.
    pub(crate) fn has_unreleased(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Flushes standard output. Call this before acknowledgements are written.
    ///
    /// # Errors
    /// If writing fails, except when standard output is closed.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.out.flush();
        self.check_written(result)
    }

    fn release(&mut self, client: &mut Client, packet_id: u16) -> Result<(), Failure> {
        self.unreleased.remove(&packet_id);
        client.send(&Packet::PubComp(Ack { packet_id, ..Ack::default() }))
    }

    fn message(&mut self, client: &mut Client, publish: &Publish<'_>) -> Result<Flow, Failure> {
        let ack = Ack { packet_id: publish.packet_id, ..Ack::default() };
        if publish.qos == QoS::ExactlyOnce && self.unreleased.contains(&publish.packet_id) {
            // A duplicate before PUBREL: the message has been printed [MQTT-4.3.3-10].
            client.send(&Packet::PubRec(ack))?;
            return Ok(Flow::Continue);
        }
        if self.args.retained_only && !publish.retain {
            return Ok(Flow::Done);
        }
        let topic = self.topic(publish)?;
        let filtered_out = self.args.filter_out.iter().any(|filter| matches(filter, &topic));
        let is_suppressed = self.args.no_retained && publish.retain;
        let printed = !filtered_out && !is_suppressed;
        if printed {
            self.print(publish, &topic)?;
            if self.output_closed {
                return Ok(Flow::OutputClosed);
            }
        }
        if self.args.remove_retained && publish.retain && !filtered_out {
            let clear = Publish { topic: &topic, retain: true, ..Publish::default() };
            client.send(&Packet::Publish(clear))?;
        }
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => client.send(&Packet::PubAck(ack))?,
            QoS::ExactlyOnce => {
                self.unreleased.insert(publish.packet_id);
                client.send(&Packet::PubRec(ack))?;
            }
        }
        match &mut self.remaining {
            Some(remaining) if printed => {
                *remaining -= 1;
                Ok(if *remaining == 0 { Flow::Done } else { Flow::Continue })
            }
            _ => Ok(Flow::Continue),
        }
    }

    /// Returns the topic of a message, after resolving its topic alias.
    fn topic(&mut self, publish: &Publish<'_>) -> Result<String, Failure> {
        match publish.topic_alias {
            Some(alias) if publish.topic.is_empty() => self.aliases.get(&alias).cloned().ok_or_else(|| {
                Failure::new(format!("the broker used topic alias {alias}, which is not set"))
            }),
            Some(alias) => {
                self.aliases.insert(alias, publish.topic.into());
                Ok(publish.topic.into())
            }
            None => Ok(publish.topic.into()),
        }
    }

    fn print(&mut self, publish: &Publish<'_>, topic: &str) -> Result<(), Failure> {
        self.line.clear();
        if let Err(error) = self.format.append(&mut self.line, publish, topic, &Moment::now()) {
            if !self.args.connect.quiet {
                eprintln!("mainstem sub: {error}");
            }
            return Ok(());
        }
        if !self.args.no_newline {
            self.line.push(b'\n');
        }
        let result = self.out.write_all(&self.line);
        self.check_written(result)
    }

    fn check_written(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.output_closed = true;
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("standard output: {}", io_message(&error)))),
        }
    }
}
