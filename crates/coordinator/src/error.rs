//! What a coordinator refuses, by Kafka's names and numbers.

use std::fmt;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal,)*) => {
        /// An error of Kafka's protocol that a coordinator answers with. What the client can do follows from its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Error {
            $($(#[$doc])* $name,)*
        }

        impl Error {
            /// The number on the wire.
            pub const fn code(self) -> i16 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            /// Kafka's name of it.
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
    /// The coordinator has failed in a way of which the client can do nothing.
    UnknownServerError = -1 "UNKNOWN_SERVER_ERROR",
    /// There is no such topic or partition.
    UnknownTopicOrPartition = 3 "UNKNOWN_TOPIC_OR_PARTITION",
    /// The text kept with an offset is too long.
    OffsetMetadataTooLarge = 12 "OFFSET_METADATA_TOO_LARGE",
    /// The coordinator cannot answer now: ask again.
    CoordinatorNotAvailable = 15 "COORDINATOR_NOT_AVAILABLE",
    /// Somebody else is the coordinator, or what was asked could not be kept: look for the coordinator again.
    NotCoordinator = 16 "NOT_COORDINATOR",
    /// The group is at another generation: join again.
    IllegalGeneration = 22 "ILLEGAL_GENERATION",
    /// The member speaks no protocol that all of its group do.
    InconsistentGroupProtocol = 23 "INCONSISTENT_GROUP_PROTOCOL",
    /// The identifier of the group is empty or too long.
    InvalidGroupId = 24 "INVALID_GROUP_ID",
    /// The group does not know the member: join again, without an identifier.
    UnknownMemberId = 25 "UNKNOWN_MEMBER_ID",
    /// The session timeout is outside of what the broker allows.
    InvalidSessionTimeout = 26 "INVALID_SESSION_TIMEOUT",
    /// The group rebalances: join again.
    RebalanceInProgress = 27 "REBALANCE_IN_PROGRESS",
    /// There is no room for another offset.
    InvalidCommitOffsetSize = 28 "INVALID_COMMIT_OFFSET_SIZE",
    /// The request cannot be right.
    InvalidRequest = 42 "INVALID_REQUEST",
    /// A bound of the broker does not let it through.
    PolicyViolation = 44 "POLICY_VIOLATION",
    /// A sequence number does not follow the last one.
    OutOfOrderSequenceNumber = 45 "OUT_OF_ORDER_SEQUENCE_NUMBER",
    /// The producer's epoch is old: somebody else goes on with its identifier.
    InvalidProducerEpoch = 47 "INVALID_PRODUCER_EPOCH",
    /// The transaction is in no state in which this can be done.
    InvalidTxnState = 48 "INVALID_TXN_STATE",
    /// The producer identifier is not that of the transactional identifier.
    InvalidProducerIdMapping = 49 "INVALID_PRODUCER_ID_MAPPING",
    /// The transaction timeout is longer than the broker allows.
    InvalidTransactionTimeout = 50 "INVALID_TRANSACTION_TIMEOUT",
    /// The transaction before is being completed: ask again.
    ConcurrentTransactions = 51 "CONCURRENT_TRANSACTIONS",
    /// A newer coordinator has written the marker.
    TransactionCoordinatorFenced = 52 "TRANSACTION_COORDINATOR_FENCED",
    /// Nothing is known of the producer identifier.
    UnknownProducerId = 59 "UNKNOWN_PRODUCER_ID",
    /// The group has members.
    NonEmptyGroup = 68 "NON_EMPTY_GROUP",
    /// There is no such group.
    GroupIdNotFound = 69 "GROUP_ID_NOT_FOUND",
    /// Join again with the identifier that comes with the answer (KIP-394).
    MemberIdRequired = 79 "MEMBER_ID_REQUIRED",
    /// The group has as many members as it may.
    GroupMaxSizeReached = 81 "GROUP_MAX_SIZE_REACHED",
    /// Another member goes by this instance identifier now (KIP-345).
    FencedInstanceId = 82 "FENCED_INSTANCE_ID",
    /// Members of the group read this topic.
    GroupSubscribedToTopic = 86 "GROUP_SUBSCRIBED_TO_TOPIC",
    /// A field of the record batch cannot be right.
    InvalidRecord = 87 "INVALID_RECORD",
    /// A transaction that is not over has changed this offset: ask again.
    UnstableOffsetCommit = 88 "UNSTABLE_OFFSET_COMMIT",
    /// A producer with a newer epoch goes on with the transactional identifier.
    ProducerFenced = 90 "PRODUCER_FENCED",
    /// There is no such transactional identifier.
    TransactionalIdNotFound = 105 "TRANSACTIONAL_ID_NOT_FOUND",
    /// The transaction must be aborted (KIP-890).
    TransactionAbortable = 120 "TRANSACTION_ABORTABLE",
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
    fn no_two_errors_share_a_number_or_a_name() {
        let codes: BTreeSet<i16> = Error::ALL.iter().map(|error| error.code()).collect();
        let names: BTreeSet<&str> = Error::ALL.iter().map(|error| error.name()).collect();
        assert_eq!((codes.len(), names.len()), (Error::ALL.len(), Error::ALL.len()));
    }
}
