//! Messages that leave a queue for another: dead letters, and those sent back.

use mainstem_log::{Appended, BatchBuilder, Durability, Store as _, Ticket};
use mainstem_queue::{Config, GroupId, Leaving, MOVER, Moved, Origin, destination};

use crate::error::Error;
use crate::inner::Inner;
use crate::settings::Settings;
use crate::time::now_ms;

/// Messages that leave for another queue at once.
const DEPARTURES: usize = 256;

/// A message on its way to another queue.
#[derive(Debug)]
pub(crate) struct Departed {
    /// The group that it leaves, and its number there.
    group: GroupId,
    number: u64,
    /// Where it went, and the append that it is in.
    there: usize,
    ticket: Ticket,
}

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
            match self.take_in(&to, &moved, self.queues[at].durability) {
                Ok((there, appended)) => {
                    let one = &mut self.queues[at];
                    let Leaving { group, number, .. } = leaving;
                    one.leaving.push(Departed { group, number, there, ticket: appended.ticket });
                    self.queues[there].sent.wait();
                }
                Err(error) => {
                    self.queues[at].keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
                    failed = Some(error);
                }
            }
        }
        failed.or(unread.map(Error::from)).map_or(Ok(()), Err)
    }

    /// Takes a message of another queue, which asks for that durability, into the queue of this name. Where that promises less, a
    /// loss of power must not take what the other one forgets as soon as it is here.
    fn take_in(
        &mut self,
        name: &str,
        moved: &Moved,
        durability: Durability,
    ) -> Result<(usize, Appended), Error> {
        let at = if let Some(at) = self.find(name) {
            at
        } else {
            // Nobody is to lose dead letters because they fail again.
            let config = Config { max_deliveries: 0, ..Config::default() };
            self.open(name, Settings { config, durability: Durability::Fsync })?
        };
        let Moved { key, value, headers } = moved;
        let len = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let bytes = (len(key) + len(value) + headers.len()) as u64;
        let builder = &mut self.queues[at].builder;
        if !builder.is_empty() {
            *builder = BatchBuilder::default();
        }
        builder.push_with_headers(now_ms().cast_signed(), key.as_deref(), value.as_deref(), headers);
        let origin = mainstem_log::Origin { producer_id: MOVER, ..mainstem_log::Origin::default() };
        let appended = self.append(at, &origin, bytes)?;
        if durability == Durability::Fsync {
            self.store.sync_next(self.queues[at].messages);
        }
        Ok((at, appended))
    }

    /// Settles what has arrived elsewhere.
    pub(crate) fn arrive(&mut self, at: usize) {
        let leaving = std::mem::take(&mut self.queues[at].leaving);
        let mut is_lost = false;
        for departed in leaving {
            let Departed { group, number, there, ticket } = departed;
            if is_lost {
                self.queues[there].sent.leave();
                self.queues[at].keeper.queue_mut().give_back_leaving(group, number);
                continue;
            }
            let outcome = self.queues[there].sent.outcome(ticket);
            let one = &mut self.queues[at];
            match outcome {
                None => one.leaving.push(departed),
                Some(true) => one.keeper.queue_mut().left(group, number),
                Some(false) => {
                    is_lost = true;
                    one.keeper.queue_mut().give_back_leaving(group, number);
                }
            }
        }
    }
}
