//! Frees large values on a thread of its own.
//!
//! A block of megabytes has pages of its own, and giving them back to the system takes milliseconds: longer than a turn
//! may take. So does freeing a request with a million strings. Shards therefore pass such values to a thread that does
//! nothing else, and that starts with the first of them. If it falls behind, the shard frees them itself, so that what
//! waits is bounded.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;

/// Size from which on freeing takes too long for a turn, bytes.
const LARGE_BYTES: usize = 1024 * 1024;
/// Values that may wait for the thread.
const WAITING_MAX: usize = 8;

/// Something to free.
type Discarded = Box<dyn Any + Send>;

/// Values on their way to the thread that frees them.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    /// `None` if the thread could not be started.
    sender: OnceLock<Option<SyncSender<Discarded>>>,
}

impl Discards {
    /// Frees a buffer, a large one not at once.
    #[inline]
    pub(crate) fn free(&self, buffer: Vec<u8>) {
        if buffer.capacity() >= LARGE_BYTES {
            self.free_later(Box::new(buffer));
        }
    }

    /// Frees a value that takes long to free.
    #[inline(never)]
    pub(crate) fn free_later(&self, value: Discarded) {
        if let Some(sender) = self.sender.get_or_init(start_thread) {
            // A value that finds no room comes back in the error, which frees it.
            drop(sender.try_send(value));
        }
    }
}

fn start_thread() -> Option<SyncSender<Discarded>> {
    let (sender, values) = sync_channel::<Discarded>(WAITING_MAX);
    // It ends with the last shard.
    let free_all = move || values.into_iter().for_each(drop);
    match Builder::new().name("discards".into()).spawn(free_all) {
        Ok(_) => Some(sender),
        Err(error) => {
            log::warn!("cannot start the thread that frees large values, so shards do: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_buffers_need_the_thread() {
        let discards = Discards::default();
        discards.free(vec![1; LARGE_BYTES - 1]);
        assert!(discards.sender.get().is_none());
        for _ in 0..10 * WAITING_MAX {
            discards.free(vec![1; LARGE_BYTES]);
        }
        assert!(matches!(discards.sender.get(), Some(Some(_))));
    }
}
