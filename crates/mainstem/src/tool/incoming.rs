//! What `mainstem sub` does with each message: print, acknowledge, clear, count.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, Stdout, Write};

use mainstem_mqtt::packet::{Ack, Packet, Publish, QoS};
use mainstem_topic::matches;

use super::client::Client;
use super::clock::Moment;
use super::failure::{Failure, io_words};
use super::format::Format;
use crate::cli::SubArgs;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    On,
    /// Everything that was asked for has come.
    Done,
    /// The time is up.
    TimedOut,
    /// Nobody reads the output any more.
    OutputGone,
}

/// The receiving side, over all connections of the process.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    args: &'a SubArgs,
    format: Format,
    /// Messages still to print.
    left: Option<u64>,
    out: BufWriter<Stdout>,
    /// One message, before it goes to `out`.
    line: Vec<u8>,
    output_gone: bool,
    /// What the broker's topic aliases stand for; per connection.
    aliases: HashMap<u16, String>,
    /// QoS 2 messages received whose PUBREL is due; per session.
    unreleased: HashSet<u16>,
}

impl<'a> Incoming<'a> {
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
            left: args.count,
            out: BufWriter::new(io::stdout()),
            line: Vec::new(),
            output_gone: false,
            aliases: HashMap::new(),
            unreleased: HashSet::new(),
        })
    }

    /// A new connection stands; whether the broker continues the session of the last.
    pub(crate) fn connected(&mut self, session_present: bool) {
        self.aliases.clear();
        if !session_present {
            self.unreleased.clear();
        }
    }

    /// Handles a packet; answers are queued.
    ///
    /// # Errors
    /// If the packet makes no sense or cannot be answered.
    pub(crate) fn packet(&mut self, client: &mut Client, packet: &Packet<'_>) -> Result<Flow, Failure> {
        match packet {
            Packet::Publish(publish) => self.message(client, publish),
            Packet::PubRel(release) => {
                self.release(client, release.packet_id)?;
                Ok(Flow::On)
            }
            _ => Ok(Flow::On),
        }
    }

    /// Handles the packet in `frame` if it is a PUBREL; leaves anything else unacknowledged.
    ///
    /// # Errors
    /// As [`Incoming::packet`].
    pub(crate) fn release_only(&mut self, client: &mut Client, frame: &[u8]) -> Result<(), Failure> {
        match client.decode(frame)? {
            Packet::PubRel(release) => self.release(client, release.packet_id),
            _ => Ok(()),
        }
    }

    /// Whether QoS 2 messages were received whose exchange is not over.
    pub(crate) fn has_unreleased(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Hands everything printed to the operating system. To be called before acknowledgements leave.
    ///
    /// # Errors
    /// If the output fails, other than by nobody reading it.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.out.flush();
        self.written(result)
    }

    fn release(&mut self, client: &mut Client, packet_id: u16) -> Result<(), Failure> {
        self.unreleased.remove(&packet_id);
        client.send(&Packet::PubComp(Ack { packet_id, ..Ack::default() }))
    }

    fn message(&mut self, client: &mut Client, publish: &Publish<'_>) -> Result<Flow, Failure> {
        let ack = Ack { packet_id: publish.packet_id, ..Ack::default() };
        if publish.qos == QoS::ExactlyOnce && self.unreleased.contains(&publish.packet_id) {
            // Sent again before its PUBREL: it has been printed [MQTT-4.3.3-10].
            client.send(&Packet::PubRec(ack))?;
            return Ok(Flow::On);
        }
        if self.args.retained_only && !publish.retain {
            return Ok(Flow::Done);
        }
        let topic = self.topic(publish)?;
        let filtered_out = self.args.filter_out.iter().any(|filter| matches(filter, &topic));
        let unwanted = self.args.no_retained && publish.retain;
        let printed = !filtered_out && !unwanted;
        if printed {
            self.print(publish, &topic)?;
            if self.output_gone {
                return Ok(Flow::OutputGone);
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
        match &mut self.left {
            Some(left) if printed => {
                *left -= 1;
                Ok(if *left == 0 { Flow::Done } else { Flow::On })
            }
            _ => Ok(Flow::On),
        }
    }

    /// The message's topic, through its alias if there is one.
    fn topic(&mut self, publish: &Publish<'_>) -> Result<String, Failure> {
        match publish.topic_alias {
            Some(alias) if publish.topic.is_empty() => {
                self.aliases.get(&alias).cloned().ok_or_else(|| {
                    Failure::new(format!("the broker used topic alias {alias} before it set it"))
                })
            }
            Some(alias) => {
                self.aliases.insert(alias, publish.topic.into());
                Ok(publish.topic.into())
            }
            None => Ok(publish.topic.into()),
        }
    }

    fn print(&mut self, publish: &Publish<'_>, topic: &str) -> Result<(), Failure> {
        self.line.clear();
        if let Err(unfit) = self.format.append(&mut self.line, publish, topic, &Moment::now()) {
            if !self.args.connect.quiet {
                eprintln!("mainstem sub: {unfit}");
            }
            return Ok(());
        }
        if !self.args.no_newline {
            self.line.push(b'\n');
        }
        let result = self.out.write_all(&self.line);
        self.written(result)
    }

    fn written(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.output_gone = true;
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("standard output: {}", io_words(&error)))),
        }
    }
}
