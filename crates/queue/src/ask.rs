//! What doors say to whoever has a queue, and hear from it.

use std::fmt;
use std::sync::Arc;

use mainstem_log::{Batch, BatchHeader, Compression, HEADER_BYTES, Record, Records, Sound, repack};

/// Name of a group.
pub type GroupName = Arc<str>;

/// The group of consumers that name none. Every queue has it.
pub const DEFAULT_GROUP: &str = "default";

/// A message to be put into a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// Messages with the same key are delivered one after the other.
    pub key: Option<Vec<u8>>,
    /// What it says.
    pub value: Vec<u8>,
    /// Headers as [`Record::headers`] has them, their count first; or nothing for none.
    pub headers: Vec<u8>,
}

/// What a consumer settles a message with: which one, and which delivery of it this was. A message that has
/// been delivered again in the meantime has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt {
    /// Place of the message in its queue.
    pub offset: u64,
    /// Number of the delivery in its group, from 1 on.
    pub count: u32,
    /// In which life of the queue it was delivered: a crash may forget that, and the next delivery has its number.
    pub life: u32,
}

/// What becomes of a message that a consumer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Ack,
    /// It failed: it is delivered again after this time in ms, or after the queue's backoff.
    Nack(Option<u64>),
    /// It is not worth another try: it becomes a dead letter.
    Reject,
    /// Nobody has tried, or nobody knows: its consumer is gone. It is delivered again at once.
    Release,
    /// Its consumer never saw it: it is delivered again at once, and that counts as no delivery.
    Unsent,
    /// The consumer needs more time, so many ms from now on.
    Extend(u64),
}

/// A verdict on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Which one.
    pub receipt: Receipt,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// Why a message left its queue for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A consumer has rejected it.
    Rejected,
    /// It was delivered as often as the queue allows.
    MaxDeliveries,
    /// It was not settled in time.
    Expired,
    /// The queue was full, and it was the oldest.
    Overflow,
    /// An operator has sent it back to where it came from.
    Redriven,
}

impl Reason {
    /// As headers, interfaces and logs have it.
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

/// A record batch that is not compressed, in memory that is shared with the messages that are parts of it.
#[derive(Clone, Debug)]
pub struct Plain {
    bytes: Arc<[u8]>,
}

impl Plain {
    /// A copy of a batch; nothing if that is compressed.
    pub fn copy(batch: &Batch<'_>) -> Option<Self> {
        (batch.header.compression() == Compression::None).then(|| Self { bytes: batch.bytes().into() })
    }

    /// A copy of a batch, as it stands at an offset of its log; nothing if it is compressed.
    pub(crate) fn placed(batch: Sound<'_>, base_offset: u64) -> Option<Self> {
        let mut plain = Self::copy(&batch.batch())?;
        Batch::place(Arc::get_mut(&mut plain.bytes)?, base_offset, 0);
        Some(plain)
    }

    /// The batch of that header with these records in place of its own: the same ones, decompressed.
    pub(crate) fn unpacked(header: &BatchHeader, records: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + records.len());
        repack(header, Compression::None, records, &mut bytes);
        Self { bytes: bytes.into() }
    }

    /// Its header.
    ///
    /// # Panics
    /// Never: it was read when this was made.
    pub fn header(&self) -> BatchHeader {
        BatchHeader::parse(&self.bytes).expect("it was read when this was made")
    }

    /// All its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its records.
    pub fn records(&self) -> Records<'_> {
        Records::of(self.header(), &self.bytes[HEADER_BYTES..])
    }
}

/// The record of a message, in the memory that it shares with those of its batch.
#[derive(Clone, Debug)]
pub struct Payload {
    batch: Plain,
    /// Where in the batch it begins, bytes.
    at: u32,
}

impl Payload {
    /// The first record of a batch; nothing if there is none.
    pub fn first(batch: &Plain) -> Option<Self> {
        Self::new(batch, HEADER_BYTES)
    }

    /// The record at byte `at` of a batch, its header included; nothing if there is none.
    pub(crate) fn new(batch: &Plain, at: usize) -> Option<Self> {
        let payload = Self { batch: batch.clone(), at: u32::try_from(at).ok()? };
        payload.find().is_some().then_some(payload)
    }

