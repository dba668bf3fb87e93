//! What can be seen of a bus from outside, and the counters behind it.

use crate::options::{Options, Overflow};
use crate::sync::{AtomicU64, Ordering};

/// Where a published message went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Subscriptions that got it: a callback has run, or it waits for its receiver.
    pub delivered: usize,
    /// Messages that an overflow policy dropped because of this one, be it this one or the oldest.
    pub dropped: usize,
    /// Callbacks that got it and failed: with an error, or with a panic.
    pub failed: usize,
}

impl std::ops::AddAssign for Delivered {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.failed += other.failed;
    }
}

/// How a subscription is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Its callback is run by publishers.
    Callback,
    /// A [`Mailbox`](crate::Mailbox).
    Mailbox,
    /// A [`Cursor`](crate::Cursor).
    Cursor,
}

/// One subscription, as [`Bus::stats`](crate::Bus::stats) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Its number, which no other subscription of this bus ever has.
    pub id: u64,
    /// What it subscribed to, with `$share/<group>/` where it is shared.
    pub filter: String,
    /// How it is consumed.
    pub kind: Kind,
    /// The most messages that wait for it; callbacks have none waiting.
    pub capacity: usize,
    /// What happens beyond that.
    pub overflow: Overflow,
    /// Messages that wait for it, replayed ones among them.
    pub lag: usize,
    /// Messages that its overflow policy has dropped.
    pub dropped: u64,
    /// Times its callback has failed.
    pub failed: u64,
    /// Whether its overflow policy has ended it.
    pub is_disconnected: bool,
}

/// A bus, as [`Bus::stats`](crate::Bus::stats) found it. Taken piece by piece while others publish, so the numbers need
/// not agree to the message.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BusStats {
    /// Messages published since the bus was made.
    pub published: u64,
    /// Topic filters with a subscriber.
    pub filters: usize,
    /// Topics with a retained message.
    pub retained: usize,
    /// Messages that wait for a receiver: the sum of all lags.
    pub in_flight: usize,
    /// Messages that overflow policies have dropped, of subscriptions that are gone, too.
    pub dropped: u64,
    /// Messages that waited for a subscriber when it unsubscribed, and that no other member of its group took.
    pub abandoned: u64,
    /// Times a callback has failed, of subscriptions that are gone, too.
    pub failed: u64,
    /// Each subscription, in the order of their numbers.
    pub subscriptions: Vec<SubscriptionStats>,
}

/// What is counted for the bus as a whole.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) abandoned: AtomicU64,
    /// Drops of subscriptions that are gone.
    pub(crate) past_dropped: AtomicU64,
    /// Failures of subscriptions that are gone.
    pub(crate) past_failed: AtomicU64,
}

impl Totals {
    pub(crate) fn read(&self) -> BusStats {
        BusStats {
            abandoned: self.abandoned.load(Ordering::Relaxed),
            dropped: self.past_dropped.load(Ordering::Relaxed),
            failed: self.past_failed.load(Ordering::Relaxed),
            ..BusStats::default()
        }
    }

    /// Takes over what was counted for a subscription that goes.
    pub(crate) fn note_end(&self, profile: &Profile, abandoned: u64) {
        self.past_dropped.fetch_add(profile.dropped.load(Ordering::Relaxed), Ordering::Relaxed);
        self.past_failed.fetch_add(profile.failed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.abandoned.fetch_add(abandoned, Ordering::Relaxed);
    }

    pub(crate) fn new() -> Self {
        Self { abandoned: AtomicU64::new(0), past_dropped: AtomicU64::new(0), past_failed: AtomicU64::new(0) }
    }
}

/// What is known of one subscription, whatever its kind.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) id: u64,
    /// As it was subscribed to, `$share/<group>/` included.
    pub(crate) filter: Box<str>,
    pub(crate) options: Options,
    pub(crate) dropped: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Profile {
    pub(crate) fn new(id: u64, filter: &str, options: Options) -> Self {
        let (dropped, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { id, filter: filter.into(), options, dropped, failed }
    }

    pub(crate) fn count_dropped(&self, messages: usize) {
        if messages > 0 {
            self.dropped.fetch_add(messages as u64, Ordering::Relaxed);
        }
    }

    /// `waiting` and `dropped` are what its kind knows beyond the counters here.
    pub(crate) fn stats(&self, kind: Kind, waiting: Waiting) -> SubscriptionStats {
        SubscriptionStats {
            id: self.id,
            filter: self.filter.to_string(),
            kind,
            capacity: self.options.capacity,
            overflow: self.options.overflow,
            lag: waiting.lag,
            dropped: self.dropped.load(Ordering::Relaxed) + waiting.missed,
            failed: self.failed.load(Ordering::Relaxed),
            is_disconnected: waiting.is_disconnected,
        }
    }
}

/// What waits for a subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) lag: usize,
    /// Messages it has missed and not yet counted.
    pub(crate) missed: u64,
    pub(crate) is_disconnected: bool,
}
