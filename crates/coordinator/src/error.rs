//! Errors that a coordinator returns, with Kafka's names and numbers.
//!
//! This crate does not depend on the wire codec, so it has its own copy of the codes it needs. The comments state what
//! the client should do about each error.

use std::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal,)*) => {
        /// A Kafka protocol error that a coordinator returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Error {
            $($(#[$doc])* $name,)*
        }

        impl Error {
            /// Error code on the wire.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Kafka's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

errors! {
    /// The coordinator failed; the client cannot do anything about it.
    UnknownServerError = -1 "UNKNOWN_SERVER_ERROR",
    /// No such topic or partition.
    UnknownTopicOrPartition = 3 "UNKNOWN_TOPIC_OR_PARTITION",
    /// The metadata string of an offset is too long.
    OffsetMetadataTooLarge = 12 "OFFSET_METADATA_TOO_LARGE",
    /// The coordinator is temporarily unavailable: retry.
    CoordinatorNotAvailable = 15 "COORDINATOR_NOT_AVAILABLE",
    /// Another broker is the coordinator, or the change could not be persisted: look up the coordinator again.
    NotCoordinator = 16 "NOT_COORDINATOR",
    /// The group is at another generation: rejoin.
    IllegalGeneration = 22 "ILLEGAL_GENERATION",
    /// The member supports no protocol that the rest of the group supports.
    InconsistentGroupProtocol = 23 "INCONSISTENT_GROUP_PROTOCOL",
    /// The group id is empty or too long.
    InvalidGroupId = 24 "INVALID_GROUP_ID",
    /// The group has no such member: join again without a member id.
    UnknownMemberId = 25 "UNKNOWN_MEMBER_ID",
    /// The session timeout is outside the range that the broker allows.
    InvalidSessionTimeout = 26 "INVALID_SESSION_TIMEOUT",
    /// The group is rebalancing: rejoin.
    RebalanceInProgress = 27 "REBALANCE_IN_PROGRESS",
    /// The limit on stored offsets is reached.
    InvalidCommitOffsetSize = 28 "INVALID_COMMIT_OFFSET_SIZE",
    /// The request is invalid.
    InvalidRequest = 42 "INVALID_REQUEST",
    /// A limit of the broker was exceeded.
    PolicyViolation = 44 "POLICY_VIOLATION",
    /// The sequence number does not follow the previous one.
    OutOfOrderSequenceNumber = 45 "OUT_OF_ORDER_SEQUENCE_NUMBER",
    /// The producer's epoch is old: a newer producer took over its id.
    InvalidProducerEpoch = 47 "INVALID_PRODUCER_EPOCH",
    /// The operation is not allowed in the transaction's current state.
    InvalidTxnState = 48 "INVALID_TXN_STATE",
    /// The producer id does not belong to the transactional id.
    InvalidProducerIdMapping = 49 "INVALID_PRODUCER_ID_MAPPING",
    /// The transaction timeout exceeds the broker's maximum.
    InvalidTransactionTimeout = 50 "INVALID_TRANSACTION_TIMEOUT",
    /// The previous transaction is still being completed: retry.
    ConcurrentTransactions = 51 "CONCURRENT_TRANSACTIONS",
    /// A newer coordinator has already written a marker.
    TransactionCoordinatorFenced = 52 "TRANSACTION_COORDINATOR_FENCED",
    /// The producer id is unknown.
    UnknownProducerId = 59 "UNKNOWN_PRODUCER_ID",
    /// The group has members.
    NonEmptyGroup = 68 "NON_EMPTY_GROUP",
    /// No such group.
    GroupIdNotFound = 69 "GROUP_ID_NOT_FOUND",
    /// Join again with the member id in the response (KIP-394).
    MemberIdRequired = 79 "MEMBER_ID_REQUIRED",
    /// The group has the maximum number of members.
    GroupMaxSizeReached = 81 "GROUP_MAX_SIZE_REACHED",
    /// Another member has taken over this instance id (KIP-345).
    FencedInstanceId = 82 "FENCED_INSTANCE_ID",
    /// Members of the group are subscribed to the topic.
    GroupSubscribedToTopic = 86 "GROUP_SUBSCRIBED_TO_TOPIC",
    /// A field of the record batch is invalid.
    InvalidRecord = 87 "INVALID_RECORD",
    /// A pending transaction has changed this offset: retry.
    UnstableOffsetCommit = 88 "UNSTABLE_OFFSET_COMMIT",
    /// A producer with a newer epoch took over the transactional id.
    ProducerFenced = 90 "PRODUCER_FENCED",
    /// No such transactional id.
    TransactionalIdNotFound = 105 "TRANSACTIONAL_ID_NOT_FOUND",
    /// The member's epoch is not the current one: abandon all partitions and join again (KIP-848).
    FencedMemberEpoch = 110 "FENCED_MEMBER_EPOCH",
    /// Another static member uses the instance id and has not left (KIP-848).
    UnreleasedInstanceId = 111 "UNRELEASED_INSTANCE_ID",
    /// No such assignor (KIP-848).
    UnsupportedAssignor = 112 "UNSUPPORTED_ASSIGNOR",
    /// The member's epoch is not the current one: retry with the epoch of the next heartbeat (KIP-848).
    StaleMemberEpoch = 113 "STALE_MEMBER_EPOCH",
    /// The transaction must be aborted (KIP-890).
    TransactionAbortable = 120 "TRANSACTION_ABORTABLE",
    /// The regular expression of a subscription is invalid (KIP-848).
    InvalidRegularExpression = 128 "INVALID_REGULAR_EXPRESSION",
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_and_names_are_unique() {
        let codes: BTreeSet<i16> = Error::ALL.iter().map(|error| error.code()).collect();
        let names: BTreeSet<&str> = Error::ALL.iter().map(|error| error.name()).collect();
        assert_eq!((codes.len(), names.len()), (Error::ALL.len(), Error::ALL.len()));
    }
}
