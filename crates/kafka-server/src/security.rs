//! Users and rules as the host of the server provides them, and its answers, which come from other threads.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_queue_server::Wake;
use mainstem_security::{Change, ChangeError, LogInResult, SecurityHost};

use crate::pending::AfterSecurityChange;
use crate::shard_message::Caller;

/// What the host of the server provides.
#[derive(Clone)]
pub struct Security {
    /// Users and rules.
    pub host: Arc<dyn SecurityHost>,
    /// A secret that should survive a restart: what unknown users are told in a log-in depends on it.
    pub unknown_user_secret: [u8; 32],
}

/// Shows no secret.
impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Security").finish_non_exhaustive()
    }
}

/// An answer of the host.
#[derive(Debug)]
pub(crate) enum SecurityReply {
    /// A password has been checked.
    LogIn { caller: Caller, result: LogInResult },
    /// Users or rules have been changed.
    Changed { after: AfterSecurityChange, result: Result<Vec<Change>, ChangeError> },
}

/// Answers of the host that the shards have not taken.
pub(crate) struct SecurityReplies(Vec<Replies>);

#[derive(Default)]
struct Replies {
    /// Saves the lock in turns without answers.
    has_any: AtomicBool,
    waiting: Mutex<Vec<SecurityReply>>,
    wake: Mutex<Option<Wake>>,
}

impl fmt::Debug for SecurityReplies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecurityReplies")
    }
}

impl SecurityReplies {
    pub(crate) fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| Replies::default()).collect())
    }

    pub(crate) fn bind_wake(&self, shard: usize, wake: Wake) {
        *self.0[shard].wake.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake);
    }

    /// Adds an answer and wakes the shard. There is at most one for each request in flight.
    pub(crate) fn push(&self, shard: usize, reply: SecurityReply) {
        let replies = &self.0[shard];
        replies.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
        replies.has_any.store(true, Ordering::Release);
        let wake = replies.wake.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// Takes the answers for a shard.
    pub(crate) fn take(&self, shard: usize) -> Vec<SecurityReply> {
        let replies = &self.0[shard];
        if !replies.has_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        replies.has_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut replies.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
