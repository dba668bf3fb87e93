//! Continues pending operations: the only place that matches the values of [`crate::pending`].
//!
//! A request may wait for a group, a transaction, the disk or another shard, and nothing may block meanwhile. There are
//! no futures and no callbacks: what is to be continued is a value with the state that it needs, and these functions
//! call the handler's next step with the result. So one can read here what can follow what, and a wait holds no
//! reference into the shard.

use std::sync::Arc;

use mainstem_coordinator::Error;
use mainstem_coordinator::group::Response;
use mainstem_coordinator::transaction::Producer;
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::append_error::AppendError;
use crate::division::{DividedRequest, NextPart};
use crate::handlers::{
    add_offsets_to_txn, add_partitions_to_txn, alter_configs, alter_partition_reassignments,
    consumer_group_describe, consumer_group_heartbeat, create_partitions, create_topics, delete_groups,
    delete_records, delete_topics, describe_configs, describe_groups, describe_log_dirs, describe_producers,
    describe_transactions, end_txn, find_coordinator, incremental_alter_configs, init_producer_id,
    join_group, leave_group, list_offsets, metadata, offset_commit, offset_delete, offset_fetch,
    offset_for_leader_epoch, produce, sync_group, txn_offset_commit, write_txn_markers,
};
use crate::jobs::Job;
use crate::offset_fetch_division::KnownOffsets;
use crate::partition_message::{PartitionQueryResult, PartitionResponse};
use crate::pending::{
    AfterChanges, AfterGroupReply, AfterMarkers, AfterQueries, AfterTopicChange, AfterTxnReply,
};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext, TxnVerified};
use crate::sinks::SinkResult;

impl Shard {
    /// Delivers the response of a shard to its job.
    pub(crate) fn on_partition_response(
        &mut self,
        io: &mut Io<'_, Mail>,
        number: u64,
        done: PartitionResponse,
    ) {
        match (self.jobs.get(number), done) {
            (Some(Job::Produce(_)), PartitionResponse::Produced(produced)) => {
                if let Some(job) = self.jobs.end_append(number, produced) {
                    produce::finish(self, io, &job);
                }
            }
            (Some(Job::Sink(_)), PartitionResponse::Produced(produced)) => {
                if let Some(job) = self.jobs.take_sink(number) {
                    self.bindings.settle(job, SinkResult::of(&produced.outcome));
                }
            }
            (Some(Job::QueueAppend(_)), PartitionResponse::Produced(produced)) => {
                self.on_queue_append(io, number, &produced);
            }
            (Some(Job::Audit), PartitionResponse::Produced(produced)) => {
                drop(self.jobs.take(number));
                self.on_audit_events_appended(io, &produced);
            }
            (Some(Job::Mark(_)), PartitionResponse::Produced(produced)) => {
                if let Some((then, outcomes)) = self.jobs.end_marker(number, produced) {
                    self.resume_markers(io, then, outcomes);
                }
            }
            (Some(Job::Fetch(_)), PartitionResponse::Fetched(fetched)) => {
                if let Some((fetch, is_woken)) = self.jobs.add_fetched(number, fetched) {
                    self.finish_attempt(io, number, fetch, is_woken);
                }
            }
            (Some(Job::Query(_)), PartitionResponse::Asked(results)) => {
                if let Some((then, results)) = self.jobs.end_queries(number, results) {
                    self.resume_queries(io, then, results);
                }
            }
            // The connection has closed.
            _ => {}
        }
    }

    /// Continues with an answer of the consumer groups.
    pub(crate) fn resume_group_reply(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterGroupReply,
        answer: Response,
    ) {
        match then {
            AfterGroupReply::DeleteGroups { call, denied } => {
                delete_groups::finish(self, io, &call, denied, answer);
            }
            AfterGroupReply::Configure { job, part } => {
                alter_configs::group_configured(self, io, (job, part), answer);
            }
            AfterGroupReply::ConsumerGroupHeartbeat(call) => {
                consumer_group_heartbeat::finish(self, io, &call, answer);
            }
            AfterGroupReply::JoinGroup(call) => join_group::finish(self, io, &call, answer),
            AfterGroupReply::LeaveGroup(call) => leave_group::finish(self, io, &call, answer),
            AfterGroupReply::OffsetCommit(call) => offset_commit::finish(self, io, &call, answer),
            AfterGroupReply::OffsetDelete(call) => offset_delete::finish(self, io, &call, answer),
            AfterGroupReply::OffsetFetch { call, denied } => {
                offset_fetch::finish(self, io, &call, denied, answer);
            }
            AfterGroupReply::SyncGroup(call) => sync_group::finish(self, io, &call, answer),
            AfterGroupReply::TxnOffsetCommit(call) => txn_offset_commit::finish(self, io, &call, answer),
            AfterGroupReply::EndTransaction { markers, groups } => {
                self.on_group_markers(io, &markers, &groups, &answer);
            }
        }
    }

