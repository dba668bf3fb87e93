//! Counters of a shard, and their copies for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters once: as plain numbers for the shard itself, and as atomics for other threads.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of one shard, or sums over several.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)+ }

        /// Counters of one shard as of the end of its last turn.
        #[derive(Debug, Default)]
        pub(crate) struct Published { $($name: AtomicU64,)+ }

        impl Published {
            fn store(&self, counters: &Counters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)+
            }

            /// Stores counters if they have changed. Only the shard that they are of may do that.
            pub(crate) fn update(&self, counters: &Counters) {
                if $(self.$name.load(Ordering::Relaxed) != counters.$name)||+ {
                    self.store(counters);
                }
            }

            pub(crate) fn queued_messages(&self) -> u64 {
                self.queued_messages.load(Ordering::Relaxed)
            }

            pub(crate) fn load(&self) -> Counters {
                Counters { $($name: self.$name.load(Ordering::Relaxed),)+ }
            }
        }

        impl std::ops::AddAssign for Counters {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

counters! {
    /// Control packets of any type received.
    messages_received,
    /// Control packets of any type sent.
    messages_sent,
    /// Bytes received.
    bytes_received,
    /// Bytes sent.
    bytes_sent,
    /// PUBLISH packets received.
    publish_received,
    /// PUBLISH packets sent.
    publish_sent,
    /// Messages dropped because a queue was full: the client's, its session, or all queues together.
    dropped_queue_full,
    /// Messages at QoS 0 dropped because the client read too slowly.
    dropped_slow_reader,
    /// Messages at QoS 0 dropped because memory was short.
    dropped_memory,
    /// Messages dropped because the client takes no packets that large.
    dropped_too_large,
    /// Messages dropped because the rules did not allow to publish or to receive them.
    dropped_not_allowed,
    /// Messages dropped because they had expired.
    dropped_expired,
    /// Messages of shared subscriptions dropped because nobody was left to get them.
    dropped_no_receiver,
    /// Messages dropped because the broker could not take them: disk, memory, a quota, or what they were published to.
    dropped_refused,
    /// Messages of queues dropped because they could not be read from the disk.
    dropped_unreadable,
    /// Payload bytes of PUBLISH packets received.
    publish_bytes_received,
    /// Payload bytes of PUBLISH packets sent.
    publish_bytes_sent,
    /// Connections accepted.
    connections_accepted,
    /// Connections open now, before and after CONNECT.
    connections,
    /// Sessions with a connection now.
    clients_connected,
    /// Sessions now.
    sessions,
    /// Sessions that have expired.
    clients_expired,
    /// Subscriptions now, shared ones included.
    subscriptions,
    /// Shared subscriptions now: members of groups.
    shared_subscriptions,
    /// Messages queued for sessions now.
    queued_messages,
    /// Entries of journals and retained messages that were handed to the log.
    log_entries,
    /// Bytes of journals handed to the log.
    log_bytes,
    /// Turns whose entries were set on their way to the disk.
    log_commits,
    /// Times that the log refused or lost something that was to be kept.
    log_failures,
    /// Journals and logs of retained messages that cannot keep anything now.
    log_failing,
    /// Calls to the kernel that read.
    socket_reads,
    /// Calls to the kernel that write.
    socket_writes,
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A queue was full: the client's, its session, or all queues together.
    QueueFull,
    /// The client read too slowly, at QoS 0.
    SlowReader,
    /// Memory was short, at QoS 0.
    Memory,
    /// The client takes no packets that large.
    TooLarge,
    /// The rules do not allow to publish or to receive it.
    NotAllowed,
    /// It has expired.
    Expired,
    /// Nobody is left of a shared subscription.
    NoReceiver,
    /// The broker could not take it: disk, memory, a quota, or what it was published to.
    Refused,
    /// It cannot be read from the disk.
    Unreadable,
}

impl DropReason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::QueueFull,
        Self::SlowReader,
        Self::Memory,
        Self::TooLarge,
        Self::NotAllowed,
        Self::Expired,
        Self::NoReceiver,
        Self::Refused,
        Self::Unreadable,
    ];

    /// Name, as a value of a metric's label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::SlowReader => "slow_reader",
            Self::Memory => "memory",
            Self::TooLarge => "too_large",
            Self::NotAllowed => "not_allowed",
            Self::Expired => "expired",
            Self::NoReceiver => "no_receiver",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
        }
    }
}

impl Counters {
    /// Counts a message that was dropped.
    pub(crate) fn count_dropped(&mut self, reason: DropReason) {
        *self.dropped_mut(reason) += 1;
    }

    /// Messages dropped for a reason.
    pub fn dropped_for(mut self, reason: DropReason) -> u64 {
        *self.dropped_mut(reason)
    }

    /// Messages dropped for any reason.
    pub fn dropped(&self) -> u64 {
        DropReason::ALL.map(|reason| self.dropped_for(reason)).iter().sum()
    }

    fn dropped_mut(&mut self, reason: DropReason) -> &mut u64 {
        match reason {
            DropReason::QueueFull => &mut self.dropped_queue_full,
            DropReason::SlowReader => &mut self.dropped_slow_reader,
            DropReason::Memory => &mut self.dropped_memory,
            DropReason::TooLarge => &mut self.dropped_too_large,
            DropReason::NotAllowed => &mut self.dropped_not_allowed,
            DropReason::Expired => &mut self.dropped_expired,
            DropReason::NoReceiver => &mut self.dropped_no_receiver,
            DropReason::Refused => &mut self.dropped_refused,
            DropReason::Unreadable => &mut self.dropped_unreadable,
        }
    }

    /// Counts a PUBLISH that was sent, with its payload.
    #[inline]
    pub(crate) fn count_publish_sent(&mut self, payload_bytes: usize) {
        self.messages_sent += 1;
        self.publish_sent += 1;
        self.publish_bytes_sent += payload_bytes as u64;
    }
}
