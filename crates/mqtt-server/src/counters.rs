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
    /// Messages dropped: queue or window full, reader too slow, too large for the client, nobody left to get it.
    publish_dropped,
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

impl Counters {
    /// Counts a PUBLISH that was sent, with its payload.
    #[inline]
    pub(crate) fn count_publish_sent(&mut self, payload_bytes: usize) {
        self.messages_sent += 1;
        self.publish_sent += 1;
        self.publish_bytes_sent += payload_bytes as u64;
    }
}
