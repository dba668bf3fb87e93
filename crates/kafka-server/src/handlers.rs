//! The APIs that the broker serves: one handler file per API, and the table that requests are dispatched by.
//!
//! `serve!` is the only list of served APIs. The dispatch, the `ApiVersions` response and the table in `docs/kafka.md`
//! derive from it; names, keys and versions come from the declarations in `mainstem-kafka`. To add an API, write its
//! declaration there and its handler here, and add a line to the list of each crate.
//!
//! Each handler file has a function `handle`, which answers with [`Shard::reply`], immediately or later. A handler that
//! runs on the controller gets requests from other shards too: they are forwarded as messages, and [`Shard::reply`]
//! returns the response the same way, so the handler does not depend on the connection's shard. Handlers reach
//! partitions of any shard with [`Shard::query_partitions`].

#![allow(
    clippy::needless_pass_by_value,
    reason = "all handlers have one signature, and those that answer later need to own the request"
)]

pub(crate) mod add_offsets_to_txn;
pub(crate) mod add_partitions_to_txn;
pub(crate) mod alter_client_quotas;
pub(crate) mod alter_configs;
pub(crate) mod alter_partition_reassignments;
pub(crate) mod alter_replica_log_dirs;
pub(crate) mod alter_user_scram_credentials;
pub(crate) mod api_versions;
pub(crate) mod consumer_group_describe;
pub(crate) mod consumer_group_heartbeat;
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
pub(crate) mod sasl_authenticate;
pub(crate) mod sasl_handshake;
pub(crate) mod sync_group;
pub(crate) mod txn_offset_commit;
pub(crate) mod write_txn_markers;

use std::fmt::Display;

use mainstem_kafka::api::api_versions::ApiVersionsRequest;
use mainstem_kafka::api::produce::ProduceRequestRef;
use mainstem_kafka::api::{self, Api};
use mainstem_kafka::{ErrorCode, Message, Reader, Request, frame, put_response_header};
use mainstem_runtime::Io;
use mainstem_security::ChangeError;

use crate::long_request::{self, LongRequest};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext, ShardMessage};

/// An API that the broker serves.
#[derive(Debug)]
pub struct ServedApi {
    /// Name, key and versions.
    pub api: Api,
    /// What users should know about it, for the table in `docs/kafka.md`; usually empty.
    pub note: &'static str,
    runs_on: RunsOn,
    /// Most elements of a request that is handled in one turn: those of all arrays, and one for 256 bytes of strings.
    elements_max: usize,
    decode_and_handle: fn(&mut Shard, &mut Io<'_, Mail>, RequestContext, &[u8]),
    /// Begins to decode a long request.
    begin_long: fn(i16) -> Box<dyn LongRequest>,
    handle_long: fn(&mut Shard, &mut Io<'_, Mail>, RequestContext, Box<dyn LongRequest>),
}

/// The shard that a handler runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunsOn {
    /// The shard of the connection.
    Connection,
    /// Shard 0, which has the coordinators and changes the catalogue.
    Controller,
}

impl ServedApi {
    fn find(key: i16) -> Option<&'static Self> {
        SERVED.binary_search_by_key(&key, |served| served.api.key).ok().map(|index| &SERVED[index])
    }
}

/// Declares [`SERVED`]. A line has the handler's module, the request, the type to decode it as if that is another one,
/// the shard that the handler runs on, the most elements of a request unless long ones are handled in parts, and the
/// note for `docs/kafka.md`.
macro_rules! serve {
    ($($module:ident::$request:ident $(as $decoded:ty)? => $runs_on:ident
        $(<= $elements_max:literal)? $(, $note:literal)?;)*) => {
        /// All APIs that the broker serves, ordered by key.
        pub static SERVED: &[ServedApi] = &[$(ServedApi {
            api: Api::of::<api::$module::$request>(),
            note: concat!($($note)?),
            runs_on: RunsOn::$runs_on,
            elements_max: limit!($($elements_max)?),
            decode_and_handle: |shard, io, call, body| {
                match <first!($($decoded,)? api::$module::$request)>::decode(&mut Reader::new(body), call.version) {
                    Ok(request) => $module::handle(shard, io, call, request),
                    Err(error) => shard.refuse_call(io, &call, &error.to_string()),
                }
            },
            begin_long: long_request::begin::<api::$module::$request>,
            handle_long: |shard, io, call, request| {
                if let Some(request) = long_request::take::<api::$module::$request>(request) {
                    handle_long!($module $(as $decoded)?)(shard, io, call, request);
                }
            },
        },)*];
    };
}

/// The handler of a request that was decoded in steps.
macro_rules! handle_long {
    ($module:ident) => {
        $module::handle
    };
    ($module:ident as $decoded:ty) => {
        $module::handle_owned
    };
}

/// The most elements of a request.
macro_rules! limit {
    () => {
        usize::MAX
    };
    ($elements_max:literal) => {
        $elements_max
    };
}

/// The first of one or two types.
macro_rules! first {
    ($first:ty $(, $second:ty)?) => {
        $first
    };
}

