//! Work queues, which live outside this crate: publishes to `$queue/<name>`, and subscriptions to them.
//!
//! A publish to a queue leaves as a message for a sink ([`crate::Sink::Queue`]). Each queue subscription of a connected
//! session is one consumer of the queue. Once per turn, [`QueueConsumers::take_requests`] returns the requests of all
//! consumers; settlements come before requests for messages, because what is settled frees a place. Consumers exist
//! only while their session has a connection: what they hold is released when it is lost, and no journal contains it.
//!
//! ```text
//!   SUBSCRIBE ──► first receive ──answered──► waits for messages ◄──┐
//!                    │                          │ received          │ room in the window
//!                 refused                       ▼                   │
//!                    ▼                   held, then leased ──PUBACK──► settled
//!          SUBACK with an error                 │ connection lost
//!                                               ▼ released
//! ```

mod group;
mod session;

use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_queue_core::{Disposition, Request, Settlement};

use crate::message::SessionKey;

pub use group::{QueueDelivery, QueueGroup, queue_of};
pub(crate) use group::{is_of_queue, suback_reason};
use session::Leased;
pub(crate) use session::{
    Capacity, Encoded, FIRST_LEASE_ID, QueueSubscription, RETRY_REFUSED_MS, SessionConsumers, disposition,
};

/// Bytes after which one answer to a consumer gets no further message.
const RECEIVE_BYTES_MAX: usize = 256 * 1024;

/// A request to a queue on behalf of MQTT consumers: [`Request::Receive`], [`Request::Settle`] or [`Request::Leave`].
#[derive(Debug)]
pub struct QueueRequest {
    /// Queue and group.
    pub group: Arc<QueueGroup>,
    /// The request. Its reply to a receive goes to [`crate::Shard::confirm_consumer`] or
    /// [`crate::Shard::refuse_consumer`].
    pub request: Request,
}

/// The consumers of one shard and their requests of this turn.
#[derive(Debug, Default)]
pub(crate) struct QueueConsumers {
    /// Number of the last consumer that was added.
    last_consumer: u64,
    /// Session of each consumer.
    owners: HashMap<u64, SessionKey, foldhash::fast::RandomState>,
    /// Sessions that may have requests.
    due: Vec<SessionKey>,
    requests: Vec<QueueRequest>,
    /// Sessions with consumers that wait to ask again.
    refused: Vec<SessionKey>,
}

impl QueueConsumers {
    pub(crate) fn has_requests(&self) -> bool {
        !self.due.is_empty() || !self.requests.is_empty()
    }

    /// Sessions whose requests are to be collected by [`QueueConsumers::collect`].
    pub(crate) fn take_due(&mut self) -> Vec<SessionKey> {
        std::mem::take(&mut self.due)
    }

    /// All requests, in the order in which queues have to see them.
    pub(crate) fn take_requests(&mut self) -> Vec<QueueRequest> {
        std::mem::take(&mut self.requests)
    }

    pub(crate) fn owner(&self, consumer: u64) -> Option<SessionKey> {
        self.owners.get(&consumer).copied()
    }

    /// Schedules a session for the end of the turn.
    pub(crate) fn schedule(&mut self, key: SessionKey, session: &mut SessionConsumers) {
        if session.set_due() {
            self.due.push(key);
        }
    }

    /// Makes a consumer for each subscription that has none: the session has a connection.
    pub(crate) fn start(&mut self, key: SessionKey, session: &mut SessionConsumers) {
        for subscription in session.subscriptions_mut().filter(|known| !known.has_consumer()) {
            self.last_consumer += 1;
            // Unique over all shards.
            let consumer = u64::from(key.shard) << 48 | self.last_consumer;
            self.owners.insert(consumer, key);
            subscription.start(consumer);
        }
        self.schedule(key, session);
    }

