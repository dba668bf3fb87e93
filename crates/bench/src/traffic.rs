//! Packet handling for the MQTT connections of one thread: acknowledgements to publishers, deliveries to subscribers.
//!
//! Every delivery is checked against the plan: the payload stamp names its stream and sequence number, and a tracker
//! per receiver and stream classifies it as new, out of order or duplicate. A shared subscription is one receiver
//! with several members, so one tracker per stream finds duplicates, and order is checked per member.

use std::ops::Range;
use std::sync::Arc;

use mainstem_mqtt::packet::{QoS, Version};
use mainstem_mqtt::{Header, PacketType};

use crate::flow::DeliveryWindow;
use crate::handshake::{self, Limits, Stage};
use crate::net::{Fault, Handler, Net};
use crate::plan::{Plan, Routing};
use crate::publisher::{Publisher, Sending};
use crate::schedule::{Cursor, Schedule};
use crate::sequence::{Arrival, Tracker};
use crate::tally::Tally;
use crate::wire::{Acknowledged, PUBACK, PUBCOMP, PUBREC, Received, Stamp, append_ack};

/// Wide window: messages of a shared subscription arrive over many sockets, in no order between them.
type GroupTracker = Tracker<1024>;

/// Role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Stays open without traffic.
    Idle,
    /// Index in the thread's publishers.
    Publisher(usize),
    /// Index in the thread's subscribers.
    Subscriber(usize),
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    role: Role,
    stage: Stage,
}

/// One subscriber: its number in the plan, and the index of its first tracker.
#[derive(Clone, Copy, Debug)]
struct Subscriber {
    number: u32,
    trackers_at: usize,
}

/// Configuration shared by all threads of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) plan: Arc<Plan>,
    pub(crate) version: Version,
    pub(crate) qos: QoS,
    pub(crate) payload_bytes: usize,
    /// Per stream, the index of its tracker among those of its receiver.
    pub(crate) slots: Arc<[u32]>,
    /// One per publisher at QoS 0 in a closed loop, or one for all publishers; otherwise empty.
    pub(crate) windows: Arc<[DeliveryWindow]>,
    /// All publishers, which are on the first thread, share one window.
    pub(crate) is_window_shared: bool,
    pub(crate) threads: usize,
}

/// Connections, publishers, subscribers and counters of one thread.
#[derive(Debug)]
pub(crate) struct Traffic {
    setup: Setup,
    thread: usize,
    /// Indexed by connection id.
    peers: Vec<Peer>,
    publishers: Vec<Publisher>,
    /// Publisher numbers, ascending, parallel to `publishers`.
    numbers: Vec<u32>,
    subscribers: Vec<Subscriber>,
    trackers: Vec<Tracker<1>>,
    /// One per stream of a shared subscription.
    group: Vec<GroupTracker>,
    /// Next in-order sequence number per subscriber and stream of a shared subscription.
    next_in_order: Vec<u32>,
    /// Indexes of publishers that may have something to send.
    queue: Vec<usize>,
    /// Threads to wake because one of their publishers may continue.
    wake: Vec<bool>,
    /// Number of messages that a window of all publishers has admitted.
    admitted: u64,
    /// The same at the last stall check.
    admitted_before: u64,
    measured_ns: Range<u64>,
    ready: usize,
    keep_alive: u16,
    pub(crate) tally: Tally,
}

impl Traffic {
    pub(crate) fn new(setup: Setup, thread: usize, publishers: Vec<Publisher>, numbers: Vec<u32>) -> Self {
        let shared = setup.plan.routing == Routing::Shared && thread == 0;
        let groups = if shared { setup.plan.streams() as usize } else { 0 };
        Self {
            thread,
            peers: Vec::new(),
            publishers,
            numbers,
            subscribers: Vec::new(),
            trackers: Vec::new(),
            group: vec![GroupTracker::default(); groups],
            next_in_order: Vec::new(),
            queue: Vec::new(),
            wake: vec![false; setup.threads],
            admitted: 0,
            admitted_before: 0,
            measured_ns: 0..0,
            ready: 0,
            keep_alive: 0,
            tally: Tally::default(),
            setup,
        }
    }

