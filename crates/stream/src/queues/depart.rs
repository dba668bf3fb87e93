//! Messages that leave a queue for another: dead letters, and those sent back. A queue brings them in their order, one
//! batch at a time, each under a number of its group; whoever takes them in throws away what has come before.

use mainstem_queue::{Departure, Leaving, Moved, Origin, Reply, destination};
use mainstem_runtime::Io;

use super::errand::{Errand, ReplyTo, Wanted, Whom};
use crate::catalogue::{PartitionId, hex};
use crate::mail::Mail;
use crate::shard::Shard;

/// Messages that leave together, at most, and about how many bytes.
const AT_ONCE: usize = 256;
const BYTES_AT_ONCE: usize = 512 * 1024;
/// When it is tried again after a failure, ms.
const RETRY_MS: u64 = 1_000;

/// What is leaving a queue.
#[derive(Debug, Default)]
pub(super) struct Departing {
    /// What is on its way.
    under_way: Vec<Leaving>,
    /// Nothing leaves before this time, ms since 1970, since it did not work.
    retry_ms: Option<u64>,
    /// It has been said that it does not work.
    is_told: bool,
}

impl Departing {
    pub(super) fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }
}

impl Shard {
    /// Sends messages off that are to leave a queue, if none are on their way.
    pub(super) fn depart(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let now_ms = io.clock.unix_ms;
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        if !open.departing.under_way.is_empty() || open.departing.retry_ms.is_some_and(|at_ms| at_ms > now_ms)
        {
            return;
        }
        open.departing.retry_ms = None;
        let store = &mut *self.stores[open.store].store;
        let (departures, failed) = open.keeper.take_departures(store, AT_ONCE);
        if let Some(error) = failed {
            log::warn!("queue {}: a message that is to leave cannot be read yet: {error}", open.topic.name);
            open.departing.retry_ms = Some(now_ms + RETRY_MS);
        }
        let own_id = hex(id.topic);
        let mut moved = Vec::new();
        let mut bound_for: Option<String> = None;
        let mut bytes = 0;
        let mut rest = departures.into_iter();
        let mut left_behind = None;
        for Departure { leaving, payload } in rest.by_ref() {
            let Some(payload) = payload else {
                log::error!(
                    "queue {}: message {} cannot be read and is gone",
                    open.topic.name,
                    leaving.offset
                );
                open.keeper.queue_mut().left(leaving.group, leaving.number);
                continue;
            };
            let record = payload.record();
            let (name, config) = (&open.topic.name, open.keeper.queue().config());
            let destination = destination(config, name, &record, leaving.reason);
            let goes_with = bound_for.as_ref().is_none_or(|known| *known == destination);
            let size = record.value.map_or(0, <[u8]>::len) + record.headers.len();
            if !goes_with || (bytes > 0 && bytes + size > BYTES_AT_ONCE) {
                left_behind = Some(leaving);
                break;
            }
            bytes += size;
            let group = open.keeper.queue().group_name(leaving.group);
            moved.push(Moved::new(&record, &leaving, Origin { id: &own_id, queue: name, group }));
            open.departing.under_way.push(leaving);
            bound_for = Some(destination);
        }
        for leaving in left_behind.into_iter().chain(rest.map(|departure| departure.leaving)) {
            open.keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
        }
        let Some(queue) = bound_for else { return };
        let wanted = Wanted::Move(moved, open.topic.config.options.durability);
        let to = ReplyTo { shard: self.me, whom: Whom::Queue(id) };
        self.run_errand(io, Errand { queue: queue.into(), wanted, to });
    }

    /// Messages have arrived elsewhere, or not.
    pub(super) fn departed(&mut self, io: &mut Io<'_, Mail>, id: PartitionId, reply: &Reply) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let under_way = std::mem::take(&mut open.departing.under_way);
        let has_arrived = matches!(reply, Reply::Sent(places) if places.iter().all(Result::is_ok));
        if has_arrived {
            open.departing.is_told = false;
            for leaving in under_way {
                open.keeper.queue_mut().left(leaving.group, leaving.number);
            }
        } else {
            if !std::mem::replace(&mut open.departing.is_told, true) {
                log::warn!(
                    "queue {}: messages cannot leave for another queue, and wait: {reply:?}",
                    open.topic.name
                );
            }
            for leaving in under_way {
                open.keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
            }
            open.departing.retry_ms = Some(io.clock.unix_ms + RETRY_MS);
        }
        self.queues.stirred.insert(id);
        io.again_soon();
    }
}
