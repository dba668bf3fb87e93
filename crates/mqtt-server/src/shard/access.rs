//! Changes of users and rules while clients are connected, and the end of what proves who a client is.
//!
//! Verifying a password takes tens of milliseconds, so the host of users does it on another thread. The CONNECT is held
//! meanwhile, and the next turn takes the results. The same poll notices changes: it walks through all sessions, a part
//! per turn, since a shard with a million sessions must go on serving. [`Admission`](crate::admission::Admission)
//! decides what becomes of each; here it takes effect.

use mainstem_mqtt::ReasonCode;
use mainstem_runtime::{ConnId, Io};

use super::Shard;
use crate::admission::{Narrowing, Peer, Renewal, narrowing, renew};
use crate::broker_state::Mail;
use crate::connections::ConnState;
use crate::journal::entry::Entry;
use crate::timers::Timer;

/// Longest time after which the end of a proof is looked at again, ms: the clock may have been set meanwhile.
const PROOF_CHECK_MS_MAX: u64 = 60_000;
/// Cost of renewing the rights of a session, and of each of its subscriptions, units.
const RENEWAL_UNITS: u32 = 10;
const SUBSCRIPTION_UNITS: u32 = 2;

impl Shard {
    /// Arms the timer that ends a connection with what proves who its client is.
    pub(super) fn arm_proof(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, slot: u32) {
        if let Some(ends_ms) = self.host.session(slot).proof_ends_ms() {
            let left_ms = ends_ms.saturating_sub(io.clock.unix_ms).min(PROOF_CHECK_MS_MAX);
            io.set_timer(io.clock.now_ms + left_ms, Timer::Proof(conn).token());
        }
    }

    /// Ends a connection when what proves who its client is has ended: a token, a key, the answer of a service.
    pub(super) fn check_proof(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        let Some(ConnState::Serving(slot)) = self.connections.find(conn) else { return };
        let Some(ends_ms) = self.host.session(slot).proof_ends_ms() else { return };
        if io.clock.unix_ms < ends_ms {
            return self.arm_proof(io, conn, slot);
        }
        let client_id = self.host.session(slot).client_id();
        log::info!("client {client_id:?} is disconnected: its log-in has expired");
        self.disconnect(io, slot, ReasonCode::MaximumConnectTime, Some("the log-in has expired"));
    }

    /// Takes the results of log-ins, and begins to renew the rights of all sessions if users or rules have changed.
    pub(super) fn poll_security(&mut self, io: &mut Io<'_, Mail>) {
        for (conn, result) in self.shared.security.take_results(self.me) {
            self.connections.end_log_in(conn, result);
        }
        let epoch = self.shared.security.epoch();
        let Some(from) = self.host.begin_renewal(epoch) else { return };
        for slot in self.host.slots_from(from) {
            if io.is_exhausted() {
                self.host.continue_renewal_at(slot);
                io.request_turn();
                return;
            }
            io.charge(RENEWAL_UNITS);
            self.renew_session(io, slot);
        }
    }

    fn renew_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.host.session(slot);
        let conn = session.is_connected().then(|| session.conn());
        let peer = conn.map(|conn| Peer::of(io, conn, self.connections.listener(conn)));
        match renew(&self.shared.security, session, peer, io.clock.unix_ms) {
            Renewal::Unchanged => {}
            Renewal::Withhold => session.set_narrowed(true),
            Renewal::Disconnect(reason, what) => self.disconnect(io, slot, reason, Some(what)),
            Renewal::Narrow => {
                if let Some(conn) = conn {
                    self.connections.set_quotas(conn, self.admission.find_quotas(session, io.clock.now_ms));
                }
                self.narrow(io, slot);
            }
        }
    }

    /// Ends what a session may no longer be subscribed to, and finds out whether its messages have to be checked at
    /// delivery.
    pub(super) fn narrow(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.host.session(slot);
        io.charge(session.subscription_count() as u32 * SUBSCRIPTION_UNITS);
        let Some(narrowing) = narrowing(&self.shared.routes, session) else { return };
        let Narrowing { is_narrowed, queues, groups } = narrowing;
        session.set_narrowed(is_narrowed);
        for filter in queues {
            self.unsubscribe_from_queue(io, slot, &filter);
            if let Some((mut journal, session)) = self.host.journal(slot) {
                journal.push(&Entry::Unsubscribe { session, filter: &filter });
            }
        }
        for (name, filter) in groups {
            self.host.leave_group(slot, &filter, &name);
            if let Some((mut journal, session)) = self.host.journal(slot) {
                let filter = format!("$share/{name}/{filter}");
                journal.push(&Entry::Unsubscribe { session, filter: &filter });
            }
        }
    }
}
