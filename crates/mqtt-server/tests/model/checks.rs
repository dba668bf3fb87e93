//! What holds whenever nothing moves, and at the end of a run.

use std::collections::HashMap;

use mainstem_mqtt::{QoS, Version};
use mainstem_mqtt_server::Counters;

use crate::kit::State;
use crate::oracle::OVERHEAD_BYTES;
use crate::plan::{self, CLIENTS, Connecting, Op, PROBE_FILTER, PROBE_KEY};
use crate::run::Run;
use crate::session::Serial;

impl Run {
    /// Nothing moves: what could be sent has been, and the gauges tell the truth.
    pub(crate) fn check(&mut self) {
        self.check_links();
        self.check_gauges();
        for (account, recomputed) in self.world.accounts() {
            assert_eq!(account, recomputed, "the account of a session");
        }
        let serials: Vec<Serial> = self.oracle.sessions.keys().copied().collect();
        let drained: Vec<Serial> = serials.into_iter().filter(|serial| self.is_drained(*serial)).collect();
        let now_ms = self.oracle.now_ms;
        let messages = &self.oracle.messages;
        let is_due = |message: usize| messages[message].is_due(now_ms);
        let name = |message: usize| format!("message {message} ({:?})", messages[message]);
        for serial in &drained {
            let session = self.oracle.sessions.get_mut(serial).expect("a session");
            let fits = |message: usize, packet_max: usize| {
                is_due(message) && messages[message].bytes + OVERHEAD_BYTES <= packet_max
            };
            session.check_drained(fits, name);
        }
        self.oracle.groups.check_drained(|serial| drained.contains(&serial), is_due, name);
    }

    /// Whether the broker can have no reason to keep anything back from a session.
    fn is_drained(&self, serial: Serial) -> bool {
        let session = &self.oracle.sessions[&serial];
        session.link.is_some_and(|link| !self.world.is_stalled(link)) && session.has_room()
    }

    fn check_links(&mut self) {
        for link in 0..self.wires.len() {
            let is_open = matches!(self.world.state(link), State::Open(_));
            let is_stalled = self.world.is_stalled(link);
            let wire = &mut self.wires[link];
            assert_eq!(is_open, !wire.has_ended, "link {link}: open, or not");
            assert!(is_stalled || wire.replies.is_empty(), "link {link} waits for {:?}", wire.replies);
            assert!(is_stalled || wire.partial.is_empty(), "half a packet on link {link}");
            wire.was_stalled &= is_stalled;
        }
    }

    fn check_gauges(&mut self) {
        let Counters {
            connections,
            clients_connected,
            sessions,
            subscriptions,
            shared_subscriptions,
            queued_messages,
            ..
        } = self.world.counters();
        let known = self.oracle.sessions.values();
        let shared: usize = known.clone().map(|session| session.shares.len()).sum();
        let plain: usize = known.clone().map(|session| session.subs.len()).sum();
        let connected = known.clone().filter(|session| session.link.is_some()).count();
        let links = self.wires.iter().filter(|wire| !wire.has_ended).count();
        assert_eq!(connections, links as u64, "connections");
        assert_eq!(clients_connected, connected as u64, "clients connected");
        assert_eq!(sessions, known.len() as u64, "sessions");
        assert_eq!(subscriptions, (plain + shared) as u64, "subscriptions");
        assert_eq!(shared_subscriptions, shared as u64, "shared subscriptions");
        let most = known.len() as u64 * u64::from(self.oracle.config.max_queued_messages);
        assert!(queued_messages <= most, "{queued_messages} queued");
        let serials: Vec<Serial> = self.oracle.sessions.keys().copied().collect();
        if serials.into_iter().all(|serial| self.is_drained(serial)) {
            assert_eq!(queued_messages, 0, "queued for sessions that take everything");
        }
    }

