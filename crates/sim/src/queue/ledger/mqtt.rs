//! What comes to those who subscribe. They are not told what lease they have, and nobody answers them: when a message was
//! given to them is known only from when they heard of it, and what they say of it may come to nothing.

use mainstem_queue::{GroupName, Receipt, Settlement, Verdict};

use super::Ledger;
use crate::ledger::Violation;
use crate::queue::group::Dose;
use crate::queue::subscriber::Had;

/// Numbers of consumers from here on are those of subscribers.
const CONSUMERS_FROM: u64 = 2_000_000_000;
/// A message that is acknowledged so soon was acknowledged in time: queues give them for half a minute.
const SOON_MS: u64 = 5_000;

impl Ledger {
    /// A subscriber has been sent a message.
    pub(crate) fn published(
        &mut self,
        queue: usize,
        name: &GroupName,
        number: u64,
        had: &Had,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let at = self.tick();
        self.delivered += 1;
        self.group(queue, name).look();
        let id = self.message_of(queue, Some(payload))?;
        let book = &self.books[queue];
        let queue_name = book.plan.name.clone();
        let fault = |words: String| {
            Violation(format!("{queue_name}, {name}, by MQTT: message {id}: {words}; {had:?}"))
        };
        if self.messages[id].is_refused() {
            return Err(fault("it was refused and is delivered".to_owned()));
        }
        if let Some(other) = book.places.get(&had.offset).filter(|place| place.message != id) {
            return Err(fault(format!("it stands where {other:?} stood")));
        }
        self.books[queue].by_message.entry(id).or_default().insert(had.offset);
        let book = &self.books[queue];
        let dose = Dose {
            life: self.life,
            count: had.count,
            // No receipt has it.
            queue_life: u32::MAX - u32::try_from(at % 1_000_000_000).unwrap_or_default(),
            // At the latest.
            granted_ms: had.heard_ms,
            until_ms: 0,
            consumer: CONSUMERS_FROM + number,
            is_back: true,
            heard: at,
        };
        let (is_single, most) = (book.plan.is_single, book.plan.max_deliveries);
        let group = self.group(queue, name);
        // It may have been given before that.
        if group.may_have_changed() {
            group.unheard += 1;
        } else {
            let epoch = group.epoch;
            group.deliver(had.offset, &dose, epoch, (u64::MAX, is_single, most)).map_err(fault)?;
        }
        group.is_there(at);
        Ok(())
    }

    /// A subscriber says what is to become of a message.
    pub(crate) fn said(
        &mut self,
        queue: usize,
        name: &GroupName,
        had: &Had,
        verdict: Verdict,
        (now_ms, is_troubled): (u64, bool),
    ) {
        let life = self.life;
        let group = self.group(queue, name);
        let receipt = Receipt { offset: had.offset, count: had.count, life: 0 };
        group.settling(&Settlement { receipt, verdict }, now_ms);
        let is_end = matches!(verdict, Verdict::Ack | Verdict::Reject);
        if is_end && !is_troubled && !group.may_have_changed() && now_ms - had.heard_ms <= SOON_MS {
            group.ended(had.offset, (life, had.count));
        }
    }
}
