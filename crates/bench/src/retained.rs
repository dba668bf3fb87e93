//! Retained messages: storing many, then fetching them all with one new subscriber.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use mainstem_mqtt::packet::{Packet, QoS, Version};
use mainstem_mqtt::{Header, PacketType};

use crate::error::BenchError;
use crate::flow::PacketIds;
use crate::net::{Clock, Fault, Handler, Net};
use crate::opening::{self, Opener, Stage};
use crate::options::{Load, Options};
use crate::process::Process;
use crate::report::{RetainedReport, per_million, per_second, rounded};
use crate::sockets;
use crate::wire::{
    self, Acknowledged, PUBACK, PUBCOMP, PUBREC, PUBREL, Prepared, Received, Stamp, append_ack,
};
use crate::worker::nanos;

/// In flight per publisher, where no window was asked for.
const WINDOW: u32 = 100;
/// Longest wait for an answer.
const PATIENCE_NS: u64 = 15_000_000_000;
/// Output that may wait on one connection.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Stores `options.retained` messages under `ret/`, then fetches them.
///
/// # Errors
/// If a connection cannot be opened or breaks, or the broker does not take the messages.
pub(crate) fn run(options: &Options, broker: SocketAddr, run_id: &str) -> Result<RetainedReport, BenchError> {
    let connections = options.publishers.unwrap_or(1).min(options.retained);
    sockets::raise_file_limit(connections + 1)?;
    let process = options.broker_pid.map(Process::of).transpose()?;
    let clock = Clock::start();
    let net =
        Net::new(clock, options.payload_bytes + 1024).map_err(|error| BenchError::system("epoll", error))?;
    let mut job = Job {
        options,
        clock,
        net,
        exchange: Exchange::new(options),
        opener: Opener::new(options, broker, run_id, connections + 1),
    };
    for number in 0..connections {
        job.open('r', number)?;
    }
    let cpu = || process.as_ref().map(Process::usage).transpose();
    let memory = || process.as_ref().map(Process::resident_bytes).transpose();

    let (rss_before, cpu_before) = (memory()?, cpu()?);
    let store = job.store()?;
    let (rss_after, cpu_stored) = (memory()?, cpu()?);
    let fetch = job.fetch(connections)?;
    let cpu_fetched = cpu()?;

    let received = job.exchange.received;
    let cost = |after: Option<crate::process::Usage>, before: Option<crate::process::Usage>, count: u64| {
        after.zip(before).map(|(after, before)| per_million(after.cpu_s_since(&before), count))
    };
    #[expect(clippy::cast_precision_loss, reason = "memory sizes stay far below 2^53")]
    let bytes_per_message = |bytes: u64| rounded(bytes as f64 / f64::from(options.retained));
    Ok(RetainedReport {
        messages: options.retained,
        stored_per_s: per_second(u64::from(options.retained), store),
        fetch_s: rounded(fetch.as_secs_f64()),
        fetched_per_s: per_second(received, fetch),
        lost: u64::from(options.retained) - received,
        duplicates: job.exchange.duplicates,
        broker_store_cpu_s_per_million: cost(cpu_stored, cpu_before, u64::from(options.retained)),
        broker_fetch_cpu_s_per_million: cost(cpu_fetched, cpu_stored, received),
        rss_bytes_per_message: rss_after
            .zip(rss_before)
            .map(|(after, before)| bytes_per_message(after.saturating_sub(before))),
    })
}

struct Job<'a> {
    options: &'a Options,
    clock: Clock,
    net: Net,
    exchange: Exchange,
    opener: Opener<'a>,
}