    /// Ends a run: everybody comes back and gets everything, then all of it is taken down.
    pub(crate) fn finish(&mut self) {
        for link in 0..self.wires.len() {
            if self.world.is_stalled(link) {
                self.read_again(link);
            }
        }
        for client in 0..CLIENTS {
            self.come_back(client, false);
        }
        for link in 0..self.wires.len() {
            if !self.wires[link].has_ended && self.clients[self.wires[link].client].link != Some(link) {
                self.hang_up_link(link);
            }
        }
        self.drain();
        assert!((0..CLIENTS).all(|client| self.clients[client].is_up), "somebody did not get in");
        self.check_retained();
        self.check_loads();
        for client in 0..CLIENTS {
            self.come_back(client, true);
            self.send_all(client, Op::Disconnect { with_will: false, expiry_s: None });
        }
        self.settle();
        let Counters {
            connections,
            clients_connected,
            sessions,
            subscriptions,
            shared_subscriptions,
            queued_messages,
            ..
        } = self.world.counters();
        let left =
            [connections, clients_connected, sessions, subscriptions, shared_subscriptions, queued_messages];
        assert_eq!(left, [0; 6], "something is left");
        assert_eq!(self.world.charged_for_sessions(), 0, "memory of sessions is left");
    }

    fn come_back(&mut self, client: usize, clean: bool) {
        self.settle();
        let version = self.clients[client].manners.version;
        let link = self.connect_with(Connecting {
            client,
            version,
            clean,
            keep_alive_s: 0,
            expiry_s: (version == Version::V5 && !clean).then_some(u32::MAX),
            receive_maximum: None,
            packet_max: None,
            alias_max: None,
            will: None,
        });
        self.flush_bytes(link, usize::MAX);
        self.settle();
    }

    /// Until nobody owes an acknowledgement.
    fn drain(&mut self) {
        loop {
            self.settle_and_check();
            let mut is_done = true;
            for client in 0..CLIENTS {
                while let Some(op) = self.clients[client].pay(&mut self.random) {
                    self.send_all(client, op);
                    is_done = false;
                }
                while let Some(op) = self.next_release(client) {
                    self.send_all(client, op);
                    is_done = false;
                }
                let link = self.clients[client].link.expect("a connection");
                is_done &= self.wires[link].unsent.is_empty();
            }
            // Publishers may be made to wait for slow receivers, and what they send after that with them.
            if self.wires.iter().any(|wire| !wire.has_ended && !wire.ops.is_empty()) {
                self.pass(100);
                is_done = false;
            }
            if is_done {
                return;
            }
        }
    }

    /// A new session that subscribes to everything gets the last retained value of every topic.
    fn check_retained(&mut self) {
        self.come_back(0, true);
        let options = mainstem_mqtt::SubscribeOptions::qos(QoS::AtLeastOnce);
        let filters = ["#", "$d/#"].map(|filter| (filter, options)).to_vec();
        self.send_all(0, Op::Subscribe { packet_id: 501, id: 0, filters });
        self.drain();
    }

    /// Who has nothing outstanding takes turns with the others: a load that was never settled would show.
    fn check_loads(&mut self) {
        const ROUNDS: u32 = 3;
        let options = mainstem_mqtt::SubscribeOptions::qos(QoS::AtMostOnce);
        for client in 0..CLIENTS {
            let session = self.oracle.session(client).expect("a session");
            let shared = session.shares.keys().map(|key| plan::shared_text(*key));
            let filters: Vec<&'static str> = session.subs.keys().copied().chain(shared).collect();
            if !filters.is_empty() {
                self.send_all(client, Op::Unsubscribe { packet_id: 503, filters });
            }
            let filters = vec![(PROBE_FILTER, options)];
            self.send_all(client, Op::Subscribe { packet_id: 502, id: 0, filters });
        }
        self.drain();
        self.probe = Some(HashMap::new());
        for _ in 0..ROUNDS as usize * CLIENTS {
            self.publish_probe(0);
            self.drain();
        }
        let counts = self.probe.take().expect("set above");
        let members = self.oracle.groups.members(PROBE_KEY);
        for serial in members {
            let count = counts.get(&serial).copied().unwrap_or(0);
            let client = self.oracle.sessions[&serial].client;
            assert_eq!(count, ROUNDS, "client {client} has a load that nothing explains: {counts:?}");
        }
    }
}
