//! Errors: one enum each for publishing, subscribing and receiving.
//!
//! A variant describes what the caller can do about it: correct the argument, stop, or raise a limit.

use std::fmt;

pub use mainstem_topic::TopicError;

/// Why a message was not published. No subscriber received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The topic is not a valid topic name.
    Topic(TopicError),
    /// The bus is closed, permanently.
    Closed,
    /// [`Builder::retained_max`](crate::Builder::retained_max) topics have a retained message, and this topic is not
    /// one of them. Clear one with [`Bus::clear_retained`](crate::Bus::clear_retained), or publish without retaining.
    RetainedFull,
    /// Callbacks publish from callbacks, more than [`MAX_NESTED`](crate::MAX_NESTED) levels deep. The usual cause is a
    /// callback that triggers itself; use a mailbox instead.
    Nested,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(error) => write!(f, "the topic {error}"),
            Self::Closed => f.write_str("the bus is closed"),
            Self::RetainedFull => f.write_str("no more topics can have a retained message"),
            Self::Nested => f.write_str("callbacks publish from callbacks too deeply"),
        }
    }
}

impl std::error::Error for PublishError {}

impl From<TopicError> for PublishError {
    fn from(error: TopicError) -> Self {
        Self::Topic(error)
    }
}

/// Why a subscribe call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The topic filter or share name is invalid.
    Filter(TopicError),
    /// The bus is closed, permanently.
    Closed,
    /// The capacity is 0 or exceeds [`MAX_CAPACITY`](crate::MAX_CAPACITY).
    Capacity,
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(error) => write!(f, "the topic filter {error}"),
            Self::Closed => f.write_str("the bus is closed"),
            Self::Capacity => f.write_str("the capacity is 0 or too large"),
        }
    }
}

impl std::error::Error for SubscribeError {}

impl From<TopicError> for SubscribeError {
    fn from(error: TopicError) -> Self {
        Self::Filter(error)
    }
}

/// Why a receive call returned no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// This many messages were dropped since the previous call. Only for subscriptions with
    /// [`report_lag`](crate::Subscribe::report_lag); the next call continues with the messages that are left.
    Lagged(u64),
    /// The bus is closed, and all queued messages have been received.
    Closed,
    /// All queued messages have been received, and the subscription overflowed with the policy
    /// [`Overflow::Disconnect`](crate::Overflow::Disconnect).
    Disconnected,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lagged(dropped) => write!(f, "the subscription lagged: {dropped} messages were dropped"),
            Self::Closed => f.write_str("the bus is closed"),
            Self::Disconnected => f.write_str("the subscription overflowed and was ended"),
        }
    }
}

impl std::error::Error for RecvError {}

impl RecvError {
    /// Whether the subscription has ended.
    pub(crate) const fn is_end(self) -> bool {
        !matches!(self, Self::Lagged(_))
    }
}

/// Why [`Mailbox::try_recv`](crate::Mailbox::try_recv) returned no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryRecvError {
    /// The queue is empty; messages may still arrive.
    Empty,
    /// See [`RecvError::Lagged`].
    Lagged(u64),
    /// See [`RecvError::Closed`].
    Closed,
    /// See [`RecvError::Disconnected`].
    Disconnected,
}

impl fmt::Display for TryRecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("no message is queued"),
            Self::Lagged(dropped) => RecvError::Lagged(dropped).fmt(f),
            Self::Closed => RecvError::Closed.fmt(f),
            Self::Disconnected => RecvError::Disconnected.fmt(f),
        }
    }
}

impl std::error::Error for TryRecvError {}

impl From<RecvError> for TryRecvError {
    fn from(error: RecvError) -> Self {
        match error {
            RecvError::Lagged(dropped) => Self::Lagged(dropped),
            RecvError::Closed => Self::Closed,
            RecvError::Disconnected => Self::Disconnected,
        }
    }
}
