//! What can go wrong, for each of the three things a caller can do: publish, subscribe, receive.

use std::fmt;

pub use mainstem_topic::TopicError;

/// Why a message was not published. It went to nobody, unless the variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishError {
    /// The topic is none: choose another.
    Topic(TopicError),
    /// The bus is closed: stop.
    Closed,
    /// As many topics as [`Builder::retained_max`](crate::Builder::retained_max) have a retained message, and this one
    /// has none: clear one, or publish without retaining.
    RetainedFull,
    /// Callbacks have published from callbacks, [`MAX_NESTED`](crate::MAX_NESTED) deep: most likely one reacts to
    /// itself. Use a mailbox there.
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

/// Why there is no subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The filter is none: choose another.
    Filter(TopicError),
    /// The bus is closed: stop.
    Closed,
    /// A capacity of 0, or above [`MAX_CAPACITY`](crate::MAX_CAPACITY).
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

/// Why a subscriber gets no more messages; what came before has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// The bus is closed.
    Closed,
    /// The subscription overflowed, and asked to be ended then: [`Overflow::Disconnect`](crate::Overflow::Disconnect).
    Disconnected,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the bus is closed",
            Self::Disconnected => "the subscription overflowed and was ended",
        })
    }
}

impl std::error::Error for RecvError {}