    /// Registers the next connection, for subscriber `number`.
    pub(crate) fn add_subscriber(&mut self, number: u32) {
        let position = self.subscribers.len();
        let streams = self.setup.plan.streams() as usize;
        let trackers_at = match self.setup.plan.routing {
            Routing::Shared => {
                self.next_in_order.resize(self.next_in_order.len() + streams, 0);
                position * streams
            }
            Routing::Everyone => self.more_trackers(streams),
            Routing::Divided => self.more_trackers(self.setup.plan.streams_to(number)),
        };
        self.subscribers.push(Subscriber { number, trackers_at });
        self.add_peer(Role::Subscriber(position));
    }

    /// Registers the next connection.
    pub(crate) fn add_peer(&mut self, role: Role) {
        self.peers.push(Peer { role, stage: Stage::Connecting });
    }

    fn more_trackers(&mut self, count: usize) -> usize {
        let at = self.trackers.len();
        self.trackers.resize(at + count, Tracker::default());
        at
    }

    /// Number of connections that are ready.
    pub(crate) fn ready(&self) -> usize {
        self.ready
    }

    /// Shortest Server Keep Alive of any connection, in seconds; 0 if there is none.
    pub(crate) fn keep_alive(&self) -> u16 {
        self.keep_alive
    }

    /// Sets the measured part: only messages due within `measured_ns` count.
    pub(crate) fn set_measured(&mut self, measured_ns: Range<u64>) {
        self.measured_ns = measured_ns;
    }

    /// Starts a closed loop: publishers always have a message due.
    pub(crate) fn start_unlimited(&mut self) {
        if self.setup.is_window_shared {
            return;
        }
        self.publishers.iter_mut().for_each(Publisher::set_unlimited);
        self.queue_all();
    }

    /// Makes the next messages due if all publishers share a window, one of each publisher in turn.
    pub(crate) fn release_in_flight(&mut self) {
        if !self.setup.is_window_shared || self.publishers.is_empty() {
            return;
        }
        while self.setup.windows[0].is_open(self.admitted) {
            self.setup.windows[0].sent(self.admitted, self.setup.plan.copies());
            let position = (self.admitted % self.publishers.len() as u64) as usize;
            self.publishers[position].add_due();
            self.queue(position);
            self.admitted += 1;
        }
    }

    /// Releases every message due by `now_ns` and before `end_ns`. Returns when the next one is due.
    pub(crate) fn release_due(
        &mut self,
        schedule: &Schedule,
        cursor: &mut Cursor,
        now_ns: u64,
        end_ns: u64,
    ) -> Option<u64> {
        loop {
            let (due_ns, position) = cursor.peek(schedule, &self.numbers)?;
            if due_ns >= end_ns {
                return None;
            }
            if due_ns > now_ns {
                return Some(due_ns);
            }
            self.publishers[position].add_due();
            self.queue(position);
            cursor.advance(&self.numbers);
        }
    }

    /// Queues every publisher.
    pub(crate) fn queue_all(&mut self) {
        for position in 0..self.publishers.len() {
            self.queue(position);
        }
    }

    #[inline]
    fn queue(&mut self, position: usize) {
        if !self.publishers[position].queued {
            self.publishers[position].queued = true;
            self.queue.push(position);
        }
    }

    /// Sends the due messages of all queued publishers, within their limits.
    pub(crate) fn send_queued(
        &mut self,
        net: &mut Net,
        schedule: Option<&Schedule>,
        filler: &[u8],
        now_ns: u64,
    ) {
        let sending = Sending { plan: &self.setup.plan, schedule, filler, now_ns };
        let (measured_ns, tally) = (&self.measured_ns, &mut self.tally);
        for position in self.queue.drain(..) {
            let publisher = &mut self.publishers[position];
            publisher.queued = false;
            publisher.send(&sending, net, |due_ns| {
                tally.sent_ever += 1;
                if measured_ns.contains(&due_ns) {
                    tally.published += 1;
                    tally.lag.saturating_record(now_ns.saturating_sub(due_ns));
                }
            });
        }
    }

    /// Ends the load. Returns each publisher's number and its count of sent messages.
    pub(crate) fn stop(&mut self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.tally.unsent += self.publishers.iter_mut().map(Publisher::stop).sum::<u64>();
        self.numbers.iter().copied().zip(self.publishers.iter().map(Publisher::sent))
    }

