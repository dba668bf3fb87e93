//! The messages of each API, one file for each.

use crate::registry::{Api, Visitor};

/// Declares the modules, and what is done with all of them.
macro_rules! apis {
    ($($module:ident $request:ident;)*) => {
        $(pub mod $module;)*

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

apis! {
    produce ProduceRequest;
    fetch FetchRequest;
    list_offsets ListOffsetsRequest;
    metadata MetadataRequest;
    offset_commit OffsetCommitRequest;
    offset_fetch OffsetFetchRequest;
    find_coordinator FindCoordinatorRequest;
    join_group JoinGroupRequest;
    heartbeat HeartbeatRequest;
    leave_group LeaveGroupRequest;
    sync_group SyncGroupRequest;
    describe_groups DescribeGroupsRequest;
    list_groups ListGroupsRequest;
    sasl_handshake SaslHandshakeRequest;
    api_versions ApiVersionsRequest;
    create_topics CreateTopicsRequest;
    delete_topics DeleteTopicsRequest;
    delete_records DeleteRecordsRequest;
    init_producer_id InitProducerIdRequest;
    offset_for_leader_epoch OffsetForLeaderEpochRequest;
    add_partitions_to_txn AddPartitionsToTxnRequest;
    add_offsets_to_txn AddOffsetsToTxnRequest;
    end_txn EndTxnRequest;
    write_txn_markers WriteTxnMarkersRequest;
    txn_offset_commit TxnOffsetCommitRequest;
    describe_acls DescribeAclsRequest;
    create_acls CreateAclsRequest;
    delete_acls DeleteAclsRequest;
    describe_configs DescribeConfigsRequest;
    alter_configs AlterConfigsRequest;
    describe_log_dirs DescribeLogDirsRequest;
    sasl_authenticate SaslAuthenticateRequest;
    create_partitions CreatePartitionsRequest;
    delete_groups DeleteGroupsRequest;
    elect_leaders ElectLeadersRequest;
    incremental_alter_configs IncrementalAlterConfigsRequest;
    alter_partition_reassignments AlterPartitionReassignmentsRequest;
    list_partition_reassignments ListPartitionReassignmentsRequest;
    offset_delete OffsetDeleteRequest;
    describe_client_quotas DescribeClientQuotasRequest;
    alter_client_quotas AlterClientQuotasRequest;
    describe_user_scram_credentials DescribeUserScramCredentialsRequest;
    describe_quorum DescribeQuorumRequest;
    update_features UpdateFeaturesRequest;
    describe_cluster DescribeClusterRequest;
    describe_producers DescribeProducersRequest;
    describe_transactions DescribeTransactionsRequest;
    list_transactions ListTransactionsRequest;
    consumer_group_heartbeat ConsumerGroupHeartbeatRequest;
    consumer_group_describe ConsumerGroupDescribeRequest;
    get_telemetry_subscriptions GetTelemetrySubscriptionsRequest;
    push_telemetry PushTelemetryRequest;
    list_config_resources ListConfigResourcesRequest;
    describe_topic_partitions DescribeTopicPartitionsRequest;
}
