//! Bounded mailboxes between shards: one for each receiver, one lock per turn, one wake on empty → non-empty.
//!
//! What came first is taken first, whoever sent it: a client that has said something to one shard and then something
//! to another is heard in that order by a third.

use std::iter::repeat_n;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mio::Waker;

/// Mails of one sender that may wait in one mailbox before it is told to stop taking in more.
pub(crate) const CAPACITY: usize = 16 * 1024;

/// Mails in the order of their coming, with who sent them.
#[derive(Debug)]
pub(crate) struct Mails<M> {
    mails: Vec<M>,
    /// Sender and number of mails.
    senders: Vec<(usize, usize)>,
}

impl<M> Default for Mails<M> {
    fn default() -> Self {
        Self { mails: Vec::new(), senders: Vec::new() }
    }
}

impl<M> Mails<M> {
    pub(crate) fn is_empty(&self) -> bool {
        self.mails.is_empty()
    }

    /// Takes all of them, each with its sender.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (usize, M)> {
        let senders = self.senders.drain(..).flat_map(|(from, count)| repeat_n(from, count));
        senders.zip(self.mails.drain(..))
    }
}

/// What waits for one shard.
#[derive(Debug)]
struct Mailbox<M> {
    waiting: Mutex<Mails<M>>,
    senders: Vec<Sender>,
}

/// What a mailbox has of one sender.
#[derive(Debug, Default)]
struct Sender {
    len: AtomicUsize,
    /// It found the mailbox full and wants a wake when it has been emptied.
    waits: AtomicBool,
}

/// All mailboxes of one process, and the wakers of its shards.
pub(crate) struct Post<M> {
    shards: usize,
    /// By receiver.
    mailboxes: Vec<Mailbox<M>>,
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
        let sender = &self.mailboxes[to].senders[from];
        if sender.len.load(Ordering::Acquire) + unsent < CAPACITY {
            return false;
        }
        sender.waits.store(true, Ordering::Release);
        // The receiver may have emptied it between the two lines above.
        sender.len.load(Ordering::Acquire) + unsent >= CAPACITY
    }
}

impl<M> Post<M> {
    /// Mailboxes for `wakers.len()` shards; a shard without a waker is never woken (simulation).
    pub(crate) fn new(wakers: Vec<Option<Arc<Waker>>>) -> Self {
        let shards = wakers.len();
        let mailbox = || Mailbox {
            waiting: Mutex::default(),
            senders: (0..shards).map(|_| Sender::default()).collect(),
        };
        Self {
            shards,
            mailboxes: (0..shards).map(|_| mailbox()).collect(),
            wakers,
            awake: (0..shards).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards
    }

    /// Moves all of `mails` into the mailbox and wakes the receiver if it may sleep.
    pub(crate) fn deliver(&self, from: usize, to: usize, mails: &mut Vec<M>) {
        let mailbox = &self.mailboxes[to];
        {
            let mut waiting = mailbox.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.senders.push((from, mails.len()));
            mailbox.senders[from].len.fetch_add(mails.len(), Ordering::Release);
            waiting.mails.append(mails);
        }
        self.wake(to);
    }

    /// Swaps everything that waits for `to` into the empty `mails`.
    pub(crate) fn collect(&self, to: usize, mails: &mut Mails<M>) {
        debug_assert!(mails.is_empty());
        let mailbox = &self.mailboxes[to];
        if mailbox.senders.iter().all(|sender| sender.len.load(Ordering::Acquire) == 0) {
            return;
        }
        {
            let mut waiting = mailbox.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *waiting, mails);
            for sender in &mailbox.senders {
                sender.len.store(0, Ordering::Release);
            }
        }
        for (from, sender) in mailbox.senders.iter().enumerate() {
            if sender.waits.load(Ordering::Acquire) && sender.waits.swap(false, Ordering::AcqRel) {
                self.wake(from);
            }
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
        let mut received = Mails::default();
        post.collect(1, &mut received);
        assert!(received.take().eq((0..CAPACITY).map(|mail| (0, mail))));
        assert!(received.is_empty());
        assert!(!post.is_full(0, 1, 0));
        assert!(post.awake[0].load(Ordering::Acquire), "the sender was woken when its mailbox was emptied");
    }

    #[test]
    fn what_came_first_is_taken_first_whoever_sent_it() {
        let post: Post<char> = Post::new(vec![None; 3]);
        for (from, mut batch) in [(1, vec!['a', 'b']), (0, vec!['c']), (1, vec!['d'])] {
            post.deliver(from, 2, &mut batch);
        }
        let mut received = Mails::default();
        post.collect(2, &mut received);
        assert_eq!(received.take().collect::<Vec<_>>(), [(1, 'a'), (1, 'b'), (0, 'c'), (1, 'd')]);
    }
}