serve! {
    produce::ProduceRequest as ProduceRequestRef<'_> => Connection,
        "announced from 0 because librdkafka infers missing features from a higher minimum; 0 to 2 are not served";
    fetch::FetchRequest => Connection <= 50_000;
    list_offsets::ListOffsetsRequest => Connection;
    metadata::MetadataRequest => Connection;
    offset_commit::OffsetCommitRequest => Controller;
    offset_fetch::OffsetFetchRequest => Controller;
    find_coordinator::FindCoordinatorRequest => Connection;
    join_group::JoinGroupRequest => Controller <= 10_000;
    heartbeat::HeartbeatRequest => Controller;
    leave_group::LeaveGroupRequest => Controller;
    sync_group::SyncGroupRequest => Controller;
    describe_groups::DescribeGroupsRequest => Controller;
    list_groups::ListGroupsRequest => Controller <= 10_000;
    sasl_handshake::SaslHandshakeRequest => Connection;
    api_versions::ApiVersionsRequest => Connection;
    create_topics::CreateTopicsRequest => Controller;
    delete_topics::DeleteTopicsRequest => Controller;
    delete_records::DeleteRecordsRequest => Connection;
    init_producer_id::InitProducerIdRequest => Controller;
    offset_for_leader_epoch::OffsetForLeaderEpochRequest => Connection, "one epoch, 0";
    add_partitions_to_txn::AddPartitionsToTxnRequest => Controller, "from 4 on between brokers only";
    add_offsets_to_txn::AddOffsetsToTxnRequest => Controller;
    end_txn::EndTxnRequest => Controller;
    write_txn_markers::WriteTxnMarkersRequest => Connection <= 10_000,
        "between brokers; served for tools that abort hanging transactions";
    txn_offset_commit::TxnOffsetCommitRequest => Controller;
    describe_acls::DescribeAclsRequest => Connection;
    create_acls::CreateAclsRequest => Connection <= 4_000;
    delete_acls::DeleteAclsRequest => Connection <= 4_000;
    describe_configs::DescribeConfigsRequest => Controller;
    alter_configs::AlterConfigsRequest => Controller, "topics and groups";
    alter_replica_log_dirs::AlterReplicaLogDirsRequest => Connection <= 20_000, "one directory";
    describe_log_dirs::DescribeLogDirsRequest => Connection <= 20_000, "one directory";
    sasl_authenticate::SaslAuthenticateRequest => Connection;
    create_partitions::CreatePartitionsRequest => Controller;
    delete_groups::DeleteGroupsRequest => Controller;
    elect_leaders::ElectLeadersRequest => Connection <= 20_000, "nothing to elect";
    incremental_alter_configs::IncrementalAlterConfigsRequest => Controller, "topics and groups";
    alter_partition_reassignments::AlterPartitionReassignmentsRequest => Connection, "no reassignment possible";
    list_partition_reassignments::ListPartitionReassignmentsRequest => Connection <= 20_000, "always empty";
    offset_delete::OffsetDeleteRequest => Controller;
    describe_client_quotas::DescribeClientQuotasRequest => Connection <= 4_000;
    alter_client_quotas::AlterClientQuotasRequest => Connection <= 4_000;
    describe_user_scram_credentials::DescribeUserScramCredentialsRequest => Connection <= 4_000;
    alter_user_scram_credentials::AlterUserScramCredentialsRequest => Connection <= 4_000;
    describe_quorum::DescribeQuorumRequest => Connection, "one voter";
    describe_cluster::DescribeClusterRequest => Connection, "one node";
    describe_producers::DescribeProducersRequest => Connection;
    describe_transactions::DescribeTransactionsRequest => Controller;
    list_transactions::ListTransactionsRequest => Controller <= 10_000;
    consumer_group_heartbeat::ConsumerGroupHeartbeatRequest => Controller <= 150_000;
    consumer_group_describe::ConsumerGroupDescribeRequest => Controller;
    list_config_resources::ListConfigResourcesRequest => Controller;
    describe_topic_partitions::DescribeTopicPartitionsRequest => Connection <= 50_000, "up to 2,000 partitions per page";
}

/// Begins to decode a long request; `None` if it is not served.
pub(crate) fn begin_long(api_key: i16, version: i16) -> Option<Box<dyn LongRequest>> {
    let served = ServedApi::find(api_key).filter(|served| served.api.versions.contains(&version))?;
    Some((served.begin_long)(version))
}

/// Why the connection of a request is closed that has more elements than may be handled in one turn; `None` if it has
/// not.
pub(crate) fn too_long(api_key: i16, elements: usize) -> Option<String> {
    let served = ServedApi::find(api_key).filter(|served| elements > served.elements_max)?;
    let ServedApi { api, elements_max, .. } = served;
    Some(format!("{} with more than {elements_max} elements", api.name))
}

/// Why the connection of a malformed request is closed.
pub(crate) fn malformed(api_key: i16, version: i16, what: &dyn Display) -> String {
    let name = api::find(api_key).map_or("?", |api| api.name);
    format!("malformed {name} of version {version}: {what}")
}

