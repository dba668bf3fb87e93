//! Inputs and outputs of the transaction coordinator: requests, effects, settings.

use std::sync::Arc;

use crate::producer::Outcome;
use crate::{Caller, Error, Record};

/// A producer's id and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Producer {
    /// Producer id.
    pub id: i64,
    /// Producer epoch.
    pub epoch: i16,
}

/// A participant of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Participant {
    /// A partition that the transaction writes to.
    Partition {
        /// Topic name.
        topic: Arc<str>,
        /// Partition index.
        index: i32,
    },
    /// A consumer group whose offsets the transaction commits.
    Group(Arc<str>),
}

/// Transaction version of the client that sends `EndTxn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVersion {
    /// Version 0 or 1: the epoch stays the same across transactions (`EndTxn` up to version 4).
    V1,
    /// Version 2: each transaction has its own epoch (KIP-890; `EndTxn` version 5 and later).
    V2,
}

/// A request for one transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `InitProducerId`: fences the previous producer and aborts its open transaction.
    InitProducerId {
        /// Age at which the coordinator aborts a transaction, ms.
        timeout_ms: i32,
        /// The producer's current id and epoch, if it requests its next epoch (KIP-360).
        expected: Option<Producer>,
    },
    /// `AddPartitionsToTxn`, `AddOffsetsToTxn`, and implicit additions by a partition or group (KIP-890).
    Add {
        /// The producer of the transaction.
        producer: Producer,
        /// Participants to add.
        participants: Vec<Participant>,
    },
    /// `EndTxn`.
    End {
        /// The producer of the transaction.
        producer: Producer,
        /// Requested outcome.
        outcome: Outcome,
        /// Transaction version of the client.
        speaks: TransactionVersion,
    },
}

/// Identifies a write of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// Markers to write, one for each participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Markers {
    /// The producer of the transaction.
    pub transactional_id: Arc<str>,
    /// The producer, with the epoch to write in the markers.
    pub producer: Producer,
    /// Epoch of this coordinator.
    pub coordinator_epoch: i32,
    /// Outcome of the transaction.
    pub outcome: Outcome,
    /// Participants that need a marker.
    pub participants: Vec<Participant>,
}

/// An action for the owner of the machine. Effects must be performed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Persist these records, after all earlier ones, and report the outcome with
    /// [`Transactions::write_succeeded`](super::Transactions::write_succeeded) or
    /// [`Transactions::write_failed`](super::Transactions::write_failed).
    Persist {
        /// Identifies the write in the report.
        keep: WriteId,
        /// The records.
        records: Vec<Record>,
    },
    /// Write these markers, and report for each participant
    /// [`Transactions::marker_written`](super::Transactions::marker_written) once it is durable, or
    /// [`Transactions::marker_failed`](super::Transactions::marker_failed). If the participant no longer exists, its
    /// marker counts as written.
    WriteMarkers(Markers),
    /// Reply to a request.
    Reply {
        /// The request.
        caller: Caller,
        /// The producer's id and epoch from now on.
        answer: Result<Producer, Error>,
    },
}

/// Most participants of one transaction, unless the settings say otherwise.
pub const PARTICIPANTS_MAX: usize = 20_000;

/// Limits and timeouts of the coordinator. Kafka's names are in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum transaction timeout that a client may request, ms (`transaction.max.timeout.ms`).
    pub timeout_ms_max: i32,
    /// Idle time after which a transactional id without an open transaction is removed, ms
    /// (`transactional.id.expiration.ms`).
    pub expiration_ms: u64,
    /// How long a request may wait for the previous transaction to complete, ms. Then the client is told to retry.
    pub wait_ms: u64,
    /// Delay before a failed marker is retried, ms.
    pub retry_ms: u64,
    /// Maximum memory of transactional ids and their participants, bytes. At the limit, unused ids are removed; if all
    /// are in use, new ids and participants are rejected.
    pub bytes: usize,
    /// Maximum participants of one transaction.
    pub participants: usize,
    /// Coordinator epoch to write in the markers.
    pub coordinator_epoch: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            timeout_ms_max: 15 * 60 * 1000,
            expiration_ms: 7 * 24 * 60 * 60 * 1000,
            wait_ms: 1000,
            retry_ms: 200,
            bytes: 128 * 1024 * 1024,
            participants: PARTICIPANTS_MAX,
            coordinator_epoch: 0,
        }
    }
}
