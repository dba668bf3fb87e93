//! What is asked of the coordinator, and what it hands out.

use std::sync::Arc;

use crate::producer::Outcome;
use crate::{Caller, Error, Record};

/// A producer's identifier and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Producer {
    /// The identifier.
    pub id: i64,
    /// The epoch.
    pub epoch: i16,
}

/// What can be part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Participant {
    /// A partition that is written to.
    Partition {
        /// Its topic's name.
        topic: Arc<str>,
        /// Its number.
        index: i32,
    },
    /// A consumer group whose offsets are committed.
    Group(Arc<str>),
}

/// The transaction version that the client of an `EndTxn` speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// 0 or 1: the epoch stays from one transaction to the next (`EndTxn` up to version 4).
    OneEpoch,
    /// 2: each transaction has an epoch of its own (KIP-890; `EndTxn` from version 5 on).
    OwnEpochs,
}

/// A request about one transactional identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `InitProducerId`: fences whoever had the transactional identifier before, and aborts what is open.
    InitProducerId {
        /// Age at which the coordinator aborts a transaction, ms.
        timeout_ms: i32,
        /// What the producer has now, if it asks for its next epoch (KIP-360).
        expected: Option<Producer>,
    },
    /// `AddPartitionsToTxn`, `AddOffsetsToTxn`, and what a partition or group adds by itself (KIP-890).
    Add {
        /// Whose transaction it is.
        producer: Producer,
        /// What is to be part of it.
        participants: Vec<Participant>,
    },
    /// `EndTxn`.
    End {
        /// Whose transaction it is.
        producer: Producer,
        /// How it is to end.
        outcome: Outcome,
        /// What the client speaks.
        speaks: Speaks,
    },
}

/// Names records that are to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keep(pub u64);

/// Markers to be written, once for each participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Whose transaction it is.
    pub transactional_id: Arc<str>,
    /// The producer, with the epoch that the markers carry.
    pub producer: Producer,
    /// Epoch of this coordinator.
    pub coordinator_epoch: i32,
    /// How the transaction ended.
    pub outcome: Outcome,
    /// Where a marker is to be written.
    pub participants: Vec<Participant>,
}

/// What the owner of the machine is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Keep these records, behind all before, and say how it went with
    /// [`Transactions::kept`](super::Transactions::kept) or [`Transactions::not_kept`](super::Transactions::not_kept).
    Keep {
        /// What to call them then.
        keep: Keep,
        /// The records.
        records: Vec<Record>,
    },
    /// Write these markers, and say of each participant how it went with
    /// [`Transactions::marker_written`](super::Transactions::marker_written) once it is durable, or
    /// [`Transactions::marker_failed`](super::Transactions::marker_failed). Of a participant that is no more a
    /// marker counts as written.
    WriteMarkers(Markers),
    /// Answer a request.
    Reply {
        /// Who waits.
        caller: Caller,
        /// What the producer is called from now on.
        answer: Result<Producer, Error>,
    },
}

/// Bounds and times of the coordinator. Names in parentheses are Kafka's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Longest timeout that a client may ask for, ms (`transaction.max.timeout.ms`).
    pub timeout_ms_max: i32,
    /// Silence after which a transactional identifier without open transaction is forgotten, ms
    /// (`transactional.id.expiration.ms`).
    pub expiration_ms: u64,
    /// How long a request may wait for the transaction before it to be complete, ms. Then its client is told to
    /// ask again.
    pub wait_ms: u64,
    /// After so long a marker that failed is written again, ms.
    pub retry_ms: u64,
    /// Transactional identifiers that are known at most. At the bound new ones are refused.
    pub transactional_ids: usize,
    /// Partitions and groups in one transaction at most.
    pub participants: usize,
    /// Epoch that the markers carry.
    pub coordinator_epoch: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout_ms_max: 15 * 60 * 1000,
            expiration_ms: 7 * 24 * 60 * 60 * 1000,
            wait_ms: 1000,
            retry_ms: 200,
            transactional_ids: 64 * 1024,
            participants: 20_000,
            coordinator_epoch: 0,
        }
    }
}