    /// Whether every publish above QoS 0 was acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.publishers.iter().all(|publisher| publisher.unacknowledged() == 0)
    }

    /// Writes off the in-flight messages of publishers that made no progress since the last call, about a second ago.
    pub(crate) fn write_off_stalled(&mut self) {
        if self.setup.is_window_shared && self.admitted > 0 {
            if self.admitted == self.admitted_before {
                self.tally.written_off += self.setup.windows[0].write_off();
            }
            self.admitted_before = self.admitted;
        }
        for position in 0..self.publishers.len() {
            let lost = self.publishers[position].write_off_stalled();
            if lost > 0 {
                self.tally.written_off += lost;
                self.queue(position);
            }
        }
    }

    /// Calls `wake` with every other thread whose publishers may continue.
    pub(crate) fn wake_others(&mut self, mut wake: impl FnMut(usize)) {
        for (thread, due) in self.wake.iter_mut().enumerate() {
            if std::mem::take(due) {
                wake(thread);
            }
        }
    }

    /// Whether some publisher may have something to send.
    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.may_release()
    }

    /// Whether a window of all publishers admits another message.
    fn may_release(&self) -> bool {
        self.setup.is_window_shared
            && !self.publishers.is_empty()
            && self.setup.windows[0].is_open(self.admitted)
    }

    /// Number of deliveries that this thread's subscribers should get if publisher *p* sent `sent[p]` messages.
    pub(crate) fn expected(&self, sent: &[u64]) -> u64 {
        let plan = &self.setup.plan;
        match plan.routing {
            Routing::Everyone => sent.iter().sum::<u64>() * self.subscribers.len() as u64,
            Routing::Shared if self.thread == 0 => sent.iter().sum(),
            Routing::Shared => 0,
            Routing::Divided => {
                let mut here = vec![false; plan.subscribers as usize];
                self.subscribers.iter().for_each(|subscriber| here[subscriber.number as usize] = true);
                (0..plan.streams())
                    .filter(|stream| here[plan.receiver_of(*stream) as usize])
                    .map(|stream| plan.sent_on(stream, sent))
                    .sum()
            }
        }
    }

    /// Handles a packet on a connection that is not ready yet.
    fn handshake(&mut self, id: usize, out: &mut Vec<u8>, frame: &[u8]) -> Result<(), Fault> {
        let Setup { version, qos, .. } = self.setup;
        let role = self.peers[id].role;
        let stage = match (self.peers[id].stage, role) {
            (Stage::Connecting, Role::Subscriber(position)) => {
                let limits = handshake::connack(version, qos, frame)?;
                self.note_keep_alive(limits);
                let filters = self.setup.plan.filters_of(self.subscribers[position].number);
                Stage::Subscribing(handshake::subscribe(version, qos, &filters, out)?)
            }
            (Stage::Connecting, _) => {
                let limits = handshake::connack(version, qos, frame)?;
                self.note_keep_alive(limits);
                if let Role::Publisher(position) = role {
                    self.publishers[position].connected(id, limits.receive_maximum);
                }
                Stage::Ready
            }
            (Stage::Subscribing(left), _) => {
                handshake::suback(version, qos, frame)?;
                if left == 1 { Stage::Ready } else { Stage::Subscribing(left - 1) }
            }
            (Stage::Ready, _) => unreachable!("only called before the connection is ready"),
        };
        self.peers[id].stage = stage;
        self.ready += usize::from(stage == Stage::Ready);
        Ok(())
    }

    fn note_keep_alive(&mut self, limits: Limits) {
        if limits.keep_alive > 0 && (self.keep_alive == 0 || limits.keep_alive < self.keep_alive) {
            self.keep_alive = limits.keep_alive;
        }
    }

    /// Handles an acknowledgement to a publisher.
    #[inline]
    fn acknowledge(
        &mut self,
        position: usize,
        kind: PacketType,
        ack: Acknowledged,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let publisher = &mut self.publishers[position];
        let refused = ack.reason >= 0x80;
        let expected = match kind {
            PacketType::PubRec if !refused => publisher.received(ack.packet_id, out),
            PacketType::PubComp => publisher.completed(ack.packet_id),
            _ => publisher.acknowledged(ack.packet_id),
        };
        if !expected {
            return Err(Fault::new(format_args!("{kind:?} for packet {}, which was not due", ack.packet_id)));
        }
        self.tally.refused += u64::from(refused);
        self.queue(position);
        Ok(())
    }

    /// Counts a message to a subscriber.
    #[inline]
    fn deliver(&mut self, position: usize, payload: &[u8], now_ns: u64) {
        let Some(stamp) = Stamp::read(payload).filter(|_| payload.len() == self.setup.payload_bytes) else {
            self.tally.foreign += 1;
            return;
        };
        let measured = self.measured_ns.contains(&stamp.due_ns);
        let Some(arrival) = self.track(position, stamp) else {
            self.tally.foreign += 1;
            return;
        };
        match arrival {
            Arrival::Duplicate => {
                self.tally.duplicates += u64::from(measured);
                return;
            }
            Arrival::OutOfOrder => self.tally.out_of_order += u64::from(measured),
            Arrival::New => {}
        }
        self.tally.delivered_ever += 1;
        if measured {
            self.tally.delivered += 1;
            self.tally.latency.saturating_record(now_ns.saturating_sub(stamp.due_ns));
        }
        self.tally.arrivals += u64::from(self.measured_ns.contains(&now_ns));
        if !self.setup.windows.is_empty() {
            self.deliver_to_window(stamp);
        }
    }

    /// Classifies an arrival; `None` if this subscriber should not have received it.
    #[inline]
    fn track(&mut self, position: usize, stamp: Stamp) -> Option<Arrival> {
        let stream = stamp.stream as usize;
        let subscriber = self.subscribers[position];
        let slot = *self.setup.slots.get(stream)? as usize;
        match self.setup.plan.routing {
            Routing::Divided if self.setup.plan.receiver_of(stamp.stream) != subscriber.number => None,
            Routing::Divided | Routing::Everyone => {
                Some(self.trackers[subscriber.trackers_at + slot].record(stamp.sequence))
            }
            Routing::Shared => {
                // Order holds per member. The group's tracker only separates first arrivals from duplicates.
                let next = &mut self.next_in_order[subscriber.trackers_at + stream];
                let in_order = stamp.sequence >= *next;
                *next = (*next).max(stamp.sequence + 1);
                Some(match self.group[stream].record(stamp.sequence) {
                    Arrival::Duplicate => Arrival::Duplicate,
                    _ if in_order => Arrival::New,
                    _ => Arrival::OutOfOrder,
                })
            }
        }
    }

    #[inline]
    fn deliver_to_window(&mut self, stamp: Stamp) {
        let (publisher, n) = self.setup.plan.origin(stamp.stream, stamp.sequence);
        if self.setup.is_window_shared {
            let number = n * u64::from(self.setup.plan.publishers) + u64::from(publisher);
            if self.setup.windows[0].delivered(number) && self.thread != 0 {
                self.wake[0] = true;
            }
            return;
        }
        if self.setup.windows[publisher as usize].delivered(n) {
            let threads = self.setup.threads;
            match publisher as usize % threads {
                own if own == self.thread => self.queue(publisher as usize / threads),
                other => self.wake[other] = true,
            }
        }
    }
}

