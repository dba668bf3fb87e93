//! Statistics of a bus, and the counters behind them.
//!
//! Each subscription counts its own drops and failures. When it ends, its counts are added to the totals of the bus, so
//! the sums never decrease.

use crate::options::{Options, Overflow};
use crate::sync::{AtomicU64, Ordering};

/// The result of a publish: how many subscriptions got the message. For a batch, the sum over its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Subscriptions that got the message: their callback has run, or the message is queued for their reader.
    pub delivered: usize,
    /// Messages dropped by overflow policies: this one or, with `DropOldest`, older ones in its place.
    pub dropped: usize,
    /// Callbacks that got the message and failed with an error or a panic.
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
    /// By a callback on the publisher's thread.
    Callback,
    /// Through a [`Mailbox`](crate::Mailbox).
    Mailbox,
    /// Through a [`Cursor`](crate::Cursor).
    Cursor,
}

/// Statistics of one subscription.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriptionStats {
    /// Id of the subscription, unique within the bus and never reused.
    pub id: u64,
    /// Filter of the subscription, including `$share/<group>/` for a group member.
    pub filter: String,
    /// How the subscription is consumed.
    pub kind: Kind,
    /// Maximum number of queued messages.
    pub capacity: usize,
    /// Policy for messages beyond the capacity.
    pub overflow: Overflow,
    /// Number of queued messages, including replayed ones. For a callback in a group, the number of runs in progress.
    pub lag: usize,
    /// Number of messages dropped by the overflow policy.
    pub dropped: u64,
    /// Number of failed runs of the callback.
    pub failed: u64,
    /// Whether [`Overflow::Disconnect`] has ended the subscription.
    pub is_disconnected: bool,
}

/// Statistics of a bus, see [`Bus::stats`](crate::Bus::stats).
///
/// The values are not an atomic snapshot: they are read one by one while other threads publish.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BusStats {
    /// Number of messages published since the bus was created.
    pub published: u64,
    /// Number of distinct topic filters with at least one subscription.
    pub filters: usize,
    /// Number of topics with a retained message.
    pub retained: usize,
    /// Number of messages delivered but not yet received: the sum of [`SubscriptionStats::lag`].
    pub in_flight: usize,
    /// Number of messages dropped by overflow policies, including those of ended subscriptions.
    pub dropped: u64,
    /// Number of messages that were queued for a subscription when it was dropped, and that no other member of its
    /// group took over.
    pub abandoned: u64,
    /// Number of failed callback runs, including those of ended subscriptions.
    pub failed: u64,
    /// Statistics of each subscription, ordered by id.
    pub subscriptions: Vec<SubscriptionStats>,
}

/// Counters of the bus as a whole.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) abandoned: AtomicU64,
    /// Drops of ended subscriptions.
    pub(crate) past_dropped: AtomicU64,
    /// Failures of ended subscriptions.
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

    /// Adds the counts of a subscription that ends.
    pub(crate) fn add_ended(&self, info: &SubscriptionInfo, abandoned: u64) {
        self.past_dropped.fetch_add(info.dropped.load(Ordering::Relaxed), Ordering::Relaxed);
        self.past_failed.fetch_add(info.failed.load(Ordering::Relaxed), Ordering::Relaxed);
        self.abandoned.fetch_add(abandoned, Ordering::Relaxed);
    }

    pub(crate) fn new() -> Self {
        Self { abandoned: AtomicU64::new(0), past_dropped: AtomicU64::new(0), past_failed: AtomicU64::new(0) }
    }
}

/// Identity, options and counters of one subscription of any kind.
#[derive(Debug)]
pub(crate) struct SubscriptionInfo {
    pub(crate) id: u64,
    /// Includes `$share/<group>/`.
    pub(crate) filter: Box<str>,
    pub(crate) options: Options,
    pub(crate) dropped: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl SubscriptionInfo {
    pub(crate) fn new(id: u64, filter: &str, options: Options) -> Self {
        let (dropped, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { id, filter: filter.into(), options, dropped, failed }
    }

    pub(crate) fn count_dropped(&self, messages: usize) {
        if messages > 0 {
            self.dropped.fetch_add(messages as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self, kind: Kind, backlog: Backlog) -> SubscriptionStats {
        SubscriptionStats {
            id: self.id,
            filter: self.filter.to_string(),
            kind,
            capacity: self.options.capacity,
            overflow: self.options.overflow,
            lag: backlog.lag,
            dropped: self.dropped.load(Ordering::Relaxed) + backlog.missed,
            failed: self.failed.load(Ordering::Relaxed),
            is_disconnected: backlog.is_disconnected,
        }
    }
}

/// Messages queued for a subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backlog {
    pub(crate) lag: usize,
    /// Messages missed by a cursor that are not yet counted in `dropped`.
    pub(crate) missed: u64,
    pub(crate) is_disconnected: bool,
}
