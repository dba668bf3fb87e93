//! The sessions of one shard: what they subscribe to, what is on its way to their clients, and their journals.
//!
//! [`SessionHost`] knows nothing of connections beyond where the output of a session goes: it does not end them, and
//! does not decide who may connect. [`Shard`](crate::Shard) does, and calls the host with packets of clients that have
//! a session, with messages, and with commits that have become durable. The files of this folder are the parts of the
//! host, by what they handle.

mod acks;
mod appends;
mod commits;
mod connection;
mod endings;
mod fan_outs;
mod groups;
mod publishes;
mod qos2;
mod queues;
mod replay;
mod restore;
mod rights;
mod snapshots;
mod subscriptions;
mod unconfirmed;

pub(crate) use acks::BrokenPromise;
pub(crate) use connection::Disconnected;
pub(crate) use publishes::{BYTES_PER_UNIT, Routed};
pub use restore::Restored;
pub(crate) use restore::settle_origins;

use std::sync::Arc;

use mainstem_log::Stores;
use mainstem_mqtt::Packet;
use mainstem_runtime::{Io, MemoryPressure};

use crate::access::RightsRenewal;
use crate::broker_state::{Mail, Shared};
use crate::config::MqttConfig;
use crate::counters::Counters;
use crate::ending::EndingSessions;
use crate::fan_outs::FanOuts;
use crate::message::SessionKey;
use crate::persistence::Persistence;
use crate::queue_consumers::QueueConsumers;
use crate::reassigned::UnconfirmedSessions;
use crate::retained_replay::SendSchedule;
use crate::router::Router;
use crate::session::account::subscription_cost;
use crate::session::delivery::Deliveries;
use crate::session::{Session, Sessions};

/// The sessions of one shard, with all that is kept for them.
pub(crate) struct SessionHost {
    me: u16,
    shared: Arc<Shared>,
    sessions: Sessions,
    deliveries: Deliveries,
    router: Router,
    persistence: Persistence,
    endings: EndingSessions,
    queues: QueueConsumers,
    continuing: SendSchedule,
    fan_outs: FanOuts,
    unconfirmed: UnconfirmedSessions,
    renewal: RightsRenewal,
}

impl SessionHost {
    /// The host of shard `me`, without sessions and without persistence.
    pub(crate) fn new(me: u16, shared: Arc<Shared>) -> Self {
        Self {
            me,
            sessions: Sessions::new(me, shared.session_meter(me)),
            deliveries: Deliveries::new(&shared.config),
            router: Router::new(me, shared.config.one_copy_per_client),
            persistence: Persistence::default(),
            endings: EndingSessions::default(),
            queues: QueueConsumers::default(),
            continuing: SendSchedule::default(),
            fan_outs: FanOuts::default(),
            unconfirmed: UnconfirmedSessions::default(),
            renewal: RightsRenewal::default(),
            shared,
        }
    }

    fn config(&self) -> &MqttConfig {
        &self.shared.config
    }

    /// The session in a slot that is known to be taken.
    #[inline]
    pub(crate) fn session(&mut self, slot: u32) -> &mut Session {
        self.sessions.at(slot)
    }

    /// The session of a key, if it has not ended.
    #[inline]
    pub(crate) fn find_session(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.sessions.get(key)
    }

    /// The slots of sessions from this one on, in order.
    pub(crate) fn slots_from(&self, slot: u32) -> Vec<u32> {
        self.sessions.slots_from(slot as usize).collect()
    }

    #[inline]
    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        self.deliveries.counters_mut()
    }

    /// The journals, the retained log and their commits, to read.
    #[inline]
    pub(crate) fn persistence(&self) -> &Persistence {
        &self.persistence
    }

    /// The stores, to lend them and to take them back.
    pub(crate) fn stores_mut(&mut self) -> &mut Stores {
        self.persistence.stores_mut()
    }

    /// Begins a turn with this shortage of memory.
    pub(crate) fn begin_turn(&mut self, pressure: MemoryPressure) {
        self.deliveries.set_pressure(pressure);
    }

    /// Ends a turn. Returns the number of messages that wait for sessions with a connection.
    pub(crate) fn end_turn(&mut self) -> u64 {
        self.deliveries.end_of_message();
        self.deliveries.backlog()
    }

    /// Sends a packet to the client of a session, if it is connected and takes packets of that size.
    pub(crate) fn send(&mut self, io: &mut Io<'_, Mail>, slot: u32, packet: &Packet<'_>) {
        let session = self.sessions.at(slot);
        let version = session.version();
        if !session.is_connected() || packet.encoded_len(version) > session.packet_max() as usize {
            return;
        }
        let Some(output) = io.output(session.conn()) else { return };
        match packet.encode(version, output.buffer()) {
            Ok(()) => self.deliveries.counters_mut().messages_sent += 1,
            Err(error) => log::error!("a packet cannot be encoded: {error}"),
        }
    }

    /// Number of acks, publishes, fan-outs, commits and session ends in progress, and of messages held in memory until
    /// they are on disk. 0 when everything has come to rest.
    pub(crate) fn unfinished(&mut self) -> usize {
        let sessions = self.sessions.slots().into_iter().filter_map(|slot| {
            let ext = self.sessions.at(slot).ext_ref()?;
            Some(ext.acks.len() + ext.qos2.len() + ext.reassigned.len() + ext.retained.early_topics())
        });
        let sessions: usize = sessions.sum();
        sessions + self.persistence.unfinished() + self.endings.len() + self.fan_outs.unfinished()
    }

    /// The accounts of all sessions, bytes: what each says, and what it should say by what the session keeps.
    pub(crate) fn accounts(&mut self) -> Vec<(u64, u64)> {
        let routes = &self.shared.routes;
        let slots = self.sessions.slots().into_iter();
        let account = |slot| {
            let session = self.sessions.at(slot);
            let names = session.subscriptions().iter().filter_map(|known| routes.name(known.filter));
            let plain: usize = names.map(|name| subscription_cost(&name, "")).sum();
            let groups = session.groups().iter().map(|group| subscription_cost(&group.filter, &group.name));
            let shared = groups.sum::<usize>();
            let consumers = session.consumers_mut().into_iter().flat_map(|known| known.subscriptions());
            let queues: usize = consumers.map(|known| subscription_cost(known.filter(), "")).sum();
            session.recomputed_memory(plain + shared + queues)
        };
        slots.map(account).collect()
    }
}
