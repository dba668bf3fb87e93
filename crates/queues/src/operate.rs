//! What operators do with a queue, and see of it. What concerns very many messages is done some at a time, so that others
//! are served in between.

use std::time::SystemTime;

use mainstem_log::{BatchHeader, Store as _};
use mainstem_queue::{GroupId, Info, Payload, Refusal, ReplayFrom};

use crate::error::Error;
use crate::inner::Inner;
use crate::queue::{LOOK, Queue, Side};
use crate::time::{now_ms, time_of};

/// A message as one looks at it without taking it.
#[derive(Clone, Debug)]
pub struct Peeked {
    offset: u64,
    count: u32,
    state: &'static str,
    payload: Payload,
}

impl Peeked {
    /// Its place in the queue.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How often the group has had it delivered.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// What it waits for: `ready`, `leased`, `delayed`, `blocked` by another one with its key, or `leaving` for another
    /// queue.
    pub fn state(&self) -> &'static str {
        self.state
    }

    /// What it says.
    pub fn value(&self) -> &[u8] {
        self.payload.record().value.unwrap_or_default()
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.payload.record().key
    }

    /// Its headers, encoded as [`Headers`](crate::Headers) reads them.
    pub fn headers(&self) -> &[u8] {
        self.payload.record().headers
    }

    /// When it was put in.
    pub fn enqueued_at(&self) -> SystemTime {
        time_of(self.payload.record().timestamp_ms.max(0).cast_unsigned())
    }
}

impl Queue {
    /// How the queue is, with all that is durable. Counts of deliveries are since it was opened.
    pub fn info(&self) -> Info {
        let Side { queues, at, .. } = self.side();
        let mut inner = queues.common.lock();
        if let Err(error) = inner.look(*at, now_ms()) {
            log::error!("queue {}: its messages cannot be read: {error}", inner.queues[*at].name);
        }
        let one = &inner.queues[*at];
        let settings = one.keeper.queue().config().pairs();
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut info = Info { name: one.name.clone(), settings, ..Info::default() };
        one.keeper.info(&mut info);
        // Those that are not known yet because there are so many.
        let committed = inner.store.status(one.messages).committed;
        let unknown = committed.saturating_sub(one.keeper.queue().registered_to());
        info.messages += unknown;
        info.groups.iter_mut().for_each(|group| group.ready += unknown);
        info
    }

    /// Looks at messages that the group has not settled, from an offset on, in order: at most `max`, and no further one
    /// when 4 MiB are together.
    ///
    /// ```
    /// # use mainstem_queues::{Queues, Settings};
    /// # let directory = std::env::temp_dir().join(format!("mainstem-queues-peek-{}", std::process::id()));
    /// # let jobs = Queues::open(&directory)?.queue("jobs", Settings::default())?;
    /// jobs.enqueue_batch(["a", "b"])?;
    /// let seen = jobs.peek(0, 10)?;
    /// assert_eq!((seen[1].value(), seen[1].state()), (&b"b"[..], "ready"));
    /// # drop(jobs);
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The group is not there; the disk refuses.
    pub fn peek(&self, from: u64, max: usize) -> Result<Vec<Peeked>, Error> {
        let Side { queues, at, group } = self.side();
        let mut inner = queues.common.lock();
        inner.look(*at, now_ms())?;
        let Inner { store, queues, .. } = &mut *inner;
        let keeper = &mut queues[*at].keeper;
        let group = keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?;
        let seen = keeper.peek(store, group, from, max)?;
        let peeked = seen.into_iter().map(|seen| {
            let mainstem_queue::Message { offset, count, state, payload } = seen;
            Peeked { offset, count, state, payload }
        });
        Ok(peeked.collect())
    }

    /// Throws away all messages of the group that are durable now, whoever has them, but none on its way to another queue.
    /// Returns how many, when that is durable; until then consumers may get some of them, and after a crash some may
    /// be there. Messages that wait in the log because all groups have very many to settle stay.
    ///
    /// # Errors
    /// The group is not there; the disk refuses.
    pub fn purge(&self) -> Result<u64, Error> {
        let mut to = None;
        self.in_steps(0, |inner, group, next, _| {
            let one = &mut inner.queues[self.side().at];
            let to = *to.get_or_insert_with(|| inner.store.status(one.messages).committed);
            let queue = one.keeper.queue_mut();
            let (count, rest) = queue.purge_some(Some(group), next..to);
            // What is not known yet is thrown away when it is, unless other groups keep it from becoming known.
            let known_to = queue.registered_to();
            Ok((count, rest.or_else(|| (next < known_to && known_to < to).then_some(known_to))))
        })
    }