impl Job<'_> {
    /// Opens one connection and waits until it is ready.
    fn open(&mut self, kind: char, number: u32) -> Result<usize, BenchError> {
        let id = self.opener.start(&mut self.net, number, kind, number)?;
        self.exchange.peers.push(Peer::new(self.options));
        self.turn_while(|job| job.exchange.peers[id].stage != Stage::Ready)
            .map_err(|fault| BenchError::Open(self.opener.cannot_connect(&fault)))?;
        Ok(id)
    }

    /// Publishes every message and waits until the broker has taken them. How long that took.
    fn store(&mut self) -> Result<Duration, BenchError> {
        let publishers = self.exchange.peers.len();
        let filler = wire::filler(self.options.payload_bytes);
        let began_ns = self.clock.now_ns();
        let mut topic = String::new();
        let (mut left_before, mut moved_ns) = (u64::MAX, began_ns);
        loop {
            let mut left = 0;
            for id in 0..publishers {
                left += self.publish(id, publishers, &filler, &mut topic)?;
            }
            if left == 0 {
                break;
            }
            if left < left_before {
                (left_before, moved_ns) = (left, self.clock.now_ns());
            } else if self.clock.now_ns() > moved_ns + PATIENCE_NS {
                return Err(BenchError::Open("while storing: no answer".into()));
            }
            self.turn().map_err(|fault| BenchError::Open(format!("while storing: {fault}")))?;
        }
        for id in 0..publishers {
            // The broker answers a ping behind the last publish, which at QoS 0 is the only sign it was read.
            Packet::PingReq.encode(self.options.version, self.net.output(id)).expect("it has no fields");
        }
        self.turn_while(|job| job.exchange.peers.iter().any(|peer| !peer.is_done()))
            .map_err(|fault| BenchError::Open(format!("while storing: {fault}")))?;
        Ok(Duration::from_nanos(self.clock.now_ns() - began_ns))
    }

    /// Publishes what connection `id` may send now. How many messages it still has to send.
    fn publish(
        &mut self,
        id: usize,
        publishers: usize,
        filler: &[u8],
        topic: &mut String,
    ) -> Result<u64, BenchError> {
        let own = (u64::from(self.options.retained) - id as u64).div_ceil(publishers as u64);
        let peer = &mut self.exchange.peers[id];
        while peer.sent < own && self.net.pending_bytes(id) < PENDING_BYTES_MAX {
            let packet_id = match self.options.qos {
                QoS::AtMostOnce => 0,
                _ if peer.ids.has_free() => peer.ids.take(),
                _ => break,
            };
            let index = (peer.sent * publishers as u64 + id as u64) as u32;
            topic.clear();
            write!(topic, "ret/{index}").expect("writing to a string cannot fail");
            let prepared = Prepared::new(self.options.version, topic, self.options.qos, true, filler)
                .map_err(|error| BenchError::Options(format!("PUBLISH: {error}")))?;
            let stamp = Stamp { due_ns: self.clock.now_ns(), stream: index, sequence: 0 };
            prepared.append(self.net.output(id), packet_id, &stamp, filler);
            peer.sent += 1;
        }
        Ok(own - peer.sent)
    }

    /// Subscribes on a new connection and waits for all messages, as long as they keep coming. How long the
    /// last one took.
    fn fetch(&mut self, number: u32) -> Result<Duration, BenchError> {
        let id = self.open('f', number)?;
        let began_ns = self.clock.now_ns();
        let (version, qos) = (self.options.version, self.options.qos);
        opening::subscribe(version, qos, &["ret/#".into()], self.net.output(id))
            .map_err(|fault| BenchError::Options(fault.0))?;
        let all = u64::from(self.options.retained);
        let patience_ns = nanos(self.options.drain).max(1_000_000_000);
        let (mut seen, mut last_ns) = (0, began_ns);
        while self.exchange.received < all && self.clock.now_ns() < last_ns + patience_ns {
            self.turn().map_err(|fault| BenchError::Open(format!("while fetching: {fault}")))?;
            if self.exchange.received > seen {
                (seen, last_ns) = (self.exchange.received, self.clock.now_ns());
            }
        }
        Ok(Duration::from_nanos(last_ns - began_ns))
    }

    fn turn(&mut self) -> Result<(), Fault> {
        self.net.flush(&mut self.exchange);
        let woken_for_output = std::mem::take(&mut self.exchange.drained);
        let until_ns = woken_for_output.then_some(0);
        self.net.turn(until_ns, &mut self.exchange).map_err(Fault::new)?;
        match &self.exchange.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    fn turn_while(&mut self, waiting: impl Fn(&Self) -> bool) -> Result<(), Fault> {
        let until_ns = self.clock.now_ns() + PATIENCE_NS;
        while waiting(self) {
            self.turn()?;
            if self.clock.now_ns() > until_ns {
                return Err(Fault::new("no answer"));
            }
        }
        Ok(())
    }
}

/// One connection: any may publish and subscribe.
#[derive(Debug)]
struct Peer {
    stage: Stage,
    ids: PacketIds,
    sent: u64,
    ponged: bool,
}

