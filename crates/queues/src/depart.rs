//! Messages that leave a queue for another: dead letters, and those sent back.

use mainstem_log::{Appended, BatchBuilder, Durability, Store as _};
use mainstem_queue::{Config, MOVER, Moved, Origin, destination};

use crate::common::now_ms;
use crate::error::Error;
use crate::inner::Inner;
use crate::settings::Settings;

/// Messages that leave for another queue at once.
const DEPARTURES: usize = 256;

impl Inner {
    /// Brings messages to the queues that they leave for.
    pub(crate) fn depart(&mut self, at: usize) -> Result<(), Error> {
        if !self.queues[at].leaving.is_empty() {
            return Ok(());
        }
        let (departures, unread) = self.queues[at].keeper.take_departures(&mut self.store, DEPARTURES);
        let mut failed = None;
        for departure in departures {
            let leaving = departure.leaving;
            let one = &mut self.queues[at];
            if failed.is_some() {
                one.keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
                continue;
            }
            let Some(payload) = departure.payload else {
                log::error!("queue {}: message {} cannot be read and is gone", one.name, leaving.offset);
                one.keeper.queue_mut().left(leaving.group, leaving.number);
                continue;
            };
            let record = payload.record();
            let queue = one.keeper.queue();
            let to = destination(queue.config(), &one.name, &record, leaving.reason);
            let origin = Origin { id: &one.name, queue: &one.name, group: queue.group_name(leaving.group) };
            let moved = Moved::new(&record, &leaving, origin);
            match self.take_in(&to, &moved) {
                Ok((there, appended)) => {
                    let one = &mut self.queues[at];
                    one.leaving.push((leaving.group, leaving.number, there, appended));
                }
                Err(error) => {
                    self.queues[at].keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
                    failed = Some(error);
                }
            }
        }
        failed.or(unread.map(Error::from)).map_or(Ok(()), Err)
    }

    /// Takes a message of another queue into the queue of this name.
    fn take_in(&mut self, name: &str, moved: &Moved) -> Result<(usize, Appended), Error> {
        let at = if let Some(at) = self.find(name) {
            at
        } else {
            // Nobody is to lose dead letters because they fail again.
            let config = Config { max_deliveries: 0, ..Config::default() };
            self.open(name, Settings { config, durability: Durability::Fsync })?
        };
        let one = &mut self.queues[at];
        let mut builder = BatchBuilder::default();
        let Moved { key, value, headers } = moved;
        builder.push_with_headers(now_ms().cast_signed(), key.as_deref(), value.as_deref(), headers);
        let origin = mainstem_log::Origin { producer_id: MOVER, ..mainstem_log::Origin::default() };
        let batch = builder.finish_as(&origin);
        let appended = self.store.append_sound(one.messages, batch)?;
        one.keeper.appended(batch, appended.base_offset);
        Ok((at, appended))
    }

    /// Settles what has arrived elsewhere.
    pub(crate) fn arrive(&mut self, at: usize) {
        let leaving = std::mem::take(&mut self.queues[at].leaving);
        let mut is_lost = false;
        for (group, number, there, appended) in leaving {
            let outcome = self.queues[there].outcome(&self.store, appended);
            let one = &mut self.queues[at];
            match outcome {
                _ if is_lost => one.keeper.queue_mut().give_back_leaving(group, number),
                None => one.leaving.push((group, number, there, appended)),
                Some(Ok(())) => one.keeper.queue_mut().left(group, number),
                Some(Err(_)) => {
                    is_lost = true;
                    one.keeper.queue_mut().give_back_leaving(group, number);
                }
            }
        }
    }
}