    /// Sends dead letters of the group `default` back to where they came from, at most so many, and none that somebody
    /// has. If they are more than the queue knows at a time, the others follow when those have left; some may stay that
    /// wait behind very many that are no dead letters. Returns how many leave, when it is durable that they do.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn redrive(&self, max: u64) -> Result<u64, Error> {
        let common = &*self.side().queues.common;
        let (mut next, mut left, mut to) = (0, max, None);
        loop {
            let mut has_more = false;
            self.in_steps(next, |inner, _, from, now_ms| {
                let one = &mut inner.queues[self.side().at];
                let to = *to.get_or_insert_with(|| inner.store.status(one.messages).committed);
                let queue = one.keeper.queue_mut();
                // What is not known yet is sent back when it is.
                next = queue.redrives_to().max(from);
                let (count, rest) = queue.redrive_some(from, left, now_ms);
                left -= count;
                has_more = left > 0 && queue.redrives_more(to);
                Ok((count, rest))
            })?;
            if !has_more {
                return Ok(max - left);
            }
            let seen = common.news.seen();
            common.due.give();
            common.news.wait(seen, LOOK);
        }
    }

    /// Lets the group have messages again that it has settled, as far back as they are still on disk:
    /// [`retention_ms`](crate::Config::retention_ms) keeps them there. Returns how many, when that is durable.
    ///
    /// # Errors
    /// The group is not there; the disk refuses.
    pub fn replay(&self, from: ReplayFrom) -> Result<u64, Error> {
        let Side { queues, at, .. } = self.side();
        let first = match from {
            ReplayFrom::Offset(offset) => offset,
            ReplayFrom::Time(time_ms) => {
                let mut inner = queues.common.lock();
                let messages = inner.queues[*at].messages;
                let time_ms = i64::try_from(time_ms).unwrap_or(i64::MAX);
                inner.store.find_time(messages, time_ms)?.map_or(u64::MAX, |found| found.offset)
            }
        };
        self.in_steps(first, |inner, group, next, now_ms| {
            let Inner { store, queues, .. } = inner;
            let keeper = &mut queues[*at].keeper;
            Ok(keeper.replay_from(store, group, next, now_ms, BatchHeader::is_control)?)
        })
    }

    /// Removes the group, with all that only it has not settled. A consumer that goes on receiving for it makes it anew.
    ///
    /// # Errors
    /// It is the group `default`, or is not there; the disk refuses.
    pub fn remove_group(self) -> Result<(), Error> {
        let Side { queues, at, group } = self.side();
        let mut inner = queues.common.lock();
        let queue = inner.queues[*at].keeper.queue_mut();
        let known = queue.group(group).ok_or(Refusal::UnknownGroup)?;
        queue.remove_group(known)?;
        self.side().keep(inner, now_ms())
    }

    /// Does something to some messages at a time, from an offset on, until there is no next one. Each step returns how
    /// many they were, and where to go on. Returns how many all were.
    fn in_steps(
        &self,
        first: u64,
        mut step: impl FnMut(&mut Inner, GroupId, u64, u64) -> Result<(u64, Option<u64>), Error>,
    ) -> Result<u64, Error> {
        let Side { queues, at, group } = self.side();
        let (mut next, mut all) = (first, 0);
        loop {
            let now_ms = now_ms();
            let mut inner = queues.common.lock();
            inner.look(*at, now_ms)?;
            let keeper = &inner.queues[*at].keeper;
            if keeper.is_stuck() {
                return Err(Refusal::Storage.into());
            }
            let group = keeper.queue().group(group).ok_or(Refusal::UnknownGroup)?;
            let (count, rest) = step(&mut inner, group, next, now_ms)?;
            all += count;
            let Some(rest) = rest else {
                self.side().keep(inner, now_ms)?;
                queues.common.due.give();
                return Ok(all);
            };
            next = rest;
        }
    }
}
