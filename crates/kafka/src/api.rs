//! The messages of each API, one file for each.

use crate::registry::{Api, Visitor};

pub mod add_offsets_to_txn;
pub mod add_partitions_to_txn;
pub mod alter_client_quotas;
pub mod alter_configs;
pub mod alter_partition_reassignments;
pub mod alter_replica_log_dirs;
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
pub mod get_telemetry_subscriptions;
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
pub mod push_telemetry;
pub mod sasl_authenticate;
pub mod sasl_handshake;
pub mod sync_group;
pub mod txn_offset_commit;
pub mod update_features;
pub mod write_txn_markers;

/// Declares what is done with all requests.
macro_rules! requests {
    ($($module:ident::$request:ident;)*) => {
        /// All that can be coded, in the order of their keys.
        pub(crate) const APIS: &[Api] = &[$(Api::of::<$module::$request>(stringify!($request)),)*];

        /// Shows `visitor` all requests, in the order of their keys.
        pub fn visit(visitor: &mut impl Visitor) {
            $(visitor.visit::<$module::$request>();)*
        }

        #[cfg(test)]
        pub(crate) fn visit_samples(visitor: &mut impl crate::sample::SampleVisitor) {
            $(visitor.visit::<$module::$request>();)*
        }
    };
}

requests! {
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
    describe_quorum::DescribeQuorumRequest;
    update_features::UpdateFeaturesRequest;
    describe_cluster::DescribeClusterRequest;
    describe_producers::DescribeProducersRequest;
    describe_transactions::DescribeTransactionsRequest;
    list_transactions::ListTransactionsRequest;
    consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
    consumer_group_describe::ConsumerGroupDescribeRequest;
    get_telemetry_subscriptions::GetTelemetrySubscriptionsRequest;
    push_telemetry::PushTelemetryRequest;
    list_config_resources::ListConfigResourcesRequest;
    describe_topic_partitions::DescribeTopicPartitionsRequest;
}
