//! Bounded mailboxes between shards: one per ordered pair, one lock per turn, one wake on empty → non-empty.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

/// Mails that may wait in one mailbox before its sender is told to stop taking in more.
pub(crate) const CAPACITY: usize = 16 * 1024;

/// What waits from one shard for another.
#[derive(Debug)]
struct Pair<M> {
    waiting: Mutex<Vec<M>>,
    len: AtomicUsize,
    /// The sender found the mailbox full and wants a wake when it has been emptied.
    sender_waits: AtomicBool,
}

/// All mailboxes of one process, and the wakers of its shards.
pub(crate) struct Post<M> {
    shards: usize,
    pairs: Vec<Pair<M>>,
    wakers: Vec<Option<Arc<Waker>>>,
    /// The shard has a wake on its way that it has not acted on.
    awake: Vec<AtomicBool>,
}

/// How full mailboxes are, whatever mail is in them.
pub(crate) trait Mailboxes {
    /// Number of shards.
    fn shards(&self) -> usize;

    /// Whether the mailbox, with `unsent` more, is full; if so the sender gets a wake when it is emptied.
    fn is_full(&self, from: usize, to: usize, unsent: usize) -> bool;
}

impl<M> Mailboxes for Post<M> {
    fn shards(&self) -> usize {
        self.shards
    }

    fn is_full(&self, from: usize, to: usize, unsent: usize) -> bool {
        let pair = self.pair(from, to);
        if pair.len.load(Ordering::Acquire) + unsent < CAPACITY {
            return false;
        }
        pair.sender_waits.store(true, Ordering::Release);
        // The receiver may have emptied it between the two lines above.
        pair.len.load(Ordering::Acquire) + unsent >= CAPACITY
    }
}

impl<M> Post<M> {
    /// Mailboxes for `wakers.len()` shards; a shard without a waker is never woken (simulation).
    pub(crate) fn new(wakers: Vec<Option<Arc<Waker>>>) -> Self {
        let shards = wakers.len();
        let pair = || Pair {
            waiting: Mutex::new(Vec::new()),
            len: AtomicUsize::new(0),
            sender_waits: AtomicBool::new(false),
        };
        Self {
            shards,
            pairs: (0..shards * shards).map(|_| pair()).collect(),
            wakers,
            awake: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    fn pair(&self, from: usize, to: usize) -> &Pair<M> {
        &self.pairs[from * self.shards + to]
    }

    /// Moves all of `mails` into the mailbox and wakes the receiver if it may sleep.
    pub(crate) fn deliver(&self, from: usize, to: usize, mails: &mut Vec<M>) {
        let pair = self.pair(from, to);
        {
            let mut waiting = pair.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.append(mails);
            pair.len.store(waiting.len(), Ordering::Release);
        }
        self.wake(to);
    }

    /// Swaps everything that waits for `to` from `from` into the empty `mails`.
    pub(crate) fn collect(&self, from: usize, to: usize, mails: &mut Vec<M>) {
        debug_assert!(mails.is_empty());
        let pair = self.pair(from, to);
        if pair.len.load(Ordering::Acquire) == 0 {
            return;
        }
        {
            let mut waiting = pair.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *waiting, mails);
            pair.len.store(0, Ordering::Release);
        }
        if pair.sender_waits.swap(false, Ordering::AcqRel) {
            self.wake(from);
        }
    }

    /// Wakes shard `to`, unless a wake is under way.
    pub(crate) fn wake(&self, to: usize) {
        if self.awake[to].swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(waker) = &self.wakers[to]
            && let Err(error) = waker.wake()
        {
            log::error!("shard {to} could not be woken: {error}");
        }
    }

    /// Shard `me` is about to look at its mailboxes: from here on it wants wakes again.
    pub(crate) fn attend(&self, me: usize) {
        if self.awake[me].load(Ordering::Acquire) {
            self.awake[me].swap(false, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mail_keeps_its_order_and_a_full_mailbox_tells_its_sender() {
        let post: Post<usize> = Post::new(vec![None, None]);
        let mut batch: Vec<usize> = (0..CAPACITY).collect();
        assert!(!post.is_full(0, 1, 0));
        post.deliver(0, 1, &mut batch);
        assert!(post.is_full(0, 1, 0));
        assert!(!post.is_full(1, 0, 0), "only that direction is full");
        let mut received = Vec::new();
        post.collect(0, 1, &mut received);
        assert_eq!(received, (0..CAPACITY).collect::<Vec<_>>());
        assert!(!post.is_full(0, 1, 0));
        assert!(post.awake[0].load(Ordering::Acquire), "the sender was woken when its mailbox was emptied");
    }
}
