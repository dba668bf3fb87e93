//! Timers of a shard, packed into the runtime's 64-bit tokens.

use mainstem_mqtt::ReasonCode;
use mainstem_runtime::{ConnId, Io};

use crate::message::SessionKey;
use crate::shard::{ConnState, Shard};
use crate::shared::Mail;

/// Bits of a token that hold the slot of a connection or session.
const SLOT_BITS: u32 = 28;
/// How often expired retained messages are looked for, ms.
const SWEEP_MS: u64 = 30_000;
/// Pause between two pieces of one look, ms.
const SWEEP_PIECE_MS: u64 = 16;

/// What a timer is for. Timers are not cancelled: each looks at whether it still matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// CONNECT should have come.
    Connect(ConnId),
    /// The client should have been heard of.
    KeepAlive(ConnId),
    /// A disconnected session may have expired.
    Expiry(SessionKey),
    /// A delayed will may be due.
    Will(SessionKey),
    /// `$SYS` is to be updated.
    Sys,
    /// Expired retained messages are to be dropped.
    Sweep,
    /// Stores are to do what is due by itself.
    Tend,
    /// Marks have waited for company long enough; the turn's end sees to them.
    Marks,
    /// Consumers that their queues have refused ask again.
    Queues,
}

impl Timer {
    pub(crate) fn token(self) -> u64 {
        let pack = |kind: u64, slot: u32, generation: u32| {
            kind << 60 | u64::from(slot & ((1 << SLOT_BITS) - 1)) << 32 | u64::from(generation)
        };
        match self {
            Self::Connect(conn) => pack(0, conn.slot() as u32, conn.generation()),
            Self::KeepAlive(conn) => pack(1, conn.slot() as u32, conn.generation()),
            Self::Expiry(key) => pack(2, key.slot, key.generation),
            Self::Will(key) => pack(3, key.slot, key.generation),
            Self::Sys => pack(4, 0, 0),
            Self::Sweep => pack(5, 0, 0),
            Self::Tend => pack(6, 0, 0),
            Self::Marks => pack(7, 0, 0),
            Self::Queues => pack(7, 0, 1),
        }
    }

    pub(crate) fn from_token(token: u64) -> Self {
        let slot = (token >> 32) as u32 & ((1 << SLOT_BITS) - 1);
        let generation = token as u32;
        // The shard does not stand in the token: a timer fires where it was set.
        let key = SessionKey { shard: 0, slot, generation };
        match token >> 60 {
            0 => Self::Connect(ConnId::from_parts(slot, generation)),
            1 => Self::KeepAlive(ConnId::from_parts(slot, generation)),
            2 => Self::Expiry(key),
            3 => Self::Will(key),
            4 => Self::Sys,
            5 => Self::Sweep,
            6 => Self::Tend,
            _ if generation == 0 => Self::Marks,
            _ => Self::Queues,
        }
    }
}

impl Shard {
    pub(crate) fn start_timers(&mut self, io: &mut Io<'_, Mail>) {
        if self.me == 0 {
            io.set_timer(io.clock.now_ms + SWEEP_MS, Timer::Sweep.token());
            self.start_sys(io);
        }
        if self.keeps_sessions() {
            self.tend_stores(io);
            self.start_session_timers(io);
        }
    }

    pub(crate) fn on_timer(&mut self, io: &mut Io<'_, Mail>, timer: Timer) {
        match timer {
            Timer::Connect(conn) => self.connect_timed_out(io, conn),
            Timer::KeepAlive(conn) => self.check_keep_alive(io, conn),
            Timer::Expiry(key) => self.check_expiry(io, key),
            Timer::Will(key) => self.check_will(io, key),
            Timer::Sys => self.publish_sys(io),
            Timer::Sweep => self.sweep(io),
            Timer::Tend => self.tend_stores(io),
            Timer::Marks => {}
            Timer::Queues => self.ask_queues_again(io.clock.now_ms),
        }
    }

    fn is_current(&self, conn: ConnId) -> bool {
        self.conns.get(conn.slot()).is_some_and(|known| known.generation == conn.generation())
    }

    fn connect_timed_out(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if self.is_current(conn) && self.conn(conn).state == ConnState::Waiting {
            log::debug!("a connection is closed: no CONNECT in time");
            self.vacate(conn);
            io.close(conn);
        }
    }

    /// Arms the keep alive timer: one and a half intervals after the last packet [MQTT-3.1.2-22].
    pub(crate) fn arm_keep_alive(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        let known = self.conn(conn);
        if known.patience_ms > 0 {
            let due_ms = known.last_packet_ms + u64::from(known.patience_ms);
            io.set_timer(due_ms, Timer::KeepAlive(conn).token());
        }
    }

    fn check_keep_alive(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if !self.is_current(conn) {
            return;
        }
        let known = self.conn(conn);
        let ConnState::Serving(slot) = known.state else { return };
        if io.clock.now_ms < known.last_packet_ms + u64::from(known.patience_ms) {
            self.arm_keep_alive(io, conn);
            return;
        }
        let client_id = &self.deliveries.sessions.at(slot).client_id;
        log::info!("client {client_id:?} is disconnected: not heard of for 1.5 keep alive intervals");
        self.disconnect(io, slot, ReasonCode::KeepAliveTimeout, None);
    }

    fn sweep(&mut self, io: &mut Io<'_, Mail>) {
        let (next, gone) = self.shared.retained.sweep(&self.swept, io.clock.now_ms);
        for topic in &gone {
            self.keep_retained(io, topic, None);
        }
        let pause_ms = if next.is_some() { SWEEP_PIECE_MS } else { SWEEP_MS };
        self.swept = next.unwrap_or_default();
        io.set_timer(io.clock.now_ms + pause_ms, Timer::Sweep.token());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_all_of_a_timer() {
        let conn = ConnId::from_parts((1 << SLOT_BITS) - 1, u32::MAX);
        let key = SessionKey { shard: 0, slot: 77, generation: 3 };
        for timer in [
            Timer::Connect(conn),
            Timer::KeepAlive(conn),
            Timer::Expiry(key),
            Timer::Will(key),
            Timer::Sys,
            Timer::Sweep,
            Timer::Tend,
            Timer::Marks,
            Timer::Queues,
        ] {
            assert_eq!(Timer::from_token(timer.token()), timer);
        }
    }
}