    /// The only record of a batch, which has been read.
    pub(crate) fn only(batch: &Plain) -> Self {
        Self { batch: batch.clone(), at: HEADER_BYTES as u32 }
    }

    /// The record at `offset`, if it is the first one of a batch.
    pub(crate) fn first_at(batch: &Plain, offset: u64) -> Option<Self> {
        let payload = Self { batch: batch.clone(), at: HEADER_BYTES as u32 };
        payload.find().is_some_and(|record| record.offset == offset).then_some(payload)
    }

    fn find(&self) -> Option<Record<'_>> {
        Records::resume(self.batch.header(), self.batch.bytes.get(self.at as usize..)?, 1).next()?.ok()
    }

    /// The header of the batch it is part of.
    pub fn batch_header(&self) -> BatchHeader {
        self.batch.header()
    }

    /// The record.
    ///
    /// # Panics
    /// Never: it was read when this was made.
    pub fn record(&self) -> Record<'_> {
        self.find().expect("it was there when this was made")
    }
}

/// A message as people look at it, without taking it.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its place.
    pub offset: u64,
    /// How often it has been delivered in the group.
    pub count: u32,
    /// `ready`, `leased`, `delayed`, `blocked` or `leaving`.
    pub state: &'static str,
    /// Its record.
    pub payload: Payload,
}

/// A message for a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What to settle it with.
    pub receipt: Receipt,
    /// When it was delivered for the first time, ms since 1970.
    pub first_delivered_ms: u64,
    /// Until when the consumer has it, ms since 1970.
    pub lease_until_ms: u64,
    /// Its record: key, value, headers, and when it came.
    pub payload: Payload,
}

/// What a door wants of one queue.
#[derive(Clone, Debug)]
pub enum Request {
    /// Put messages into it. Answered by [`Reply::Sent`] when they are as durable as the queue is set to.
    Send(Vec<NewMessage>),
    /// Take messages. Answered by [`Reply::Received`], which is empty if none came in time.
    Receive {
        /// Of which group; it is made if it is not there.
        group: GroupName,
        /// Who takes them: a number that nobody else has. A consumer has one request under way: at a desk of the
        /// broker, a newer one of the same consumer ends the older.
        consumer: u64,
        /// Most messages.
        max: u32,
        /// Bytes after which no further message is added.
        bytes_max: usize,
        /// How long the consumer has them; the queue's own time if it says nothing.
        lease_ms: Option<u64>,
        /// How long to wait for the first message; `u64::MAX` for ever.
        wait_ms: u64,
    },
    /// A consumer takes no more: its [`Request::Receive`] is answered at once, another may become the active one.
    /// Answered by [`Reply::Done`]. What it has it keeps until it settles that or the lease ends.
    Leave {
        /// Its group.
        group: GroupName,
        /// Who.
        consumer: u64,
    },
    /// A consumer waits no longer: its [`Request::Receive`] is answered at once. It has asked until now, and so stays the
    /// active consumer as long as any other that is silent. Answered by [`Reply::Done`].
    StopWaiting {
        /// Its group.
        group: GroupName,
        /// Who.
        consumer: u64,
    },
    /// Settle deliveries. Answered by [`Reply::Settled`] when that is as durable as the queue is set to.
    Settle {
        /// In which group.
        group: GroupName,
        /// What becomes of which.
        settlements: Vec<Settlement>,
    },
    /// Look at messages that are not settled, in order. Answered by [`Reply::Peeked`]. There may be more than it has.
    Peek {
        /// As which group has them.
        group: GroupName,
        /// From which offset on.
        from: u64,
        /// Most messages.
        max: u32,
    },
    /// Answered by [`Reply::Info`].
    Info,
    /// Throw away all messages that are durable now, whoever has them. Answered by [`Reply::Count`] when that is durable;
    /// until then some of them may be there.
    Purge {
        /// Of one group; of all if it names none.
        group: Option<GroupName>,
    },
    /// Send dead letters back to where they came from. Answered by [`Reply::Count`].
    Redrive {
        /// Most messages.
        max: u64,
    },
    /// Let a group begin again, with all messages from there on that are still on disk. Answered by
    /// [`Reply::Count`], of messages that will come again.
    Replay {
        /// Which one.
        group: GroupName,
        /// The first.
        from: ReplayFrom,
    },
    /// Remove a group. Answered by [`Reply::Done`].
    RemoveGroup {
        /// Which one.
        group: GroupName,
    },
    /// Make the queue; what it is set to, by key, besides those of [`crate::Config`] `durability`. Answered by
    /// [`Reply::Done`], also if it is there and set to the same.
    Create {
        /// Key and value.
        settings: Vec<(String, String)>,
    },
    /// Set some keys to something else. Answered by [`Reply::Done`].
    Configure {
        /// Key and value.
        settings: Vec<(String, String)>,
    },
    /// Remove the queue and all that is in it. Answered by [`Reply::Done`].
    Delete,
}