impl Handler for Traffic {
    #[inline]
    fn packet(
        &mut self,
        id: usize,
        out: &mut Vec<u8>,
        header: &Header,
        frame: &[u8],
        now_ns: u64,
    ) -> Result<(), Fault> {
        let peer = self.peers[id];
        if peer.stage != Stage::Ready {
            return self.handshake(id, out, frame);
        }
        let truncated = || Fault::new("a packet with inconsistent lengths");
        let kind = PacketType::of(header.first).map_err(Fault::new)?;
        match (kind, peer.role) {
            (PacketType::Publish, Role::Subscriber(position)) => {
                let received = Received::parse(self.setup.version, header, frame).ok_or_else(truncated)?;
                match received.qos {
                    1 => append_ack(out, PUBACK, received.packet_id),
                    2 => append_ack(out, PUBREC, received.packet_id),
                    _ => {}
                }
                self.deliver(position, received.payload, now_ns);
                Ok(())
            }
            (PacketType::PubRel, Role::Subscriber(_)) => {
                let ack = Acknowledged::parse(header, frame).ok_or_else(truncated)?;
                append_ack(out, PUBCOMP, ack.packet_id);
                Ok(())
            }
            (PacketType::PubAck | PacketType::PubRec | PacketType::PubComp, Role::Publisher(position)) => {
                let ack = Acknowledged::parse(header, frame).ok_or_else(truncated)?;
                self.acknowledge(position, kind, ack, out)
            }
            _ => handshake::unexpected(self.setup.version, header, frame),
        }
    }

