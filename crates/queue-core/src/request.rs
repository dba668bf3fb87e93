//! Requests to the owner of a queue, and its replies.
//!
//! MQTT, HTTP and bindings send the same requests, and the embedded library uses them for calls of operators, so that a
//! queue behaves alike whichever way a message or a consumer comes. A request is for one queue and names no protocol.
//! Each gets one [`Reply`], after the state that the reply promises is durable; requests about several messages get a
//! result per message, in order.
//!
//! The records of messages are not copied on the way to a consumer: a [`Payload`] is a place in a batch that all
//! deliveries from it share.

use std::fmt;
use std::sync::Arc;

use mainstem_log::{Batch, BatchHeader, Compression, HEADER_BYTES, Record, Records, ValidBatch, repack};

/// Name of a group.
pub type GroupName = Arc<str>;

/// The group of consumers that name none. Every new queue has it.
pub const DEFAULT_GROUP: &str = "default";

/// A message to send to a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// Messages with the same key are delivered one after the other.
    pub key: Option<Vec<u8>>,
    /// Value.
    pub value: Vec<u8>,
    /// Headers encoded as in [`Record::headers`], with their count first; empty for none.
    pub headers: Vec<u8>,
}

/// The receipt of a delivery, which settles it. Each redelivery of a message has another receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// Offset of the message.
    pub offset: u64,
    /// Delivery attempt in the group, starting at 1.
    pub count: u32,
    /// Incarnation of the queue: a crash may forget a delivery, and the next one gets the same count.
    pub incarnation: u32,
}

/// The consumer's decision on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The message is processed.
    Ack,
    /// Negative acknowledgement: redeliver after this delay in ms, or after the backoff of the queue.
    Nack(Option<u64>),
    /// The message can never be processed: it becomes a dead letter.
    Reject,
    /// The consumer has disconnected without a decision: redeliver at once.
    Release,
    /// The consumer never received the message: redeliver at once, and do not count the delivery.
    Unsent,
    /// The lease ends this many ms from now.
    Extend(u64),
}

/// Settles one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The delivery.
    pub receipt: Receipt,
    /// The decision.
    pub disposition: Disposition,
}

/// Why a message leaves its queue for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// It reached the limit of deliveries.
    MaxDeliveries,
    /// It was not settled in time.
    Expired,
    /// The queue was full, and this was the oldest message.
    Overflow,
    /// An operator moved it back to the queue that it came from.
    Redriven,
}

impl Reason {
    /// The name in headers, APIs and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::MaxDeliveries => "max-deliveries",
            Self::Expired => "expired",
            Self::Overflow => "overflow",
            Self::Redriven => "redriven",
        }
    }
}

/// An uncompressed record batch, in memory that it shares with its messages.
#[derive(Clone, Debug)]
pub struct UncompressedBatch {
    bytes: Arc<[u8]>,
}

impl UncompressedBatch {
    /// A copy of a batch. `None` if it is compressed.
    pub fn copy(batch: &Batch<'_>) -> Option<Self> {
        (batch.header.compression() == Compression::None).then(|| Self { bytes: batch.bytes().into() })
    }

    /// A copy of a batch as it is stored at this offset. `None` if it is compressed.
    pub(crate) fn placed(batch: ValidBatch<'_>, base_offset: u64) -> Option<Self> {
        let mut plain = Self::copy(&batch.batch())?;
        Batch::place(Arc::get_mut(&mut plain.bytes)?, base_offset, 0);
        Some(plain)
    }

    /// A batch with this header and these records, which are its own ones decompressed.
    pub(crate) fn unpacked(header: &BatchHeader, records: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + records.len());
        repack(header, Compression::None, records, &mut bytes);
        Self { bytes: bytes.into() }
    }

    /// The header.
    ///
    /// # Panics
    /// Never: the constructors parse it.
    pub fn header(&self) -> BatchHeader {
        BatchHeader::parse(&self.bytes).expect("the constructors parse it")
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The records.
    pub fn records(&self) -> Records<'_> {
        Records::of(self.header(), &self.bytes[HEADER_BYTES..])
    }
}

/// The record of a message, in memory that it shares with its batch.
#[derive(Clone, Debug)]
pub struct Payload {
    batch: UncompressedBatch,
    /// Position of the record in the batch.
    at: u32,
}

impl Payload {
    /// The first record of a batch. `None` if it has no valid one.
    pub fn first(batch: &UncompressedBatch) -> Option<Self> {
        Self::new(batch, HEADER_BYTES)
    }

