//! Requests to their handlers: one file per API, each with `handle`, which answers with [`Shard::reply`] at once or
//! later.
//!
//! Where a handler runs stands in its line below. `here` is the shard of the connection. `controller` is shard 0: a
//! request that came to another shard goes there by mail, and its answer comes back the same way, so that a handler
//! need not know. Partitions are asked with [`Shard::ask_partitions`] from anywhere.

#![allow(
    clippy::needless_pass_by_value,
    reason = "all are called alike, with what only those need to own that answer later"
)]

pub(crate) mod add_offsets_to_txn;
pub(crate) mod add_partitions_to_txn;
pub(crate) mod alter_configs;
pub(crate) mod alter_partition_reassignments;
pub(crate) mod alter_replica_log_dirs;
pub(crate) mod api_versions;
pub(crate) mod create_acls;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_acls;
pub(crate) mod delete_groups;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_acls;
pub(crate) mod describe_client_quotas;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_log_dirs;
pub(crate) mod describe_producers;
pub(crate) mod describe_quorum;
pub(crate) mod describe_topic_partitions;
pub(crate) mod describe_transactions;
pub(crate) mod describe_user_scram_credentials;
pub(crate) mod elect_leaders;
pub(crate) mod end_txn;
pub(crate) mod fetch;
pub(crate) mod fetch_session;
pub(crate) mod find_coordinator;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod list_transactions;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod sync_group;
pub(crate) mod txn_offset_commit;
pub(crate) mod write_txn_markers;

use mainstem_kafka::{ErrorCode, Message, Reader, Request, frame, put_response_header, registry};
use mainstem_runtime::Io;

use crate::mail::{Call, Letter, Mail};
use crate::shard::Shard;

/// Hands the body, decoded, to the handler in this module.
macro_rules! handlers {
    ($shard:ident, $io:ident, $call:ident, $body:ident, $otherwise:expr, { $($module:ident :: $request:ident,)* }) => {
        match $call.api_key {
            $(<mainstem_kafka::api::$module::$request as Request>::KEY => {
                let decoded = <mainstem_kafka::api::$module::$request as Message>::decode(
                    &mut Reader::new($body), $call.version,
                );
                match decoded {
                    Ok(request) => $module::handle($shard, $io, $call, request),
                    Err(error) => $shard.refuse_call($io, &$call, &error.to_string()),
                }
            })*
            _ => $otherwise,
        }
    };
}

impl Shard {
    /// Begins a request of a connection of this shard.
    pub(crate) fn dispatch(&mut self, io: &mut Io<'_, Mail>, call: Call, body: &[u8]) {
        self.shared.refresh(&mut self.catalogue);
        let is_served = registry::is_announced(call.api_key)
            && registry::find(call.api_key).is_some_and(|api| api.versions.contains(&call.version));
        if !is_served {
            return self.answer_unsupported(io, &call);
        }
        let shard = self;
        handlers!(shard, io, call, body, shard.send_to_controller(io, call, body), {
            alter_partition_reassignments::AlterPartitionReassignmentsRequest,
            alter_replica_log_dirs::AlterReplicaLogDirsRequest,
            api_versions::ApiVersionsRequest,
            create_acls::CreateAclsRequest,
            delete_acls::DeleteAclsRequest,
            delete_records::DeleteRecordsRequest,
            describe_acls::DescribeAclsRequest,
            describe_client_quotas::DescribeClientQuotasRequest,
            describe_cluster::DescribeClusterRequest,
            describe_configs::DescribeConfigsRequest,
            describe_log_dirs::DescribeLogDirsRequest,
            describe_producers::DescribeProducersRequest,
            describe_quorum::DescribeQuorumRequest,
            describe_topic_partitions::DescribeTopicPartitionsRequest,
            describe_user_scram_credentials::DescribeUserScramCredentialsRequest,
            elect_leaders::ElectLeadersRequest,
            fetch::FetchRequest,
            find_coordinator::FindCoordinatorRequest,
            list_config_resources::ListConfigResourcesRequest,
            list_offsets::ListOffsetsRequest,
            list_partition_reassignments::ListPartitionReassignmentsRequest,
            metadata::MetadataRequest,
            offset_for_leader_epoch::OffsetForLeaderEpochRequest,
            write_txn_markers::WriteTxnMarkersRequest,
        });
    }