    /// Ends all consumers of a session that has lost its connection, and releases what it has.
    pub(crate) fn stop(&mut self, session: &mut SessionConsumers) {
        for (group, settlement) in session.drain_settled() {
            add_settlement(&mut self.requests, &group, settlement);
        }
        for Leased { group, receipt, .. } in session.take_leased() {
            let settlement = Settlement { receipt, disposition: Disposition::Release };
            add_settlement(&mut self.requests, &group, settlement);
        }
        for subscription in session.subscriptions_mut() {
            self.retire(subscription);
        }
    }

    /// Ends the consumer of a subscription. SUBACKs that wait for its queue go with it.
    pub(crate) fn retire(&mut self, subscription: &mut QueueSubscription) {
        let group = Arc::clone(subscription.group());
        for receipt in subscription.take_held() {
            let settlement = Settlement { receipt, disposition: Disposition::Unsent };
            add_settlement(&mut self.requests, &group, settlement);
        }
        let consumer = subscription.stop();
        if self.owners.remove(&consumer).is_some() {
            let request = Request::Leave { group: Arc::clone(&group.group), consumer };
            self.requests.push(QueueRequest { group, request });
        }
    }

    /// Collects the settlements of a session, and what its consumers can take if it has a connection.
    pub(crate) fn collect(&mut self, session: &mut SessionConsumers, capacity: Option<Capacity>) {
        for (group, settlement) in session.drain_settled() {
            add_settlement(&mut self.requests, &group, settlement);
        }
        let Some(capacity) = capacity else { return };
        session.ask(&capacity, |subscription, max| {
            let group = Arc::clone(subscription.group());
            let request = Request::Receive {
                group: Arc::clone(&group.group),
                consumer: subscription.consumer(),
                max,
                bytes_max: RECEIVE_BYTES_MAX,
                lease_ms: None,
                wait_ms: if subscription.is_confirmed() { u64::MAX } else { 0 },
            };
            self.requests.push(QueueRequest { group, request });
        });
    }

    /// Schedules another look at a session with a refused consumer, see [`QueueConsumers::take_refused`].
    pub(crate) fn retry_later(&mut self, key: SessionKey) {
        if !self.refused.contains(&key) {
            self.refused.push(key);
        }
    }

    pub(crate) fn take_refused(&mut self) -> Vec<SessionKey> {
        std::mem::take(&mut self.refused)
    }
}

/// Adds a settlement to the request of its group behind the last other request, or to a new one.
fn add_settlement(requests: &mut Vec<QueueRequest>, group: &Arc<QueueGroup>, settlement: Settlement) {
    let tail = requests.iter_mut().rev().take_while(|known| matches!(known.request, Request::Settle { .. }));
    for known in tail {
        if let Request::Settle { settlements, .. } = &mut known.request
            && Arc::ptr_eq(&known.group, group)
        {
            settlements.push(settlement);
            return;
        }
    }
    let request = Request::Settle { group: Arc::clone(&group.group), settlements: vec![settlement] };
    requests.push(QueueRequest { group: Arc::clone(group), request });
}

#[cfg(test)]
mod tests {
    use mainstem_queue_core::Receipt;

    use super::*;

    #[test]
    fn settlements_of_a_group_share_a_request() {
        let one = QueueGroup::of("$queue/a", None).unwrap();
        let two = QueueGroup::of("$queue/a", Some("audit")).unwrap();
        assert_eq!((one.queue(), &**one.name(), &**two.name()), ("a", "default", "audit"));
        let mut requests = Vec::new();
        let settlement = |offset| {
            let receipt = Receipt { offset, count: 1, incarnation: 7 };
            Settlement { receipt, disposition: Disposition::Ack }
        };
        for (group, offset) in [(&one, 0), (&two, 0), (&one, 1)] {
            add_settlement(&mut requests, group, settlement(offset));
        }
        assert_eq!(requests.len(), 2);
        let Request::Settle { settlements, .. } = &requests[0].request else { panic!("{requests:?}") };
        assert_eq!(*settlements, [settlement(0), settlement(1)]);
    }
}