/// Where a replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayFrom {
    /// At an offset.
    Offset(u64),
    /// At the first message of this time or later, ms since 1970.
    Time(u64),
}

/// What became of one of several things.
pub type Answered<T> = Result<T, Refusal>;

/// The answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The offset of each message, in order.
    Sent(Vec<Answered<u64>>),
    /// Messages.
    Received(Vec<Delivery>),
    /// For each settlement, in order.
    Settled(Vec<Answered<()>>),
    /// Messages.
    Peeked(Vec<Message>),
    /// How the queue is.
    Info(Box<Info>),
    /// How many messages.
    Count(u64),
    /// It is done.
    Done,
    /// None of it is done.
    Refused(Refusal),
}

/// Why something was not done, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no queue of this name.
    UnknownQueue,
    /// There is a topic of this name that is no queue.
    NotAQueue,
    /// There is no group of this name.
    UnknownGroup,
    /// There is a queue of this name that is set to something else.
    Exists,
    /// The queue has as much as it may have.
    Full,
    /// The message is larger than the queue takes, bytes.
    TooLarge {
        /// The most it takes.
        most: usize,
    },
    /// The consumer does not have the message any more: its lease has ended, or it is settled.
    Stale,
    /// The request contradicts itself or the queue's settings; in words.
    Invalid(String),
    /// There are as many groups, consumers or queues as there may be.
    TooMany,
    /// The disk refuses; it may be tried again.
    Storage,
    /// The broker has too much to do, or ends; it may be tried again.
    Busy,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownQueue => f.write_str("there is no such queue"),
            Self::NotAQueue => f.write_str("the topic of this name is no queue"),
            Self::UnknownGroup => f.write_str("there is no such group"),
            Self::Exists => f.write_str("there is a queue of this name with other settings"),
            Self::Full => f.write_str("the queue is full"),
            Self::TooLarge { most } => write!(f, "the message is larger than {most} bytes"),
            Self::Stale => f.write_str("the lease has ended or the message is settled"),
            Self::Invalid(what) => f.write_str(what),
            Self::TooMany => f.write_str("there are too many"),
            Self::Storage => f.write_str("the disk refuses to write"),
            Self::Busy => f.write_str("the broker is busy"),
        }
    }
}

impl std::error::Error for Refusal {}

/// How a queue is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Info {
    /// Its name.
    pub name: String,
    /// What it is set to, by key.
    pub settings: Vec<(String, String)>,
    /// Messages that some group has not settled.
    pub messages: u64,
    /// Their size.
    pub bytes: u64,
    /// When the oldest of them came, ms since 1970.
    pub oldest_ms: Option<u64>,
    /// Messages thrown away because their deduplication identifier was known.
    pub duplicates: u64,
    /// Its groups, by name.
    pub groups: Vec<GroupInfo>,
}

/// How a group is. Counts are since the start of the broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupInfo {
    /// Its name.
    pub name: String,
    /// Messages that may be delivered now.
    pub ready: u64,
    /// Messages that consumers have.
    pub leased: u64,
    /// Messages that wait for their time.
    pub delayed: u64,
    /// Messages that wait for others with the same key.
    pub blocked: u64,
    /// Messages on their way to another queue.
    pub leaving: u64,
    /// When the oldest came, ms since 1970.
    pub oldest_ms: Option<u64>,
    /// Consumers that wait for messages.
    pub waiting: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Those that were not the first of their message.
    pub redelivered: u64,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Deliveries that failed.
    pub nacked: u64,
    /// Messages that left as dead letters, or were dropped where those are not kept.
    pub dead: u64,
}