    /// The record at byte `at` of a batch, counted from its header. `None` if it is invalid.
    pub(crate) fn new(batch: &UncompressedBatch, at: usize) -> Option<Self> {
        let payload = Self { batch: batch.clone(), at: u32::try_from(at).ok()? };
        payload.find().is_some().then_some(payload)
    }

    /// The only record of a batch that was parsed before.
    pub(crate) fn only(batch: &UncompressedBatch) -> Self {
        Self { batch: batch.clone(), at: HEADER_BYTES as u32 }
    }

    /// The record at `offset`, if it is the first one of the batch.
    pub(crate) fn first_at(batch: &UncompressedBatch, offset: u64) -> Option<Self> {
        let payload = Self { batch: batch.clone(), at: HEADER_BYTES as u32 };
        payload.find().is_some_and(|record| record.offset == offset).then_some(payload)
    }

    fn find(&self) -> Option<Record<'_>> {
        Records::resume(self.batch.header(), self.batch.bytes.get(self.at as usize..)?, 1).next()?.ok()
    }

    /// The header of its batch.
    pub fn batch_header(&self) -> BatchHeader {
        self.batch.header()
    }

    /// The record.
    ///
    /// # Panics
    /// Never: the constructors parse it.
    pub fn record(&self) -> Record<'_> {
        self.find().expect("the constructors parse it")
    }

    /// The value; empty if the record has none.
    pub fn value(&self) -> &[u8] {
        self.record().value.unwrap_or_default()
    }
}

/// A message as returned by a peek, which does not lease it.
#[derive(Clone, Debug)]
pub struct PeekedMessage {
    /// Offset of the message.
    pub offset: u64,
    /// Number of deliveries in the group.
    pub count: u32,
    /// `ready`, `leased`, `delayed`, `blocked` or `leaving`.
    pub state: &'static str,
    /// The record.
    pub payload: Payload,
}

/// A message delivered to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The receipt that settles it.
    pub receipt: Receipt,
    /// Time of the first delivery, in ms since 1970.
    pub first_delivered_ms: u64,
    /// End of the lease, in ms since 1970.
    pub lease_until_ms: u64,
    /// The record: key, value, headers, and time of arrival.
    pub payload: Payload,
}

/// A request to one queue.
#[derive(Clone, Debug)]
pub enum Request {
    /// Sends messages. Answered by [`Reply::Sent`] when they are as durable as the queue is configured.
    Send(Vec<NewMessage>),
    /// Receives messages. Answered by [`Reply::Received`], which is empty if none came in time.
    Receive {
        /// The group, which is created if it does not exist.
        group: GroupName,
        /// The consumer: a number that no other consumer has. A consumer has one request at a time: a newer one ends
        /// the older one.
        consumer: u64,
        /// Limit of messages.
        max: u32,
        /// Bytes after which no further message is added.
        bytes_max: usize,
        /// Duration of the leases in ms. `None` for the lease time of the queue.
        lease_ms: Option<u64>,
        /// How long to wait for the first message in ms; `u64::MAX` for no limit.
        wait_ms: u64,
    },
    /// The consumer stops receiving: its [`Request::Receive`] is answered at once, and another consumer may become
    /// the active one. It keeps its leases. Answered by [`Reply::Done`].
    Leave {
        /// The group.
        group: GroupName,
        /// The consumer.
        consumer: u64,
    },
    /// Ends the wait of a consumer: its [`Request::Receive`] is answered at once. It may still remain the active
    /// consumer for the lease time of the queue. Answered by [`Reply::Done`].
    StopWaiting {
        /// The group.
        group: GroupName,
        /// The consumer.
        consumer: u64,
    },
    /// Settles deliveries. Answered by [`Reply::Settled`] when that is as durable as the queue is configured.
    Settle {
        /// The group.
        group: GroupName,
        /// The deliveries with the consumer's decisions.
        settlements: Vec<Settlement>,
    },
    /// Returns unsettled messages in order, without leasing them. Answered by [`Reply::Peeked`], which may not have
    /// all of them.
    Peek {
        /// The group whose view is returned.
        group: GroupName,
        /// The lowest offset to return.
        from: u64,
        /// Limit of messages.
        max: u32,
    },
    /// Returns information on the queue. Answered by [`Reply::Info`].
    Info,
    /// Settles all messages that are durable now, leased ones included. Answered by [`Reply::Count`] when that is
    /// durable; until then consumers may still get some of them.
    Purge {
        /// The group; `None` for all groups.
        group: Option<GroupName>,
    },
    /// Moves dead letters back to the queues that they came from. Answered by [`Reply::Redriven`].
    Redrive {
        /// Limit of messages.
        max: u64,
    },
    /// Makes messages pending again in a group: all from `from` on that are still on disk. Answered by
    /// [`Reply::Count`].
    Replay {
        /// The group.
        group: GroupName,
        /// The first message.
        from: ReplayFrom,
    },
    /// Removes a group. Answered by [`Reply::Done`].
    RemoveGroup {
        /// The group.
        group: GroupName,
    },
    /// Creates the queue. Settings are those of [`crate::Config`] and `durability`. Answered by [`Reply::Done`], also
    /// if the queue exists with the same settings.
    Create {
        /// Key and value.
        settings: Vec<(String, String)>,
    },
    /// Changes some settings. Answered by [`Reply::Done`].
    Configure {
        /// Key and value.
        settings: Vec<(String, String)>,
    },
    /// Removes the queue and its messages. Answered by [`Reply::Done`].
    Delete,
}