    /// Continues with an answer of the transactions.
    pub(crate) fn resume_txn_reply(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterTxnReply,
        answer: Result<Producer, Error>,
    ) {
        match then {
            AfterTxnReply::AddOffsetsToTxn(call) => add_offsets_to_txn::finish(self, io, &call, answer),
            AfterTxnReply::AddPartitionsToTxn { job, part, version } => {
                add_partitions_to_txn::on_added(self, io, (job, part, version), answer);
            }
            AfterTxnReply::EndTxn(call) => end_txn::finish(self, io, &call, answer),
            AfterTxnReply::InitProducerId(call) => init_producer_id::finish(self, io, &call, answer),
            AfterTxnReply::TxnOffsetCommit { call, request } => {
                txn_offset_commit::on_group_added(self, io, call, &request, answer);
            }
            AfterTxnReply::VerifyTxn { shard, id, producer } => {
                let outcome = answer.map(drop);
                self.send_verification(io, shard, TxnVerified { id, producer, outcome });
            }
        }
    }

    /// Continues when markers are written or have failed.
    pub(crate) fn resume_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterMarkers,
        outcomes: Vec<Result<(), ErrorCode>>,
    ) {
        match then {
            AfterMarkers::WriteTxnMarkers { call, request } => {
                write_txn_markers::finish(self, io, &call, &request, outcomes);
            }
            AfterMarkers::EndTransaction { markers, participants } => {
                self.report_markers(io, &markers, participants.into_iter().zip(outcomes));
            }
        }
    }

    /// Continues with the results of partition queries.
    pub(crate) fn resume_queries(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterQueries,
        results: Vec<PartitionQueryResult>,
    ) {
        match then {
            AfterQueries::DeleteRecords { call, request, refusals } => {
                delete_records::finish(self, io, &call, request, refusals, results);
            }
            AfterQueries::DescribeLogDirs { call, topics } => {
                describe_log_dirs::finish(self, io, &call, topics, results);
            }
            AfterQueries::DescribeProducers { call, request } => {
                describe_producers::finish(self, io, &call, &request, results);
            }
            AfterQueries::ListOffsets { call, request } => {
                list_offsets::finish(self, io, &call, &request, results);
            }
            AfterQueries::OffsetForLeaderEpoch { call, request } => {
                offset_for_leader_epoch::finish(self, io, &call, &request, results);
            }
        }
    }

    /// Continues when all changes of a request are durable or have failed.
    pub(crate) fn resume_changes(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterChanges,
        outcomes: Vec<Result<(), AppendError>>,
    ) {
        match then {
            AfterChanges::AddPartitionsToTxn { call, transactions, immediate } => {
                add_partitions_to_txn::finish(self, io, &call, (&transactions, immediate), outcomes);
            }
            AfterChanges::AlterConfigs { call, changes, before } => {
                alter_configs::finish(self, io, &call, (changes, before), outcomes);
            }
            AfterChanges::CreatePartitions { call, names, before } => {
                create_partitions::finish(self, io, &call, (names, before), outcomes);
            }
            AfterChanges::CreateTopics { call, names, plans } => {
                create_topics::finish(self, io, &call, (&names, &plans), outcomes);
            }
            AfterChanges::DeleteTopics { call, topics, before } => {
                delete_topics::finish(self, io, call, (topics, before), outcomes);
            }
            AfterChanges::IncrementalAlterConfigs { call, changes, before } => {
                incremental_alter_configs::finish(self, io, &call, (changes, before), outcomes);
            }
            AfterChanges::Metadata { call, request } => metadata::finish(self, io, &call, request),
        }
    }

    /// Handles the next part of a request, or sends the response.
    pub(crate) fn continue_division(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        let Some(division) = self.jobs.division(number) else { return };
        self.env.refresh();
        let groups = self.controller.as_deref().map(|controller| &controller.groups);
        let known = KnownOffsets { groups, catalogue: self.env.catalogue() };
        let caller = division.call().caller;
        if caller.shard == self.env.me() && self.conns.get_mut(caller.conn).is_none() {
            return self.drop_division(io, number);
        }
        let epoch = self.env.shared().security_epoch();
        if let Some(sender) = &division.call().sender
            && sender.grants.epoch() != epoch
        {
            // Users or rules have changed since the last part. A client that may not be connected any more gets no
            // response: its connection ends.
            match sender.renewed(&division.call().client_id, io.clock.unix_ms) {
                Some(renewed) => division.set_sender(Arc::new(renewed)),
                None => return self.drop_division(io, number),
            }
        }
        let call = RequestContext { division: Some(number), ..division.call().clone() };
        match division.next_part(&known) {
            NextPart::Part(part) => self.handle_part(io, call, part),
            NextPart::Preparing => self.continue_divided(io, number),
            NextPart::End => {
                if let Some(division) = self.jobs.take_division(number) {
                    let (answer, rest) = division.finish();
                    io.discard(Box::new(rest));
                    self.reply_with(io, caller, answer);
                }
            }
        }
        self.poll_coordinators(io);
    }

    fn handle_part(&mut self, io: &mut Io<'_, Mail>, call: RequestContext, part: DividedRequest) {
        match part {
            DividedRequest::AddPartitionsToTxn(part) => {
                add_partitions_to_txn::refuse_part(self, io, &call, part);
            }
            DividedRequest::AlterConfigs(part) => alter_configs::handle(self, io, call, part),
            DividedRequest::AlterPartitionReassignments(part) => {
                alter_partition_reassignments::handle(self, io, call, part);
            }
            DividedRequest::CreatePartitions(part) => create_partitions::handle(self, io, call, part),
            DividedRequest::CreateTopics(part) => create_topics::handle(self, io, call, part),
            DividedRequest::DeleteGroups(part) => delete_groups::handle(self, io, call, part),
            DividedRequest::DeleteRecords(part) => delete_records::handle(self, io, call, part),
            DividedRequest::DeleteTopics(part) => delete_topics::handle(self, io, call, part),
            DividedRequest::DescribeConfigs(part) => describe_configs::handle(self, io, call, part),
            DividedRequest::ConsumerGroupDescribe(part) => {
                consumer_group_describe::handle(self, io, call, part);
            }
            DividedRequest::DescribeGroups(part) => describe_groups::handle(self, io, call, part),
            DividedRequest::DescribeProducers(part) => describe_producers::handle(self, io, call, part),
            DividedRequest::DescribeTransactions(part) => describe_transactions::handle(self, io, call, part),
            DividedRequest::FindCoordinator(part) => find_coordinator::handle(self, io, call, part),
            DividedRequest::IncrementalAlterConfigs(part) => {
                incremental_alter_configs::handle(self, io, call, part);
            }
            DividedRequest::LeaveGroup(part) => leave_group::handle(self, io, call, part),
            DividedRequest::ListOffsets(part) => list_offsets::handle(self, io, call, part),
            DividedRequest::Metadata(part) => metadata::answer_part(self, io, &call, *part),
            DividedRequest::OffsetCommit(part) => offset_commit::handle(self, io, call, part),
            DividedRequest::OffsetDelete(part) => offset_delete::handle(self, io, call, part),
            DividedRequest::OffsetFetch(part) => offset_fetch::answer(self, io, call, part),
            DividedRequest::OffsetForLeaderEpoch(part) => {
                offset_for_leader_epoch::handle(self, io, call, part);
            }
            DividedRequest::Produce(part) => produce::handle_owned(self, io, call, part),
            DividedRequest::TxnOffsetCommit(part) => txn_offset_commit::handle(self, io, call, part),
        }
    }

    /// Drops what is left of a request whose client has gone.
    fn drop_division(&mut self, io: &Io<'_, Mail>, number: u64) {
        if let Some(division) = self.jobs.take_division(number) {
            io.discard(division);
        }
    }

    /// Continues when the change of one topic is durable or has failed.
    pub(crate) fn resume_topic_change(
        &mut self,
        io: &mut Io<'_, Mail>,
        then: AfterTopicChange,
        outcome: Result<(), AppendError>,
    ) {
        match then {
            AfterTopicChange::Job { job, part } => self.change_done(io, job, part, outcome),
            AfterTopicChange::AutoCreatedTopic { job, part } => {
                metadata::on_created(self, io, (job, part), outcome);
            }
            AfterTopicChange::QueueReply(to) => self.on_queue_administered(io, to, outcome),
            AfterTopicChange::AutoCreatedQueue(request) => self.on_queue_auto_created(io, *request, outcome),
            AfterTopicChange::AuditTopic => self.on_audit_topic_created(outcome),
            AfterTopicChange::BoundTopic(name) => match outcome {
                Ok(()) => self.batch_waiting_records(io),
                Err(refused) => {
                    log::warn!("topic {name}: cannot create the topic of a binding: {refused:?}");
                }
            },
        }
    }
}