    fn send_to_controller(&mut self, io: &mut Io<'_, Mail>, call: Call, body: &[u8]) {
        if call.api_key == 0 {
            produce::handle(self, io, &call, body);
        } else if self.is_controller() {
            self.coordinate(io, &call, body);
        } else {
            io.send(0, Mail(Letter::Ask { call, body: body.to_vec() }));
        }
    }

    /// Begins a request on the shard that coordinates.
    pub(crate) fn coordinate(&mut self, io: &mut Io<'_, Mail>, call: &Call, body: &[u8]) {
        let (shard, call) = (self, call.clone());
        shard.shared.refresh(&mut shard.catalogue);
        handlers!(shard, io, call, body, shard.answer_unsupported(io, &call), {
            add_offsets_to_txn::AddOffsetsToTxnRequest,
            add_partitions_to_txn::AddPartitionsToTxnRequest,
            alter_configs::AlterConfigsRequest,
            create_partitions::CreatePartitionsRequest,
            create_topics::CreateTopicsRequest,
            delete_groups::DeleteGroupsRequest,
            delete_topics::DeleteTopicsRequest,
            describe_groups::DescribeGroupsRequest,
            describe_transactions::DescribeTransactionsRequest,
            end_txn::EndTxnRequest,
            heartbeat::HeartbeatRequest,
            incremental_alter_configs::IncrementalAlterConfigsRequest,
            init_producer_id::InitProducerIdRequest,
            join_group::JoinGroupRequest,
            leave_group::LeaveGroupRequest,
            list_groups::ListGroupsRequest,
            list_transactions::ListTransactionsRequest,
            metadata::MetadataRequest,
            offset_commit::OffsetCommitRequest,
            offset_delete::OffsetDeleteRequest,
            offset_fetch::OffsetFetchRequest,
            sync_group::SyncGroupRequest,
            txn_offset_commit::TxnOffsetCommitRequest,
        });
        shard.go_on_coordinating(io);
    }

    /// Answers a request that is not served, or not in this version: with the error alone, in the oldest form of a
    /// response. `ApiVersions` has an answer that every client understands (KIP-511).
    pub(crate) fn answer_unsupported(&mut self, io: &mut Io<'_, Mail>, call: &Call) {
        if call.api_key == <mainstem_kafka::api::api_versions::ApiVersionsRequest as Request>::KEY {
            let call = Call { version: 0, ..call.clone() };
            let response = api_versions::response(ErrorCode::UnsupportedVersion);
            return self.reply::<mainstem_kafka::api::api_versions::ApiVersionsRequest>(io, &call, &response);
        }
        if call.caller.shard == self.me
            && let Some(conn) = self.conn_mut(call.caller.conn)
            && !std::mem::replace(&mut conn.is_noted, true)
            && self.faults.may_say(io.clock.now_ms)
        {
            let Call { api_key, version, client_id, .. } = call;
            log::info!(
                "kafka client {client_id:?} asks for API {api_key} in version {version}, which is not served"
            );
        }
        let mut answer = Vec::new();
        let begun = frame::begin(&mut answer);
        put_response_header(call.correlation_id, i16::MAX, 0, &mut answer);
        answer.extend_from_slice(&(ErrorCode::UnsupportedVersion as i16).to_be_bytes());
        frame::end(&mut answer, begun, 0);
        self.reply_with(io, call.caller, answer);
    }

    /// Ends the connection of a request that is malformed.
    pub(crate) fn refuse_call(&mut self, io: &mut Io<'_, Mail>, call: &Call, what: &str) {
        let name = registry::find(call.api_key).map_or("?", registry::Api::name);
        let what = format!("malformed {name} of version {}: {what}", call.version);
        if call.caller.shard == self.me {
            self.refuse(io, call.caller.conn, &what);
        } else {
            io.send(call.caller.shard, Mail(Letter::Refuse { conn: call.caller.conn, what }));
        }
    }
}