/// The start of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// An offset.
    Offset(u64),
    /// The first message at or after this time, in ms since 1970.
    Time(u64),
}

/// The result for one item of a request.
pub type ItemResult<T> = Result<T, QueueError>;

/// The reply to a [`Request`].
#[derive(Clone, Debug)]
pub enum Reply {
    /// The offset of each message, in order.
    Sent(Vec<ItemResult<u64>>),
    /// The messages.
    Received(Vec<Delivery>),
    /// The result of each settlement, in order.
    Settled(Vec<ItemResult<()>>),
    /// The messages.
    Peeked(Vec<PeekedMessage>),
    /// The information.
    Info(Box<Info>),
    /// Number of messages.
    Count(u64),
    /// The result of a redrive.
    Redriven(Redriven),
    /// The request is complete.
    Done,
    /// The request failed as a whole.
    Refused(QueueError),
}

/// The result of a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Dead letters that leave for the queues they came from.
    pub moved: u64,
    /// Dead letters that stay, because a consumer holds them or an earlier message of their key.
    pub skipped: u64,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// No queue has this name.
    UnknownQueue,
    /// The topic with this name is not a queue.
    NotAQueue,
    /// No group has this name.
    UnknownGroup,
    /// A queue with this name exists and has other settings.
    Exists,
    /// The queue is full.
    Full,
    /// The message exceeds the size limit.
    TooLarge {
        /// The limit in bytes.
        most: usize,
    },
    /// The consumer does not hold the message any more: its lease has ended, or it is settled.
    Stale,
    /// The request is invalid or contradicts the settings of the queue. Explanation in words.
    Invalid(String),
    /// The limit of groups, consumers or queues is reached.
    TooMany,
    /// The store cannot write. The request can be repeated.
    Storage,
    /// The broker is overloaded or shuts down. The request can be repeated.
    Busy,
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownQueue => f.write_str("there is no such queue"),
            Self::NotAQueue => f.write_str("the topic with this name is not a queue"),
            Self::UnknownGroup => f.write_str("there is no such group"),
            Self::Exists => f.write_str("a queue with this name has other settings"),
            Self::Full => f.write_str("the queue is full"),
            Self::TooLarge { most } => write!(f, "the message is larger than {most} bytes"),
            Self::Stale => f.write_str("the lease has ended or the message is settled"),
            Self::Invalid(what) => f.write_str(what),
            Self::TooMany => f.write_str("the limit of groups, consumers or queues is reached"),
            Self::Storage => f.write_str("the store cannot write"),
            Self::Busy => f.write_str("the broker is busy"),
        }
    }
}

impl std::error::Error for QueueError {}

/// Information on a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info {
    /// Name.
    pub name: String,
    /// Settings by key.
    pub settings: Vec<(String, String)>,
    /// Messages that some group has not settled.
    pub messages: u64,
    /// Total size of these messages in bytes.
    pub bytes: u64,
    /// When the oldest of them arrived, in ms since 1970.
    pub oldest_ms: Option<u64>,
    /// Messages dropped as duplicates.
    pub duplicates: u64,
    /// Groups, sorted by name.
    pub groups: Vec<GroupInfo>,
}

/// Information on a group. Counts are since the start of the broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupInfo {
    /// Name.
    pub name: String,
    /// Messages that can be delivered now.
    pub ready: u64,
    /// Leased messages.
    pub leased: u64,
    /// Messages that are not due yet.
    pub delayed: u64,
    /// Messages that wait for earlier ones with the same key.
    pub blocked: u64,
    /// Messages on their way to another queue.
    pub leaving: u64,
    /// When the oldest message arrived, in ms since 1970.
    pub oldest_ms: Option<u64>,
    /// Consumers that wait for messages.
    pub waiting: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Deliveries that were not the first of their message.
    pub redelivered: u64,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Deliveries that failed.
    pub nacked: u64,
    /// Messages that left as dead letters, or were dropped because the queue keeps none.
    pub dead: u64,
}
