//! Messages that the broker stores until they are fetched: retained ones, and those that wait for sessions.
//!
//! Both stages may be run on their own, by two processes, with the broker started anew in between: the topics and
//! client identifiers are always the same.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use mainstem_mqtt::packet::{Disconnect, Packet, QoS};
use mainstem_mqtt::{Header, PacketType};

use crate::error::BenchError;
use crate::flow::PacketIds;
use crate::net::{Clock, Fault, Handler, Net};
use crate::opening::{self, Opener, QUEUED, Stage};
use crate::options::{Load, Options, Part};
use crate::process::{Process, Usage};
use crate::report::{StoredReport, mib, per_million, per_second, rounded};
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
/// Connections being opened at once.
const OPENING_MAX: usize = 64;
/// What tells the client identifiers from those of other loads, and is the same in every run.
const RUN_ID: &str = "kept";

/// What the broker stores the messages for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shelf {
    /// For whoever subscribes: topics `ret/<message>`.
    Retained,
    /// Each for one of so many sessions, which are away meanwhile: topics `que/<session>`.
    Sessions(u32),
    /// Each for all of so many sessions: the topic `que/all`.
    Everyone(u32),
}

impl Shelf {
    fn is_retained(self) -> bool {
        self == Self::Retained
    }

    /// How many sessions fetch.
    fn sessions(self) -> u32 {
        match self {
            Self::Retained => 1,
            Self::Sessions(sessions) | Self::Everyone(sessions) => sessions,
        }
    }

    /// Deliveries that one message makes.
    fn copies(self) -> u32 {
        if let Self::Everyone(sessions) = self { sessions } else { 1 }
    }

    fn write_topic(self, topic: &mut String, message: u32) {
        topic.clear();
        let written = match self {
            Self::Retained => write!(topic, "ret/{message}"),
            Self::Sessions(sessions) => write!(topic, "que/{}", message % sessions),
            Self::Everyone(_) => write!(topic, "que/all"),
        };
        written.expect("writing to a string cannot fail");
    }

    /// What session `session` subscribes to.
    fn filter(self, session: u32) -> String {
        match self {
            Self::Retained => "ret/#".into(),
            Self::Sessions(_) => format!("que/{session}"),
            Self::Everyone(_) => "que/all".into(),
        }
    }

    /// Whether a message is for this session.
    fn is_for(self, session: u32, message: u32) -> bool {
        match self {
            Self::Sessions(sessions) => message % sessions == session,
            Self::Retained | Self::Everyone(_) => true,
        }
    }
}

/// Stores `deliveries` messages on a shelf, or as many as make so many deliveries, then fetches them.
///
/// # Errors
/// If a connection cannot be opened or breaks, or the broker does not take the messages.
pub(crate) fn run(
    options: &Options,
    broker: SocketAddr,
    shelf: Shelf,
    deliveries: u32,
) -> Result<StoredReport, BenchError> {
    let messages = deliveries / shelf.copies();
    let publishers = options.publishers.unwrap_or(1).min(messages.max(1));
    let connections = publishers + 2 * shelf.sessions();
    sockets::raise_file_limit(connections)?;
    let process = options.broker_pid.map(Process::of).transpose()?;
    let clock = Clock::start();
    let net =
        Net::new(clock, options.payload_bytes + 1024).map_err(|error| BenchError::system("epoll", error))?;
    let mut job = Job {
        options,
        shelf,
        messages,
        clock,
        net,
        exchange: Exchange::new(options, shelf, messages),
        opener: Opener::new(options, broker, RUN_ID, connections),
    };
    let mut report =
        StoredReport { messages: deliveries, sessions: shelf.sessions(), ..StoredReport::default() };
    if options.part != Part::Fetch {
        job.measure_store(publishers, process.as_ref(), &mut report)?;
    }
    if options.part != Part::Store {
        job.measure_fetch(process.as_ref(), &mut report)?;
    }
    Ok(report)
}

struct Job<'a> {
    options: &'a Options,
    shelf: Shelf,
    messages: u32,
    clock: Clock,
    net: Net,
    exchange: Exchange,
    opener: Opener<'a>,
}

