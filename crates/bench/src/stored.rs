//! Benchmarks of stored messages: retained messages, and messages queued for offline sessions.
//!
//! The store and fetch stages can run in separate processes with a broker restart in between, because topics and
//! client identifiers are the same in every run. Each payload names its message, so the fetch stage detects losses
//! and duplicates even if another process stored the messages.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use mainstem_mqtt::packet::{Disconnect, Packet, QoS};
use mainstem_mqtt::{Header, PacketType};

use crate::error::BenchError;
use crate::flow::PacketIds;
use crate::handshake::{self, Opener, QUEUED, Stage};
use crate::net::{Clock, Fault, Handler, Net};
use crate::options::{Load, Options, Part};
use crate::process::{Process, Usage};
use crate::report::{StoredReport, mib, per_million, per_second, rounded};
use crate::sockets;
use crate::wire::{
    self, Acknowledged, PUBACK, PUBCOMP, PUBREC, PUBREL, Prepared, Received, Stamp, append_ack,
};
use crate::worker::nanos;

/// Messages in flight per publisher if the load is not a window.
const WINDOW: u32 = 100;
/// Timeout without progress.
const RESPONSE_TIMEOUT_NS: u64 = 15_000_000_000;
/// Unsent output bytes on a connection above which its publisher pauses.
const PENDING_BYTES_MAX: usize = 64 * 1024;
/// Maximum connections being opened at once.
const OPENING_MAX: usize = 64;
/// Part of the client identifiers; constant, so that a later run resumes the same sessions.
const RUN_ID: &str = "kept";

/// How the broker stores the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// Retained messages with topics `ret/<message>`.
    Retained,
    /// Queued for this many offline sessions, each message for one of them: topics `que/<session>`.
    OneSession(u32),
    /// Queued for this many offline sessions, each message for all of them: topic `que/all`.
    AllSessions(u32),
}

impl StoreKind {
    fn is_retained(self) -> bool {
        self == Self::Retained
    }

    /// Number of fetching sessions.
    fn sessions(self) -> u32 {
        match self {
            Self::Retained => 1,
            Self::OneSession(sessions) | Self::AllSessions(sessions) => sessions,
        }
    }

    /// Deliveries per message.
    fn copies(self) -> u32 {
        if let Self::AllSessions(sessions) = self { sessions } else { 1 }
    }

    fn write_topic(self, topic: &mut String, message: u32) {
        topic.clear();
        let written = match self {
            Self::Retained => write!(topic, "ret/{message}"),
            Self::OneSession(sessions) => write!(topic, "que/{}", message % sessions),
            Self::AllSessions(_) => write!(topic, "que/all"),
        };
        written.expect("writing to a string cannot fail");
    }

    /// Topic filter of a session.
    fn filter(self, session: u32) -> String {
        match self {
            Self::Retained => "ret/#".into(),
            Self::OneSession(_) => format!("que/{session}"),
            Self::AllSessions(_) => "que/all".into(),
        }
    }

    /// Whether a session receives a message.
    fn is_for(self, session: u32, message: u32) -> bool {
        match self {
            Self::OneSession(sessions) => message % sessions == session,
            Self::Retained | Self::AllSessions(_) => true,
        }
    }
}

/// Stores as many messages as make `deliveries` deliveries, then fetches them.
///
/// # Errors
/// If a connection cannot be opened or breaks, or the broker rejects a message.
pub(crate) fn run(
    options: &Options,
    broker: SocketAddr,
    kind: StoreKind,
    deliveries: u32,
) -> Result<StoredReport, BenchError> {
    let messages = deliveries / kind.copies();
    let publishers = options.publishers.unwrap_or(1).min(messages.max(1));
    let connections = publishers + 2 * kind.sessions();
    sockets::raise_file_limit(connections)?;
    let process = options.broker_pid.map(Process::of).transpose()?;
    let clock = Clock::start();
    let net =
        Net::new(clock, options.payload_bytes + 1024).map_err(|error| BenchError::system("epoll", error))?;
    let mut run = StoredRun {
        options,
        kind,
        messages,
        clock,
        net,
        receipts: Receipts::new(options, kind, messages),
        opener: Opener::new(options, broker, RUN_ID, connections),
    };
    let mut report =
        StoredReport { messages: deliveries, sessions: kind.sessions(), ..StoredReport::default() };
    if options.part != Part::Fetch {
        run.measure_store(publishers, process.as_ref(), &mut report)?;
    }
    if options.part != Part::Store {
        run.measure_fetch(process.as_ref(), &mut report)?;
    }
    Ok(report)
}

