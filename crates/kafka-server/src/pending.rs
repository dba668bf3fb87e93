//! Pending operations, as data: what continues when an answer arrives, with the state that it needs.
//!
//! A machine that lets a request wait stores one of these values and returns it with the answer. `resume.rs` is the
//! only place that matches them.

use std::sync::Arc;

use mainstem_coordinator::transaction::{Markers, Participant, Producer};
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnResult, AddPartitionsToTxnTransaction};
use mainstem_kafka::api::alter_client_quotas::AlterEntryResult;
use mainstem_kafka::api::alter_user_scram_credentials::AlterUserScramCredentialsResult;
use mainstem_kafka::api::create_acls::AclCreationResult;
use mainstem_kafka::api::delete_acls::DeleteAclsFilterResult;
use mainstem_kafka::api::delete_records::DeleteRecordsRequest;
use mainstem_kafka::api::describe_producers::DescribeProducersRequest;
use mainstem_kafka::api::list_offsets::ListOffsetsRequest;
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka::api::offset_fetch::OffsetFetchResponseGroup;
use mainstem_kafka::api::offset_for_leader_epoch::OffsetForLeaderEpochRequest;
use mainstem_kafka::api::txn_offset_commit::TxnOffsetCommitRequest;
use mainstem_kafka::api::write_txn_markers::WriteTxnMarkersRequest;
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_queue_server::{QueueRequest, ReplyTo};
use mainstem_security::ChangedSettings;

use crate::append_error::AppendError;
use crate::catalogue::{PartitionId, Topic};
use crate::shard_message::RequestContext;
use crate::topic_change::{ConfigChange, NewTopic};

/// What continues with an answer of the consumer groups.
#[derive(Debug)]
pub(crate) enum AfterGroupReply {
    DeleteGroups {
        call: RequestContext,
        /// Groups that the sender may not delete.
        denied: Vec<String>,
    },
    /// Part of a request of several changes.
    Configure {
        job: u64,
        part: usize,
    },
    ConsumerGroupHeartbeat(RequestContext),
    JoinGroup(RequestContext),
    LeaveGroup(RequestContext),
    OffsetCommit(RequestContext),
    OffsetDelete(RequestContext),
    OffsetFetch {
        call: RequestContext,
        /// Results of groups and topics that the sender may not see.
        denied: Vec<OffsetFetchResponseGroup>,
    },
    SyncGroup(RequestContext),
    TxnOffsetCommit(RequestContext),
    /// The end of a transaction is written to these groups: report it to the transactions.
    EndTransaction {
        markers: Arc<Markers>,
        groups: Vec<Participant>,
    },
}

/// What continues with an answer of the transactions.
#[derive(Debug)]
pub(crate) enum AfterTxnReply {
    AddOffsetsToTxn(RequestContext),
    /// One transaction of a request of several: report it to the job.
    AddPartitionsToTxn {
        job: u64,
        part: usize,
        version: i16,
    },
    EndTxn(RequestContext),
    InitProducerId(RequestContext),
    /// The group has been added to the transaction: commit the offsets.
    TxnOffsetCommit {
        call: RequestContext,
        request: Box<TxnOffsetCommitRequest>,
    },
    /// Answer a shard that holds a batch.
    VerifyTxn {
        shard: usize,
        id: PartitionId,
        producer: Producer,
    },
}

/// What continues when markers are written.
#[derive(Debug)]
pub(crate) enum AfterMarkers {
    WriteTxnMarkers {
        call: RequestContext,
        request: WriteTxnMarkersRequest,
    },
    /// Report the outcomes to the transactions.
    EndTransaction {
        markers: Arc<Markers>,
        participants: Vec<Participant>,
    },
}

/// What continues with the results of partition queries.
#[derive(Debug)]
pub(crate) enum AfterQueries {
    DeleteRecords {
        call: RequestContext,
        request: DeleteRecordsRequest,
        /// For each topic, why its records must not be deleted, if so.
        refusals: Vec<Option<ErrorCode>>,
    },
    DescribeLogDirs {
        call: RequestContext,
        topics: Vec<(Arc<Topic>, Vec<i32>)>,
    },
    DescribeProducers {
        call: RequestContext,
        request: DescribeProducersRequest,
    },
    ListOffsets {
        call: RequestContext,
        request: ListOffsetsRequest,
    },
    OffsetForLeaderEpoch {
        call: RequestContext,
        request: OffsetForLeaderEpochRequest,
    },
}

/// What continues when all changes of a request are durable or have failed.
#[derive(Debug)]
pub(crate) enum AfterChanges {
    AddPartitionsToTxn {
        call: RequestContext,
        transactions: Vec<AddPartitionsToTxnTransaction>,
        /// Results that needed no change.
        immediate: Vec<Option<AddPartitionsToTxnResult>>,
    },
    AlterConfigs {
        call: RequestContext,
        changes: Vec<ConfigChange>,
        /// The topics before the changes.
        before: Vec<Option<ChangedSettings>>,
    },
    CreatePartitions {
        call: RequestContext,
        names: Vec<String>,
        /// The topics before the changes.
        before: Vec<Option<ChangedSettings>>,
    },
    CreateTopics {
        call: RequestContext,
        names: Vec<Arc<str>>,
        plans: Vec<Result<NewTopic, AppendError>>,
    },
    DeleteTopics {
        call: RequestContext,
        topics: Vec<(Option<String>, Uuid)>,
        /// The topics before they were deleted.
        before: Vec<Option<ChangedSettings>>,
    },
    IncrementalAlterConfigs {
        call: RequestContext,
        changes: Vec<ConfigChange>,
        /// The topics before the changes.
        before: Vec<Option<ChangedSettings>>,
    },
    Metadata {
        call: RequestContext,
        request: MetadataRequest,
    },
}

/// What continues when a change of users and rules is durable or was refused.
#[derive(Debug)]
pub(crate) enum AfterSecurityChange {
    AlterClientQuotas {
        call: RequestContext,
        /// The results; those without an error depend on the change.
        entries: Vec<AlterEntryResult>,
    },
    AlterUserScramCredentials {
        call: RequestContext,
        /// The results; those without an error depend on the change.
        results: Vec<AlterUserScramCredentialsResult>,
    },
    CreateAcls {
        call: RequestContext,
        /// The same.
        results: Vec<AclCreationResult>,
    },
    DeleteAcls {
        call: RequestContext,
        /// The same.
        results: Vec<DeleteAclsFilterResult>,
    },
}

impl AfterSecurityChange {
    /// The request.
    pub(crate) fn call(&self) -> &RequestContext {
        match self {
            Self::AlterClientQuotas { call, .. }
            | Self::AlterUserScramCredentials { call, .. }
            | Self::CreateAcls { call, .. }
            | Self::DeleteAcls { call, .. } => call,
        }
    }
}

/// What continues when the change of one topic is durable or has failed.
#[derive(Debug)]
pub(crate) enum AfterTopicChange {
    /// Part of a request of several changes.
    Job { job: u64, part: usize },
    /// The same, for a topic that a metadata request creates.
    AutoCreatedTopic { job: u64, part: usize },
    /// Reply to the administrator of a queue.
    QueueReply(ReplyTo),
    /// Route the request that needed the queue.
    AutoCreatedQueue(Box<QueueRequest>),
    /// Write the records that wait for the topic.
    BoundTopic(Arc<str>),
    /// Append the events that wait for the audit topic.
    AuditTopic,
}
