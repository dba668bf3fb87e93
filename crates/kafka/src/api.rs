//! All APIs of the protocol that have a codec, one file per API.
//!
//! `apis!` is the only list of them, ordered by key. The table that [`find`] searches, the visitors and the tests
//! derive from it, and everything else about an API from the declaration in its file.

use std::ops::RangeInclusive;

use crate::message::Request;

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod alter_client_quotas;
pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_replica_log_dirs;
pub mod alter_user_scram_credentials;
pub mod api_versions;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_acls;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_acls;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_acls;
pub mod describe_client_quotas;
pub mod describe_cluster;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_producers;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod describe_transactions;
pub mod describe_user_scram_credentials;
pub mod elect_leaders;
pub mod end_txn;
pub mod fetch;
pub mod find_coordinator;
pub mod heartbeat;
pub mod incremental_alter_configs;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod list_partition_reassignments;
pub mod list_transactions;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
pub mod sasl_authenticate;
pub mod sasl_handshake;
pub mod sync_group;
pub mod txn_offset_commit;
pub mod write_txn_markers;

/// What the protocol says about an API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// API key.
    pub key: i16,
    /// Kafka's name, for example `ListOffsets`.
    pub name: &'static str,
    /// Versions with a codec.
    pub versions: RangeInclusive<i16>,
    /// Lowest version that a broker announces.
    pub announced_from: i16,
    /// First version with compact lengths and tagged fields; `i16::MAX` if none has them.
    pub flexible_from: i16,
}

impl Api {
    /// The API of a request type.
    pub const fn of<R: Request>() -> Self {
        Self {
            key: R::KEY,
            name: R::NAME,
            versions: R::VERSIONS,
            announced_from: R::ANNOUNCED_FROM,
            flexible_from: R::FLEXIBLE_FROM,
        }
    }
}

/// Visits every API with its message types.
pub trait Visitor {
    /// Called once per API.
    fn visit<R: Request>(&mut self);
}

/// Finds an API by key.
pub fn find(key: i16) -> Option<&'static Api> {
    APIS.binary_search_by_key(&key, |api| api.key).ok().map(|index| &APIS[index])
}

/// Declares everything that covers all APIs.
macro_rules! apis {
    ($($module:ident::$request:ident;)*) => {
        /// All APIs, ordered by key.
        const APIS: &[Api] = &[$(Api::of::<$module::$request>(),)*];

        /// Calls `visitor` for each request type, ordered by key.
        pub fn visit(visitor: &mut impl Visitor) {
            $(visitor.visit::<$module::$request>();)*
        }

        #[cfg(test)]
        pub(crate) fn visit_samples(visitor: &mut impl crate::sample::SampleVisitor) {
            $(visitor.visit::<$module::$request>();)*
        }
    };
}

apis! {
    produce::ProduceRequest;
    fetch::FetchRequest;
    list_offsets::ListOffsetsRequest;
    metadata::MetadataRequest;
    offset_commit::OffsetCommitRequest;
    offset_fetch::OffsetFetchRequest;
    find_coordinator::FindCoordinatorRequest;
    join_group::JoinGroupRequest;
    heartbeat::HeartbeatRequest;
    leave_group::LeaveGroupRequest;
    sync_group::SyncGroupRequest;
    describe_groups::DescribeGroupsRequest;
    list_groups::ListGroupsRequest;
    sasl_handshake::SaslHandshakeRequest;
    api_versions::ApiVersionsRequest;
    create_topics::CreateTopicsRequest;
    delete_topics::DeleteTopicsRequest;
    delete_records::DeleteRecordsRequest;
    init_producer_id::InitProducerIdRequest;
    offset_for_leader_epoch::OffsetForLeaderEpochRequest;
    add_partitions_to_txn::AddPartitionsToTxnRequest;
    add_offsets_to_txn::AddOffsetsToTxnRequest;
    end_txn::EndTxnRequest;
    write_txn_markers::WriteTxnMarkersRequest;
    txn_offset_commit::TxnOffsetCommitRequest;
    describe_acls::DescribeAclsRequest;
    create_acls::CreateAclsRequest;
    delete_acls::DeleteAclsRequest;
    describe_configs::DescribeConfigsRequest;
    alter_configs::AlterConfigsRequest;
    alter_replica_log_dirs::AlterReplicaLogDirsRequest;
    describe_log_dirs::DescribeLogDirsRequest;
    sasl_authenticate::SaslAuthenticateRequest;
    create_partitions::CreatePartitionsRequest;
    delete_groups::DeleteGroupsRequest;
    elect_leaders::ElectLeadersRequest;
    incremental_alter_configs::IncrementalAlterConfigsRequest;
    alter_partition_reassignments::AlterPartitionReassignmentsRequest;
    list_partition_reassignments::ListPartitionReassignmentsRequest;
    offset_delete::OffsetDeleteRequest;
    describe_client_quotas::DescribeClientQuotasRequest;
    alter_client_quotas::AlterClientQuotasRequest;
    describe_user_scram_credentials::DescribeUserScramCredentialsRequest;
    alter_user_scram_credentials::AlterUserScramCredentialsRequest;
    describe_quorum::DescribeQuorumRequest;
    describe_cluster::DescribeClusterRequest;
    describe_producers::DescribeProducersRequest;
    describe_transactions::DescribeTransactionsRequest;
    list_transactions::ListTransactionsRequest;
    consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
    consumer_group_describe::ConsumerGroupDescribeRequest;
    list_config_resources::ListConfigResourcesRequest;
    describe_topic_partitions::DescribeTopicPartitionsRequest;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apis_are_ordered_by_key_and_found_by_it() {
        assert!(APIS.is_sorted_by(|one, next| one.key < next.key));
        assert_eq!(find(23).map(|api| api.name), Some("OffsetForLeaderEpoch"));
        assert_eq!(find(-1), None);
    }

    #[test]
    fn request_types_are_named_after_their_api() {
        struct Names;
        impl Visitor for Names {
            fn visit<R: Request>(&mut self) {
                let path = std::any::type_name::<R>();
                assert!(path.ends_with(&format!("::{}Request", R::NAME)), "{path} of {}", R::NAME);
            }
        }
        visit(&mut Names);
    }

    #[test]
    fn only_produce_is_announced_from_another_version_than_its_first() {
        for api in APIS {
            let announced_from = if api.key == 0 { 0 } else { *api.versions.start() };
            assert_eq!(api.announced_from, announced_from, "{}", api.name);
        }
    }
}