    #[inline]
    fn drained(&mut self, id: usize) {
        if let Role::Publisher(position) = self.peers[id].role
            && self.publishers[position].is_paused()
        {
            self.queue(position);
        }
    }

    fn broken(&mut self, _id: usize, fault: Fault) {
        self.tally.broken += 1;
        self.tally.first_fault.get_or_insert(fault);
    }
}

/// Per stream, its index among the streams of its receiver.
pub(crate) fn slots(plan: &Plan) -> Arc<[u32]> {
    let mut next = vec![0; plan.subscribers as usize];
    let slot = |stream| match plan.routing {
        Routing::Everyone | Routing::Shared => stream,
        Routing::Divided => {
            let next: &mut u32 = &mut next[plan.receiver_of(stream) as usize];
            *next += 1;
            *next - 1
        }
    };
    (0..plan.streams()).map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Load, Options, Scenario};
    use crate::publisher::InFlightLimit;
    use crate::wire::{self, Prepared};

    const MEASURED_NS: Range<u64> = 1_000..2_000;

    /// Two ready subscribers of one publisher, on one thread.
    fn receivers(scenario: Scenario, qos: QoS) -> Traffic {
        let topics = (scenario == Scenario::FanIn).then_some(2);
        let options =
            Options { subscribers: Some(2), topics, load: Load::Rate(1.0), qos, ..Options::sample() };
        let plan = Arc::new(Plan::new(scenario, &options, "r".into()).unwrap());
        let setup = Setup {
            slots: slots(&plan),
            plan,
            version: Version::V5,
            qos,
            payload_bytes: options.payload_bytes,
            windows: Arc::new([]),
            is_window_shared: false,
            threads: 1,
        };
        let mut traffic = Traffic::new(setup, 0, Vec::new(), Vec::new());
        for number in 0..2 {
            traffic.add_subscriber(number);
        }
        traffic.peers.iter_mut().for_each(|peer| peer.stage = Stage::Ready);
        traffic.set_measured(MEASURED_NS);
        traffic
    }

    /// Delivers a message to a subscriber at `now_ns` and returns its response.
    fn arrive(traffic: &mut Traffic, id: usize, stamp: Stamp, now_ns: u64) -> Vec<u8> {
        let qos = traffic.setup.qos;
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { 9 };
        let filler = wire::filler(traffic.setup.payload_bytes);
        let mut frame = Vec::new();
        Prepared::new(Version::V5, "t", qos, false, &filler)
            .unwrap()
            .append(&mut frame, packet_id, &stamp, &filler);
        let header = Header::parse(&frame).unwrap().unwrap();
        let mut out = Vec::new();
        traffic.packet(id, &mut out, &header, &frame, now_ns).unwrap();
        out
    }

    fn stamp(sequence: u32) -> Stamp {
        Stamp { due_ns: 1_500, stream: 0, sequence }
    }

    #[test]
    fn counts_lost_duplicate_and_reordered_messages() {
        let mut traffic = receivers(Scenario::FanOut, QoS::AtMostOnce);
        for sequence in [0, 2, 1, 4, 4] {
            arrive(&mut traffic, 0, stamp(sequence), 1_900);
        }
        arrive(&mut traffic, 1, stamp(0), 1_900);
        let tally = &traffic.tally;
        // Five messages to two receivers: the first received four of them, the second one.
        assert_eq!((tally.delivered, traffic.expected(&[5])), (5, 10));
        assert_eq!((tally.duplicates, tally.out_of_order, tally.foreign), (1, 1, 0));
        assert_eq!(tally.latency.max(), 400);
    }

    #[test]
    fn counts_only_the_measured_part() {
        let mut traffic = receivers(Scenario::FanOut, QoS::AtMostOnce);
        let due = |due_ns, sequence| Stamp { due_ns, ..stamp(sequence) };
        arrive(&mut traffic, 0, due(999, 0), 1_001);
        arrive(&mut traffic, 0, due(1_000, 1), 1_002);
        arrive(&mut traffic, 0, due(1_999, 2), 2_001);
        arrive(&mut traffic, 0, due(2_000, 3), 2_002);
        let tally = &traffic.tally;
        assert_eq!((tally.delivered, tally.delivered_ever), (2, 4), "by due time");
        assert_eq!(tally.arrivals, 2, "by arrival time");
    }

    #[test]
    fn publishes_outside_the_plan_are_foreign() {
        let mut traffic = receivers(Scenario::FanOut, QoS::AtMostOnce);
        arrive(&mut traffic, 0, Stamp { stream: 1, ..stamp(0) }, 1_900);
        let long = wire::filler(traffic.setup.payload_bytes + 1);
        traffic.deliver(0, &long, 1_900);
        traffic.deliver(0, b"short", 1_900);
        assert_eq!((traffic.tally.foreign, traffic.tally.delivered_ever), (3, 0));

        let mut divided = receivers(Scenario::FanIn, QoS::AtMostOnce);
        arrive(&mut divided, 1, stamp(0), 1_900);
        assert_eq!(divided.tally.foreign, 1, "the stream belongs to the other subscriber");
    }

    #[test]
    fn shared_subscription_counts_once_with_order_per_member() {
        let mut traffic = receivers(Scenario::Shared, QoS::AtMostOnce);
        for (member, sequence) in [(0, 1), (1, 0), (1, 3), (0, 2), (0, 3), (1, 2)] {
            arrive(&mut traffic, member, stamp(sequence), 1_900);
        }
        let tally = &traffic.tally;
        assert_eq!((tally.delivered, traffic.expected(&[4])), (4, 4));
        assert_eq!((tally.duplicates, tally.out_of_order), (2, 0));

        arrive(&mut traffic, 0, stamp(9), 1_900);
        arrive(&mut traffic, 0, stamp(8), 1_900);
        assert_eq!(traffic.tally.out_of_order, 1);
    }

    #[test]
    fn receivers_acknowledge_immediately() {
        let mut traffic = receivers(Scenario::FanOut, QoS::AtLeastOnce);
        assert_eq!(arrive(&mut traffic, 0, stamp(0), 1_900), [PUBACK, 2, 0, 9]);
        let mut traffic = receivers(Scenario::FanOut, QoS::ExactlyOnce);
        assert_eq!(arrive(&mut traffic, 0, stamp(0), 1_900), [PUBREC, 2, 0, 9]);
        let mut out = Vec::new();
        let release = [wire::PUBREL, 2, 0, 9];
        let header = Header::parse(&release).unwrap().unwrap();
        traffic.packet(0, &mut out, &header, &release, 1_901).unwrap();
        assert_eq!(out, [PUBCOMP, 2, 0, 9]);
    }
    #[test]
    fn publishers_that_share_a_window_send_in_turn() {
        let mut traffic = receivers(Scenario::FanOut, QoS::AtLeastOnce);
        let options = Options { publishers: Some(2), subscribers: Some(2), ..Options::sample() };
        let plan = Arc::new(Plan::new(Scenario::FanOut, &options, "r".into()).unwrap());
        let filler = wire::filler(options.payload_bytes);
        let publisher = |number| {
            let limit = InFlightLimit::Open;
            Publisher::new(number, &plan, Version::V5, QoS::AtLeastOnce, limit, &filler).unwrap()
        };
        traffic.publishers = (0..2).map(publisher).collect();
        traffic.numbers = vec![0, 1];
        traffic.trackers = vec![Tracker::default(); 4];
        traffic.subscribers[1].trackers_at = 2;
        traffic.setup.slots = slots(&plan);
        traffic.setup.plan = plan;
        traffic.setup.windows = [DeliveryWindow::new(3)].into();
        traffic.setup.is_window_shared = true;
        traffic.release_in_flight();
        assert_eq!((traffic.admitted, traffic.is_busy()), (3, true));
        traffic.queue.clear();

        // The second message, of the second publisher, and then the first one reach both subscribers.
        let second = Stamp { stream: 1, ..stamp(0) };
        for (subscriber, stamp, admitted) in
            [(0, second, 3), (1, second, 3), (0, stamp(0), 3), (1, stamp(0), 5)]
        {
            arrive(&mut traffic, subscriber, stamp, 1_900);
            traffic.release_in_flight();
            assert_eq!(traffic.admitted, admitted);
        }
    }
}
