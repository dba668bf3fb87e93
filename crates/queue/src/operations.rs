//! Operations on a whole queue. An operation on many messages runs in steps and releases the lock between them.
use mainstem_log::LogReader;

use mainstem_queue_core::{Info, PeekedMessage, QueueError, Redriven, ReplayFrom, Reply, Request};

use crate::error::Error;
use crate::group_handle::GroupHandle;
use crate::host::Host;
use crate::queue::Queue;
use crate::time::now_ms;

impl Queue {
    /// The state of the queue, with all durable messages. Counters of deliveries start when the queue is opened.
    pub fn info(&self) -> Info {
        let GroupHandle { queues, at, .. } = self.handle();
        let mut inner = queues.common.lock();
        let look = inner.look(*at, now_ms());
        let one = &inner.queues[*at];
        if let Err(error) = look {
            log::error!("queue {}: its messages cannot be read: {error}", one.engine.name());
        }
        let settings = one.engine.machine().config().pairs();
        let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut info = Info { name: one.engine.name().to_string(), settings, ..Info::default() };
        one.engine.info(&mut info, inner.store.status(one.messages).committed);
        info
    }

    /// Returns messages that the group has not settled, in order, starting at an offset: at most `max`, and about 4
    /// MiB.
    ///
    /// ```
    /// # use mainstem_queue::{Queues, Settings};
    /// # let directory = std::env::temp_dir().join(format!("mainstem-queue-peek-{}", std::process::id()));
    /// # let jobs = Queues::open(&directory)?.queue("jobs", Settings::default())?;
    /// jobs.enqueue_batch(["a", "b"])?;
    /// let seen = jobs.peek(0, 10)?;
    /// assert_eq!((seen[1].payload.value(), seen[1].state), (&b"b"[..], "ready"));
    /// # drop(jobs);
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The group does not exist; a disk error.
    pub fn peek(&self, from: u64, max: usize) -> Result<Vec<PeekedMessage>, Error> {
        let GroupHandle { queues, at, group } = self.handle();
        let mut inner = queues.common.lock();
        inner.look(*at, now_ms())?;
        let Host { store, queues, .. } = &mut *inner;
        let queue = queues[*at].engine.queue_mut();
        let group = queue.machine().group(group).ok_or(QueueError::UnknownGroup)?;
        Ok(queue.peek(store, group, from, max)?)
    }

    /// Removes all messages of the group that are durable now, leased ones included, except transfers in progress.
    /// Returns their number when the removal is durable. Until then consumers may receive some of them, and a crash may
    /// restore some. Messages in the log beyond the limit of messages in memory stay.
    ///
    /// # Errors
    /// The group does not exist; a disk error.
    pub fn purge(&self) -> Result<u64, Error> {
        self.count(Request::Purge { group: Some(self.handle().group.clone()) })
    }

    /// Sends at most `max` dead letters of the group `default` back to their source queues, except leased ones and
    /// those behind a leased one of their key, which are counted as skipped. A retry delay ends. Dead letters beyond
    /// the limit of messages in memory follow when earlier ones have left; some may stay behind very many messages that
    /// are no dead letters. Returns when the transfers are durable.
    ///
    /// # Errors
    /// A disk error.
    pub fn redrive(&self, max: u64) -> Result<Redriven, Error> {
        let reply = self.operate(Request::Redrive { max })?;
        Ok(if let Reply::Redriven(redriven) = reply { redriven } else { Redriven::default() })
    }

    /// Makes settled messages of the group available again, as far back as they are on disk, where
    /// [`retention_ms`](crate::Config::retention_ms) keeps them. Returns their number when the replay is durable.
    ///
    /// # Errors
    /// The group does not exist; a disk error.
    pub fn replay(&self, from: ReplayFrom) -> Result<u64, Error> {
        self.count(Request::Replay { group: self.handle().group.clone(), from })
    }

    /// Removes the group and its pending messages. A consumer that keeps receiving for it creates it again.
    ///
    /// # Errors
    /// The group is `default`, or does not exist; a disk error.
    pub fn remove_group(self) -> Result<(), Error> {
        self.count(Request::RemoveGroup { group: self.handle().group.clone() }).map(drop)
    }

    /// Waits until an operation on many messages is durable. Returns their number, if it is counted.
    fn count(&self, request: Request) -> Result<u64, Error> {
        let reply = self.operate(request)?;
        Ok(if let Reply::Count(count) = reply { count } else { 0 })
    }

    /// Waits until an operation on many messages is durable.
    fn operate(&self, request: Request) -> Result<Reply, Error> {
        let GroupHandle { queues, at, .. } = self.handle();
        let reply = queues.common.request(*at, request)?;
        queues.common.arrivals.notify();
        queues.common.due.notify();
        Ok(reply)
    }
}