impl Shard {
    /// Dispatches a request of a connection of this shard: one that was decoded in steps, or the body of another one.
    pub(crate) fn dispatch(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: RequestContext,
        request: Result<Box<dyn LongRequest>, &[u8]>,
    ) {
        self.env.refresh();
        let served =
            ServedApi::find(call.api_key).filter(|served| served.api.versions.contains(&call.version));
        let Some(served) = served else { return self.answer_unsupported(io, &call) };
        match (served.runs_on, request) {
            (RunsOn::Connection, Ok(request)) => (served.handle_long)(self, io, call, request),
            (RunsOn::Connection, Err(body)) => (served.decode_and_handle)(self, io, call, body),
            (RunsOn::Controller, Ok(request)) if self.env.is_controller() => {
                self.coordinate_long(io, call, request);
            }
            (RunsOn::Controller, Err(body)) if self.env.is_controller() => self.coordinate(io, call, body),
            (RunsOn::Controller, Ok(request)) => {
                io.send(0, Mail(ShardMessage::ForwardDecoded { call, request }));
            }
            (RunsOn::Controller, Err(body)) => {
                io.send(0, Mail(ShardMessage::ForwardToController { call, body: body.to_vec() }));
            }
        }
    }

    /// Handles a request on the controller that was decoded in steps, which may come from another shard.
    pub(crate) fn coordinate_long(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: RequestContext,
        request: Box<dyn LongRequest>,
    ) {
        self.env.refresh();
        let served = ServedApi::find(call.api_key).expect("only served requests are forwarded");
        (served.handle_long)(self, io, call, request);
        self.poll_coordinators(io);
    }

    /// Handles a request on the controller, which may come from a connection of another shard.
    pub(crate) fn coordinate(&mut self, io: &mut Io<'_, Mail>, call: RequestContext, body: &[u8]) {
        self.env.refresh();
        let served = ServedApi::find(call.api_key).expect("only served requests are forwarded");
        (served.decode_and_handle)(self, io, call, body);
        self.poll_coordinators(io);
    }

    /// Answers a request whose API or version is not served: the error alone, in the oldest encoding of a response.
    /// `ApiVersions` has a response that every client understands (KIP-511).
    fn answer_unsupported(&mut self, io: &mut Io<'_, Mail>, call: &RequestContext) {
        if call.api_key == ApiVersionsRequest::KEY {
            let call = RequestContext { version: 0, ..call.clone() };
            let response = api_versions::response(ErrorCode::UnsupportedVersion);
            return self.reply::<ApiVersionsRequest>(io, &call, &response);
        }
        if call.caller.shard == self.env.me()
            && let Some(conn) = self.conns.get_mut(call.caller.conn)
            && !std::mem::replace(&mut conn.has_logged_unsupported, true)
            && self.env.should_log(io.clock.now_ms)
        {
            let RequestContext { api_key, version, client_id, .. } = call;
            log::info!(
                "kafka client {client_id:?} asks for API {api_key} in version {version}, which is not served"
            );
        }
        let mut answer = Vec::new();
        let begun = frame::begin_frame(&mut answer);
        put_response_header(call.correlation_id, i16::MAX, 0, &mut answer);
        answer.extend_from_slice(&(ErrorCode::UnsupportedVersion as i16).to_be_bytes());
        frame::end_frame(&mut answer, begun, 0);
        self.reply_with(io, call.caller, answer);
    }

    /// Closes the connection of a malformed request.
    pub(crate) fn refuse_call(&mut self, io: &mut Io<'_, Mail>, call: &RequestContext, what: &str) {
        let what = malformed(call.api_key, call.version, &what);
        if call.caller.shard == self.env.me() {
            self.refuse(io, call.caller.conn, &what);
        } else {
            io.send(call.caller.shard, Mail(ShardMessage::CloseConnection { conn: call.caller.conn, what }));
        }
    }
}

/// The error of a change of users and rules.
fn security_change_error(error: &ChangeError) -> (ErrorCode, String) {
    match error {
        ChangeError::Invalid(error) => (ErrorCode::InvalidRequest, error.to_string()),
        ChangeError::NotFound(what) => (ErrorCode::ResourceNotFound, format!("{what} does not exist")),
        ChangeError::Exists(what) => (ErrorCode::DuplicateResource, format!("{what} exists")),
        ChangeError::Log(what) => {
            (ErrorCode::KafkaStorageError, format!("users and rules cannot be stored: {what}"))
        }
        ChangeError::Unavailable => {
            (ErrorCode::CoordinatorNotAvailable, "the broker stops, or too many changes are waiting".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dispatch finds an API by binary search, and a codec that is not served has no user.
    #[test]
    fn every_api_with_a_codec_is_served_in_the_order_of_keys() {
        struct Keys(Vec<i16>);
        impl api::Visitor for Keys {
            fn visit<R: Request>(&mut self) {
                self.0.push(R::KEY);
            }
        }
        let mut keys = Keys(Vec::new());
        api::visit(&mut keys);
        assert!(SERVED.iter().map(|served| served.api.key).eq(keys.0));
    }
}
