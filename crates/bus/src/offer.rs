//! What becomes of a message that is offered to a subscription.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::event::SharedMessage;
use crate::stats::Delivered;

/// Messages and chunks displaced from a full subscription. Dropping a payload runs user code, so they are collected
/// here and dropped after all locks are released.
pub(crate) struct DeferredDrops<T> {
    pub(crate) messages: Vec<Arc<SharedMessage<T>>>,
    pub(crate) chunks: Vec<Arc<Chunk<T>>>,
}

impl<T> DeferredDrops<T> {
    pub(crate) const fn new() -> Self {
        Self { messages: Vec::new(), chunks: Vec::new() }
    }
}

/// Result of a non-blocking append of one message.
pub(crate) enum OfferResult {
    /// The message was accepted, or dropped by the overflow policy.
    Done(Delivered),
    /// There is no room, and the overflow policy is `Block`.
    Full,
    /// The subscription has ended.
    Ended,
}
