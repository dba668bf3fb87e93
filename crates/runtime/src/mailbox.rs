//! Bounded mailboxes between shards: one per receiver, one lock per turn, one wake per transition from empty.
//!
//! A mailbox is FIFO across all senders: if a client causes messages on one shard and then on another, a third shard
//! receives them in that order. Capacity is accounted per sender. A full mailbox only reports backpressure; messages
//! are never dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

/// Number of messages from one sender at which a mailbox is full for that sender.
pub(crate) const CAPACITY: usize = 16 * 1024;

/// Messages in order of arrival, with their senders.
#[derive(Debug)]
pub(crate) struct Mails<M> {
    mails: VecDeque<M>,
    /// Runs of messages: sender and count.
    senders: VecDeque<(usize, usize)>,
}

impl<M> Default for Mails<M> {
    fn default() -> Self {
        Self { mails: VecDeque::new(), senders: VecDeque::new() }
    }
}

impl<M> Mails<M> {
    pub(crate) fn is_empty(&self) -> bool {
        self.mails.is_empty()
    }

    /// Removes the oldest message, with its sender.
    pub(crate) fn pop(&mut self) -> Option<(usize, M)> {
        let mail = self.mails.pop_front()?;
        let (from, count) = self.senders.front_mut().expect("each message has a sender");
        let from = *from;
        *count -= 1;
        if *count == 0 {
            self.senders.pop_front();
        }
        Some((from, mail))
    }
}

/// Mailbox of one shard.
#[derive(Debug)]
struct Mailbox<M> {
    queue: Mutex<Mails<M>>,
    senders: Vec<Sender>,
}

/// Per-sender state of a mailbox.
#[derive(Debug, Default)]
struct Sender {
    len: AtomicUsize,
    /// The sender found the mailbox full and needs a wake when it is emptied.
    needs_wake: AtomicBool,
}

/// All mailboxes of the process, and the wakers of its shards.
pub(crate) struct Mailboxes<M> {
    shards: usize,
    by_receiver: Vec<Mailbox<M>>,
    wakers: Vec<Option<Arc<Waker>>>,
    /// Whether a wake of the shard is pending.
    wake_pending: Vec<AtomicBool>,
}

/// Fill level of the mailboxes, independent of the message type.
pub(crate) trait MailboxStatus {
    /// Number of shards.
    fn shards(&self) -> usize;

    /// Whether the mailbox is full with `unsent` more messages. If so, the sender is woken when it is emptied.
    fn is_full(&self, from: usize, to: usize, unsent: usize) -> bool;
}

impl<M> MailboxStatus for Mailboxes<M> {
    fn shards(&self) -> usize {
        self.shards
    }

    fn is_full(&self, from: usize, to: usize, unsent: usize) -> bool {
        let sender = &self.by_receiver[to].senders[from];
        if sender.len.load(Ordering::Acquire) + unsent < CAPACITY {
            return false;
        }
        sender.needs_wake.store(true, Ordering::Release);
        // The receiver may have emptied it between the load and the store.
        sender.len.load(Ordering::Acquire) + unsent >= CAPACITY
    }
}

impl<M> Mailboxes<M> {
    /// Creates mailboxes for `wakers.len()` shards. A shard without a waker is never woken (simulation).
    pub(crate) fn new(wakers: Vec<Option<Arc<Waker>>>) -> Self {
        let shards = wakers.len();
        let mailbox =
            || Mailbox { queue: Mutex::default(), senders: (0..shards).map(|_| Sender::default()).collect() };
        Self {
            shards,
            by_receiver: (0..shards).map(|_| mailbox()).collect(),
            wakers,
            wake_pending: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// Moves all of `mails` into the mailbox and wakes the receiver if necessary.
    pub(crate) fn deliver(&self, from: usize, to: usize, mails: &mut Vec<M>) {
        let mailbox = &self.by_receiver[to];
        {
            let mut queue = mailbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.senders.push_back((from, mails.len()));
            mailbox.senders[from].len.fetch_add(mails.len(), Ordering::Release);
            queue.mails.extend(mails.drain(..));
        }
        self.wake(to);
    }

    /// Swaps the contents of the mailbox of `to` with the empty `mails`.
    pub(crate) fn collect(&self, to: usize, mails: &mut Mails<M>) {
        debug_assert!(mails.is_empty());
        let mailbox = &self.by_receiver[to];
        if mailbox.senders.iter().all(|sender| sender.len.load(Ordering::Acquire) == 0) {
            return;
        }
        {
            let mut queue = mailbox.queue.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *queue, mails);
            for sender in &mailbox.senders {
                sender.len.store(0, Ordering::Release);
            }
        }
        for (from, sender) in mailbox.senders.iter().enumerate() {
            if sender.needs_wake.load(Ordering::Acquire) && sender.needs_wake.swap(false, Ordering::AcqRel) {
                self.wake(from);
            }
        }
    }

    /// Wakes shard `to` unless a wake is pending.
    pub(crate) fn wake(&self, to: usize) {
        if self.wake_pending[to].swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(waker) = &self.wakers[to]
            && let Err(error) = waker.wake()
        {
            log::error!("shard {to}: cannot wake it: {error}");
        }
    }

    /// Clears the pending wake of shard `me`. Call it before checking the mailboxes.
    pub(crate) fn clear_wake(&self, me: usize) {
        if self.wake_pending[me].load(Ordering::Acquire) {
            self.wake_pending[me].swap(false, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preserves_order_and_wakes_the_sender_of_a_full_mailbox() {
        let mailboxes: Mailboxes<usize> = Mailboxes::new(vec![None, None]);
        let mut batch: Vec<usize> = (0..CAPACITY).collect();
        assert!(!mailboxes.is_full(0, 1, 0));
        mailboxes.deliver(0, 1, &mut batch);
        assert!(mailboxes.is_full(0, 1, 0));
        assert!(!mailboxes.is_full(1, 0, 0), "only that direction is full");
        let mut received = Mails::default();
        mailboxes.collect(1, &mut received);
        let all = std::iter::from_fn(|| received.pop());
        assert!(all.eq((0..CAPACITY).map(|mail| (0, mail))));
        assert!(received.is_empty());
        assert!(!mailboxes.is_full(0, 1, 0));
        assert!(mailboxes.wake_pending[0].load(Ordering::Acquire), "emptying the mailbox wakes the sender");
    }

    #[test]
    fn preserves_order_across_senders() {
        let mailboxes: Mailboxes<char> = Mailboxes::new(vec![None; 3]);
        for (from, mut batch) in [(1, vec!['a', 'b']), (0, vec!['c']), (1, vec!['d'])] {
            mailboxes.deliver(from, 2, &mut batch);
        }
        let mut received = Mails::default();
        mailboxes.collect(2, &mut received);
        let all: Vec<_> = std::iter::from_fn(|| received.pop()).collect();
        assert_eq!(all, [(1, 'a'), (1, 'b'), (0, 'c'), (1, 'd')]);
    }
}