struct StoredRun<'a> {
    options: &'a Options,
    kind: StoreKind,
    messages: u32,
    clock: Clock,
    net: Net,
    receipts: Receipts,
    opener: Opener<'a>,
}

impl StoredRun<'_> {
    /// Creates the sessions, stores all messages, and reports the cost.
    #[expect(clippy::cast_precision_loss, reason = "memory sizes stay far below 2^53")]
    fn measure_store(
        &mut self,
        publishers: u32,
        process: Option<&Process>,
        report: &mut StoredReport,
    ) -> Result<(), BenchError> {
        if !self.kind.is_retained() {
            let sessions = self.open_all(QUEUED, self.kind.sessions())?;
            self.subscribe(&sessions)?;
            self.disconnect(&sessions)?;
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

    /// Fetches all messages, and reports the cost.
    fn measure_fetch(
        &mut self,
        process: Option<&Process>,
        report: &mut StoredReport,
    ) -> Result<(), BenchError> {
        let before = Cost::of(process)?;
        let took = self.fetch()?;
        let after = Cost::of(process)?;
        let receipts = &self.receipts;
        report.fetch_s = Some(rounded(took.as_secs_f64()));
        report.fetched_per_s = Some(per_second(receipts.received, took));
        report.lost = u64::from(report.messages) - receipts.received;
        report.duplicates = receipts.duplicates;
        report.out_of_order = receipts.out_of_order;
        report.broker_fetch_cpu_s_per_million =
            Cost::cpu_per_million(before.as_ref(), after.as_ref(), receipts.received);
        report.rss_peak_mib = process.map(Process::resident_bytes_max).transpose()?.map(mib);
        Ok(())
    }

    /// Opens `count` connections of a kind and waits until all are ready. Returns their ids.
    fn open_all(&mut self, kind: char, count: u32) -> Result<Vec<usize>, BenchError> {
        let mut ids: Vec<usize> = Vec::new();
        for number in 0..count {
            let index = self.net.len() as u32;
            let id = self.opener.start(&mut self.net, index, kind, number)?;
            self.receipts.peers.push(Peer::new(self.options, number));
            ids.push(id);
            let waiting = ids.len().saturating_sub(OPENING_MAX);
            self.await_ready(&ids[waiting.saturating_sub(1)..waiting])?;
        }
        self.await_ready(&ids)?;
        Ok(ids)
    }

    fn await_ready(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        let is_ready = |run: &Self| ids.iter().all(|id| run.receipts.peers[*id].stage == Stage::Ready);
        self.turn_until(is_ready).map_err(|fault| BenchError::Open(self.opener.cannot_connect(&fault)))
    }

    fn subscribe(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        let (version, qos) = (self.options.version, self.options.qos);
        for id in ids {
            let peer = &mut self.receipts.peers[*id];
            let filters = [self.kind.filter(peer.number)];
            let count = handshake::subscribe(version, qos, &filters, self.net.output(*id))
                .map_err(|fault| BenchError::Options(fault.0))?;
            peer.stage = Stage::Subscribing(count);
        }
        self.await_ready(ids)
    }

    /// Disconnects, and waits until the broker has closed the connections.
    fn disconnect(&mut self, ids: &[usize]) -> Result<(), BenchError> {
        for id in ids {
            self.receipts.peers[*id].is_closing = true;
            Packet::Disconnect(Disconnect::default())
                .encode(self.options.version, self.net.output(*id))
                .expect("its fields are small");
        }
        self.turn_until(|run| ids.iter().all(|id| !run.net.is_open(*id)))
            .map_err(|fault| BenchError::Open(format!("while disconnecting: {fault}")))
    }

    /// Publishes all messages and waits until the broker has processed them. Returns the elapsed time.
    fn store(&mut self, publishers: &[usize]) -> Result<Duration, BenchError> {
        let filler = wire::filler(self.options.payload_bytes);
        let began_ns = self.clock.now_ns();
        let mut topic = String::new();
        let (mut left_before, mut progress_ns) = (u64::MAX, began_ns);
        loop {
            let mut left = 0;
            for id in publishers {
                left += self.publish(*id, publishers.len(), &filler, &mut topic)?;
            }
            if left == 0 {
                break;
            }
            if left < left_before {
                (left_before, progress_ns) = (left, self.clock.now_ns());
            } else if self.clock.now_ns() > progress_ns + RESPONSE_TIMEOUT_NS {
                return Err(BenchError::Open("while storing: no response".into()));
            }
            self.turn().map_err(|fault| BenchError::Open(format!("while storing: {fault}")))?;
        }
        for id in publishers {
            // PINGRESP after the last publish is the only proof at QoS 0 that the broker has read it.
            Packet::PingReq.encode(self.options.version, self.net.output(*id)).expect("it has no fields");
        }
        self.turn_until(|run| publishers.iter().all(|id| run.receipts.peers[*id].is_done()))
            .map_err(|fault| BenchError::Open(format!("while storing: {fault}")))?;
        Ok(Duration::from_nanos(self.clock.now_ns() - began_ns))
    }

    /// Publishes as much as connection `id` may send now. Returns how many of its messages remain.
    fn publish(
        &mut self,
        id: usize,
        publishers: usize,
        filler: &[u8],
        topic: &mut String,
    ) -> Result<u64, BenchError> {
        let peer = &mut self.receipts.peers[id];
        let own = (u64::from(self.messages) - u64::from(peer.number)).div_ceil(publishers as u64);
        while peer.sent < own && self.net.pending_bytes(id) < PENDING_BYTES_MAX {
            let packet_id = match self.options.qos {
                QoS::AtMostOnce => 0,
                _ if peer.ids.has_free() => peer.ids.take(),
                _ => break,
            };
            let index = (peer.sent * publishers as u64) as u32 + peer.number;
            self.kind.write_topic(topic, index);
            let retain = self.kind.is_retained();
            let prepared = Prepared::new(self.options.version, topic, self.options.qos, retain, filler)
                .map_err(|error| BenchError::Options(format!("PUBLISH: {error}")))?;
            let stamp = Stamp { due_ns: self.clock.now_ns(), stream: index, sequence: 0 };
            prepared.append(self.net.output(id), packet_id, &stamp, filler);
            peer.sent += 1;
        }
        Ok(own - peer.sent)
    }

    /// Connects or subscribes all receivers and waits for their messages, until none arrives for a while. Returns the
    /// time until the last arrival.
    fn fetch(&mut self) -> Result<Duration, BenchError> {
        let all = u64::from(self.messages) * u64::from(self.kind.copies());
        let retained = if self.kind.is_retained() { self.open_all('f', 1)? } else { Vec::new() };
        let began_ns = self.clock.now_ns();
        if self.kind.is_retained() {
            self.subscribe(&retained)?;
        } else {
            self.open_all(QUEUED, self.kind.sessions())?;
        }
        let idle_timeout_ns = nanos(self.options.drain).max(1_000_000_000);
        let (mut seen, mut last_ns) = (self.receipts.received, self.clock.now_ns());
        while self.receipts.received < all && self.clock.now_ns() < last_ns + idle_timeout_ns {
            self.turn().map_err(|fault| BenchError::Open(format!("while fetching: {fault}")))?;
            if self.receipts.received > seen {
                (seen, last_ns) = (self.receipts.received, self.clock.now_ns());
            }
        }
        Ok(Duration::from_nanos(last_ns - began_ns))
    }

    fn turn(&mut self) -> Result<(), Fault> {
        self.net.flush(&mut self.receipts);
        let woken_for_output = std::mem::take(&mut self.receipts.drained);
        let until_ns = woken_for_output.then_some(0);
        self.net.turn(until_ns, &mut self.receipts).map_err(Fault::new)?;
        match &self.receipts.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    fn turn_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Fault> {
        let until_ns = self.clock.now_ns() + RESPONSE_TIMEOUT_NS;
        while !done(self) {
            self.turn()?;
            if self.clock.now_ns() > until_ns {
                return Err(Fault::new("no response"));
            }
        }
        Ok(())
    }
}

/// Usage of the broker so far.
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

/// One connection, which may publish and receive.
#[derive(Debug)]
struct Peer {
    /// Number within its kind.
    number: u32,
    stage: Stage,
    ids: PacketIds,
    sent: u64,
    ponged: bool,
    is_closing: bool,
    /// One above the highest message number received.
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
        Self { number, stage, ids, sent: 0, ponged: false, is_closing: false, next_in_order: 0 }
    }

    fn is_done(&self) -> bool {
        self.ponged && self.ids.taken() == 0
    }
}

/// Connection state and counters; handles the packets.
#[derive(Debug)]
struct Receipts {
    options: Options,
    kind: StoreKind,
    messages: u32,
    peers: Vec<Peer>,
    /// One bit per delivery, set on arrival.
    seen: Vec<u64>,
    received: u64,
    duplicates: u64,
    out_of_order: u64,
    drained: bool,
    fault: Option<Fault>,
}

impl Receipts {
    fn new(options: &Options, kind: StoreKind, messages: u32) -> Self {
        let deliveries = u64::from(messages) * u64::from(kind.copies());
        Self {
            options: options.clone(),
            kind,
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

    /// Counts a message if it belongs to this load. An earlier run may have left others behind.
    fn receive(&mut self, id: usize, received: &Received<'_>) {
        let Some(stamp) = Stamp::read(received.payload) else { return };
        let (message, peer) = (stamp.stream, &mut self.peers[id]);
        if received.retain != self.kind.is_retained()
            || received.payload.len() != self.options.payload_bytes
            || message >= self.messages
            || !self.kind.is_for(peer.number, message)
        {
            return;
        }
        let row = if self.kind.copies() > 1 { peer.number } else { 0 };
        let delivery = u64::from(row) * u64::from(self.messages) + u64::from(message);
        let (word, bit) = (&mut self.seen[(delivery / 64) as usize], 1 << (delivery % 64));
        if *word & bit != 0 {
            self.duplicates += 1;
            return;
        }
        *word |= bit;
        self.received += 1;
        // Order is defined only for a single publisher, and not for retained messages.
        if !self.kind.is_retained() && self.options.publishers.unwrap_or(1) == 1 {
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
        if expected { Ok(()) } else { Err(Fault::new(format_args!("unexpected {kind:?}"))) }
    }
}

impl Handler for Receipts {
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
            let limits = handshake::connack(version, qos, frame)?;
            self.peers[id].ids.lower_limit(limits.receive_maximum);
            self.peers[id].stage = Stage::Ready;
            return Ok(());
        }
        let truncated = || Fault::new("a packet with inconsistent lengths");
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
                handshake::suback(version, qos, frame)?;
                self.peers[id].stage = Stage::Ready;
                Ok(())
            }
            PacketType::PingResp => {
                self.peers[id].ponged = true;
                Ok(())
            }
            _ => handshake::unexpected(version, header, frame),
        }
    }

    fn drained(&mut self, _id: usize) {
        self.drained = true;
    }

    fn broken(&mut self, id: usize, fault: Fault) {
        if !self.peers[id].is_closing {
            self.fault.get_or_insert(fault);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_reaches_the_session_of_its_topic() {
        let kind = StoreKind::OneSession(7);
        let mut topic = String::new();
        for message in 0..50 {
            kind.write_topic(&mut topic, message);
            let receivers: Vec<u32> = (0..7).filter(|session| kind.filter(*session) == topic).collect();
            assert_eq!(receivers.len(), 1);
            assert!(kind.is_for(receivers[0], message));
            assert_eq!((0..7).filter(|session| kind.is_for(*session, message)).count(), 1);
        }
    }

    #[test]
    fn counts_duplicates_and_reordered_messages() {
        let options = Options::sample();
        let mut receipts = Receipts::new(&options, StoreKind::AllSessions(2), 4);
        receipts.peers = (0..2).map(|number| Peer::new(&options, number)).collect();
        let filler = wire::filler(options.payload_bytes);
        let mut receive = |id: usize, message: u32| {
            let mut frame = Vec::new();
            let stamp = Stamp { due_ns: 0, stream: message, sequence: 0 };
            let prepared = Prepared::new(options.version, "que/all", QoS::AtLeastOnce, false, &filler);
            prepared.unwrap().append(&mut frame, 9, &stamp, &filler);
            let header = Header::parse(&frame).unwrap().unwrap();
            let received = Received::parse(options.version, &header, &frame).unwrap();
            receipts.receive(id, &received);
        };
        for (id, message) in [(0, 0), (1, 0), (0, 2), (0, 1), (1, 0), (1, 9)] {
            receive(id, message);
        }
        assert_eq!((receipts.received, receipts.duplicates, receipts.out_of_order), (4, 1, 1));
    }
}