impl Peer {
    fn new(options: &Options) -> Self {
        let window = match options.load {
            Load::Window(window) => window,
            Load::Rate(_) => WINDOW,
        };
        let limit = window.min(u32::from(options.max_inflight)) as u16;
        Self { stage: Stage::Connecting, ids: PacketIds::new(limit), sent: 0, ponged: false }
    }

    fn is_done(&self) -> bool {
        self.ponged && self.ids.taken() == 0
    }
}

/// What the packets mean.
#[derive(Debug)]
struct Exchange {
    version: Version,
    qos: QoS,
    payload_bytes: usize,
    peers: Vec<Peer>,
    /// One bit per message: whether it was fetched.
    seen: Vec<u64>,
    messages: u32,
    received: u64,
    duplicates: u64,
    drained: bool,
    fault: Option<Fault>,
}

impl Exchange {
    fn new(options: &Options) -> Self {
        Self {
            version: options.version,
            qos: options.qos,
            payload_bytes: options.payload_bytes,
            peers: Vec::new(),
            seen: vec![0; options.retained.div_ceil(64) as usize],
            messages: options.retained,
            received: 0,
            duplicates: 0,
            drained: false,
            fault: None,
        }
    }

    /// Counts a retained message, if it is one of this run: an earlier run may have left more of them.
    fn receive(&mut self, received: &Received<'_>) {
        let Some(stamp) = Stamp::read(received.payload) else { return };
        if !received.retain || received.payload.len() != self.payload_bytes || stamp.stream >= self.messages {
            return;
        }
        let word = &mut self.seen[(stamp.stream / 64) as usize];
        let bit = 1 << (stamp.stream % 64);
        if *word & bit == 0 {
            *word |= bit;
            self.received += 1;
        } else {
            self.duplicates += 1;
        }
    }

    fn acknowledge(
        &mut self,
        id: usize,
        kind: PacketType,
        ack: Acknowledged,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let ids = &mut self.peers[id].ids;
        if ack.reason >= 0x80 {
            return Err(Fault::new(format_args!("the broker refused a message with {:#04x}", ack.reason)));
        }
        let expected = match kind {
            PacketType::PubRec => {
                append_ack(out, PUBREL, ack.packet_id);
                ids.received(ack.packet_id)
            }
            PacketType::PubComp => ids.completed(ack.packet_id),
            _ => ids.acknowledged(ack.packet_id),
        };
        if expected { Ok(()) } else { Err(Fault::new(format_args!("{kind:?} that was not due"))) }
    }
}

impl Handler for Exchange {
    fn packet(
        &mut self,
        id: usize,
        out: &mut Vec<u8>,
        header: &Header,
        frame: &[u8],
        _now_ns: u64,
    ) -> Result<(), Fault> {
        if self.peers[id].stage == Stage::Connecting {
            let limits = opening::connack(self.version, self.qos, frame)?;
            self.peers[id].ids.lower_limit(limits.receive_maximum);
            self.peers[id].stage = Stage::Ready;
            return Ok(());
        }
        let truncated = || Fault::new("a packet whose lengths disagree");
        let kind = PacketType::of(header.first).map_err(Fault::new)?;
        match kind {
            PacketType::Publish => {
                let received = Received::parse(self.version, header, frame).ok_or_else(truncated)?;
                match received.qos {
                    1 => append_ack(out, PUBACK, received.packet_id),
                    2 => append_ack(out, PUBREC, received.packet_id),
                    _ => {}
                }
                self.receive(&received);
                Ok(())
            }
            PacketType::PubRel => {
                let ack = Acknowledged::parse(header, frame).ok_or_else(truncated)?;
                append_ack(out, PUBCOMP, ack.packet_id);
                Ok(())
            }
            PacketType::PubAck | PacketType::PubRec | PacketType::PubComp => {
                let ack = Acknowledged::parse(header, frame).ok_or_else(truncated)?;
                self.acknowledge(id, kind, ack, out)
            }
            PacketType::SubAck => opening::suback(self.version, self.qos, frame),
            PacketType::PingResp => {
                self.peers[id].ponged = true;
                Ok(())
            }
            _ => opening::unexpected(self.version, header, frame),
        }
    }

    fn drained(&mut self, _id: usize) {
        self.drained = true;
    }

    fn broken(&mut self, _id: usize, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}