impl Job<'_> {
    /// Makes the sessions, stores all messages, and notes what that took.
    #[expect(clippy::cast_precision_loss, reason = "memory sizes stay far below 2^53")]
    fn measure_store(
        &mut self,
        publishers: u32,
        process: Option<&Process>,
        report: &mut StoredReport,
    ) -> Result<(), BenchError> {
        if !self.shelf.is_retained() {
            let sessions = self.open_all(QUEUED, self.shelf.sessions())?;
            self.subscribe(&sessions)?;
            self.leave(&sessions)?;
        }
        let publishers = self.open_all('p', publishers)?;
        let before = Cost::of(process)?;
        let took = self.store(&publishers)?;
        let after = Cost::of(process)?;
        let count = u64::from(report.messages);
        report.stored_per_s = Some(per_second(count, took));
        report.broker_store_cpu_s_per_million = Cost::cpu_per_million(before.as_ref(), after.as_ref(), count);
        report.rss_stored_mib = after.as_ref().map(|after| mib(after.resident_bytes));
        let grown = after
            .zip(before)
            .map(|(after, before)| after.resident_bytes.saturating_sub(before.resident_bytes));
        report.rss_bytes_per_message = grown.map(|bytes| rounded(bytes as f64 / f64::from(report.messages)));
        Ok(())
    }

    /// Fetches all messages, and notes what that took.
    fn measure_fetch(
        &mut self,
        process: Option<&Process>,
        report: &mut StoredReport,
    ) -> Result<(), BenchError> {
        let before = Cost::of(process)?;
        let took = self.fetch()?;
        let after = Cost::of(process)?;
        let exchange = &self.exchange;
        report.fetch_s = Some(rounded(took.as_secs_f64()));
        report.fetched_per_s = Some(per_second(exchange.received, took));
        report.lost = u64::from(report.messages) - exchange.received;
        report.duplicates = exchange.duplicates;
        report.out_of_order = exchange.out_of_order;
        report.broker_fetch_cpu_s_per_million =
            Cost::cpu_per_million(before.as_ref(), after.as_ref(), exchange.received);
        report.rss_peak_mib = process.map(Process::resident_bytes_max).transpose()?.map(mib);
        Ok(())
    }

    /// Opens so many connections of a kind and waits until all are ready. Where they are.
    fn open_all(&mut self, kind: char, count: u32) -> Result<Vec<usize>, BenchError> {
        let mut ids: Vec<usize> = Vec::new();
        for number in 0..count {
            let index = self.net.len() as u32;
            let id = self.opener.start(&mut self.net, index, kind, number)?;
            self.exchange.peers.push(Peer::new(self.options, number));
            ids.push(id);
            let waiting = ids.len().saturating_sub(OPENING_MAX);
            self.await_ready(&ids[waiting.saturating_sub(1)..waiting])?;
        }
        self.await_ready(&ids)?;
        Ok(ids)
    }

    fn await_ready(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        let is_ready = |job: &Self| ids.iter().all(|id| job.exchange.peers[*id].stage == Stage::Ready);
        self.turn_until(is_ready).map_err(|fault| BenchError::Open(self.opener.cannot_connect(&fault)))
    }

    fn subscribe(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        let (version, qos) = (self.options.version, self.options.qos);
        for id in ids {
            let peer = &mut self.exchange.peers[*id];
            let filters = [self.shelf.filter(peer.number)];
            let count = opening::subscribe(version, qos, &filters, self.net.output(*id))
                .map_err(|fault| BenchError::Options(fault.0))?;
            peer.stage = Stage::Subscribing(count);
        }
        self.await_ready(ids)
    }

    /// Disconnects, and waits until the broker has closed.
    fn leave(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        for id in ids {
            self.exchange.peers[*id].is_leaving = true;
            Packet::Disconnect(Disconnect::default())
                .encode(self.options.version, self.net.output(*id))
                .expect("its fields are small");
        }
        self.turn_until(|job| ids.iter().all(|id| !job.net.is_open(*id)))
            .map_err(|fault| BenchError::Open(format!("while leaving: {fault}")))
    }

    /// Publishes every message and waits until the broker has taken them. How long that took.
    fn store(&mut self, publishers: &[usize]) -> Result<Duration, BenchError> {
        let filler = wire::filler(self.options.payload_bytes);
        let began_ns = self.clock.now_ns();
        let mut topic = String::new();
        let (mut left_before, mut moved_ns) = (u64::MAX, began_ns);
        loop {
            let mut left = 0;
            for id in publishers {
                left += self.publish(*id, publishers.len(), &filler, &mut topic)?;
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
        for id in publishers {
            // The broker answers a ping behind the last publish, which at QoS 0 is the only sign it was read.
            Packet::PingReq.encode(self.options.version, self.net.output(*id)).expect("it has no fields");
        }
        self.turn_until(|job| publishers.iter().all(|id| job.exchange.peers[*id].is_done()))
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
        let peer = &mut self.exchange.peers[id];
        let own = (u64::from(self.messages) - u64::from(peer.number)).div_ceil(publishers as u64);
        while peer.sent < own && self.net.pending_bytes(id) < PENDING_BYTES_MAX {
            let packet_id = match self.options.qos {
                QoS::AtMostOnce => 0,
                _ if peer.ids.has_free() => peer.ids.take(),
                _ => break,
            };
            let index = (peer.sent * publishers as u64) as u32 + peer.number;
            self.shelf.write_topic(topic, index);
            let retain = self.shelf.is_retained();
            let prepared = Prepared::new(self.options.version, topic, self.options.qos, retain, filler)
                .map_err(|error| BenchError::Options(format!("PUBLISH: {error}")))?;
            let stamp = Stamp { due_ns: self.clock.now_ns(), stream: index, sequence: 0 };
            prepared.append(self.net.output(id), packet_id, &stamp, filler);
            peer.sent += 1;
        }
        Ok(own - peer.sent)
    }

    /// Lets everybody come who is to get messages, and waits for all of them, as long as they keep coming. How long
    /// the last one took.
    fn fetch(&mut self) -> Result<Duration, BenchError> {
        let all = u64::from(self.messages) * u64::from(self.shelf.copies());
        let retained = if self.shelf.is_retained() { self.open_all('f', 1)? } else { Vec::new() };
        let began_ns = self.clock.now_ns();
        if self.shelf.is_retained() {
            self.subscribe(&retained)?;
        } else {
            self.open_all(QUEUED, self.shelf.sessions())?;
        }
        let patience_ns = nanos(self.options.drain).max(1_000_000_000);
        let (mut seen, mut last_ns) = (self.exchange.received, self.clock.now_ns());
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

    fn turn_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Fault> {
        let until_ns = self.clock.now_ns() + PATIENCE_NS;
        while !done(self) {
            self.turn()?;
            if self.clock.now_ns() > until_ns {
                return Err(Fault::new("no answer"));
            }
        }
        Ok(())
    }
}

/// What the broker has used so far.
struct Cost {
    usage: Usage,
    resident_bytes: u64,
}

impl Cost {
    fn of(process: Option<&Process>) -> Result<Option<Self>, BenchError> {
        let cost = |process: &Process| {
            Ok(Self { usage: process.usage()?, resident_bytes: process.resident_bytes()? })
        };
        process.map(cost).transpose()
    }

    fn cpu_per_million(before: Option<&Self>, after: Option<&Self>, count: u64) -> Option<f64> {
        let spent = after?.usage.cpu_s_since(&before?.usage);
        Some(per_million(spent, count))
    }
}

/// One connection: any may publish and receive.
#[derive(Debug)]
struct Peer {
    /// Among those of its kind.
    number: u32,
    stage: Stage,
    ids: PacketIds,
    sent: u64,
    ponged: bool,
    is_leaving: bool,
    /// One above the last message that came.
    next_in_order: u32,
}

impl Peer {
    fn new(options: &Options, number: u32) -> Self {
        let window = match options.load {
            Load::Window(window) => window,
            Load::Rate(_) => WINDOW,
        };
        let ids = PacketIds::new(window.min(u32::from(options.max_inflight)) as u16);
        let stage = Stage::Connecting;
        Self { number, stage, ids, sent: 0, ponged: false, is_leaving: false, next_in_order: 0 }
    }

    fn is_done(&self) -> bool {
        self.ponged && self.ids.taken() == 0
    }
}

/// What the packets mean.
#[derive(Debug)]
struct Exchange {
    options: Options,
    shelf: Shelf,
    messages: u32,
    peers: Vec<Peer>,
    /// One bit per delivery: whether it has come.
    seen: Vec<u64>,
    received: u64,
    duplicates: u64,
    out_of_order: u64,
    drained: bool,
    fault: Option<Fault>,
}

impl Exchange {
    fn new(options: &Options, shelf: Shelf, messages: u32) -> Self {
        let deliveries = u64::from(messages) * u64::from(shelf.copies());
        Self {
            options: options.clone(),
            shelf,
            messages,
            peers: Vec::new(),
            seen: vec![0; deliveries.div_ceil(64) as usize],
            received: 0,
            duplicates: 0,
            out_of_order: 0,
            drained: false,
            fault: None,
        }
    }

    /// Counts a message, if it is one of this load: an earlier run may have left more of them.
    fn receive(&mut self, id: usize, received: &Received<'_>) {
        let Some(stamp) = Stamp::read(received.payload) else { return };
        let (message, peer) = (stamp.stream, &mut self.peers[id]);
        if received.retain != self.shelf.is_retained()
            || received.payload.len() != self.options.payload_bytes
            || message >= self.messages
            || !self.shelf.is_for(peer.number, message)
        {
            return;
        }
        let row = if self.shelf.copies() > 1 { peer.number } else { 0 };
        let delivery = u64::from(row) * u64::from(self.messages) + u64::from(message);
        let (word, bit) = (&mut self.seen[(delivery / 64) as usize], 1 << (delivery % 64));
        if *word & bit != 0 {
            self.duplicates += 1;
            return;
        }
        *word |= bit;
        self.received += 1;
        // Only one publisher's messages come in its order; retained ones come in that of their topics.
        if !self.shelf.is_retained() && self.options.publishers.unwrap_or(1) == 1 {
            self.out_of_order += u64::from(message < peer.next_in_order);
            peer.next_in_order = peer.next_in_order.max(message + 1);
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
        let (version, qos) = (self.options.version, self.options.qos);
        if self.peers[id].stage == Stage::Connecting {
            let limits = opening::connack(version, qos, frame)?;
            self.peers[id].ids.lower_limit(limits.receive_maximum);
            self.peers[id].stage = Stage::Ready;
            return Ok(());
        }
        let truncated = || Fault::new("a packet whose lengths disagree");
        let kind = PacketType::of(header.first).map_err(Fault::new)?;
        match kind {
            PacketType::Publish => {
                let received = Received::parse(version, header, frame).ok_or_else(truncated)?;
                match received.qos {
                    1 => append_ack(out, PUBACK, received.packet_id),
                    2 => append_ack(out, PUBREC, received.packet_id),
                    _ => {}
                }
                self.receive(id, &received);
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
            PacketType::SubAck => {
                opening::suback(version, qos, frame)?;
                self.peers[id].stage = Stage::Ready;
                Ok(())
            }
            PacketType::PingResp => {
                self.peers[id].ponged = true;
                Ok(())
            }
            _ => opening::unexpected(version, header, frame),
        }
    }

    fn drained(&mut self, _id: usize) {
        self.drained = true;
    }

    fn broken(&mut self, id: usize, fault: Fault) {
        if !self.peers[id].is_leaving {
            self.fault.get_or_insert(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_for_the_session_that_its_topic_names() {
        let shelf = Shelf::Sessions(7);
        let mut topic = String::new();
        for message in 0..50 {
            shelf.write_topic(&mut topic, message);
            let takers: Vec<u32> = (0..7).filter(|session| shelf.filter(*session) == topic).collect();
            assert_eq!(takers.len(), 1);
            assert!(shelf.is_for(takers[0], message));
            assert_eq!((0..7).filter(|session| shelf.is_for(*session, message)).count(), 1);
        }
    }

    #[test]
    fn what_comes_twice_or_late_is_found() {
        let options = Options::sample();
        let mut exchange = Exchange::new(&options, Shelf::Everyone(2), 4);
        exchange.peers = (0..2).map(|number| Peer::new(&options, number)).collect();
        let filler = wire::filler(options.payload_bytes);
        let mut come = |id: usize, message: u32| {
            let mut frame = Vec::new();
            let stamp = Stamp { due_ns: 0, stream: message, sequence: 0 };
            let prepared = Prepared::new(options.version, "que/all", QoS::AtLeastOnce, false, &filler);
            prepared.unwrap().append(&mut frame, 9, &stamp, &filler);
            let header = Header::parse(&frame).unwrap().unwrap();
            let received = Received::parse(options.version, &header, &frame).unwrap();
            exchange.receive(id, &received);
        };
        for (id, message) in [(0, 0), (1, 0), (0, 2), (0, 1), (1, 0), (1, 9)] {
            come(id, message);
        }
        assert_eq!((exchange.received, exchange.duplicates, exchange.out_of_order), (4, 1, 1));
    }
}
