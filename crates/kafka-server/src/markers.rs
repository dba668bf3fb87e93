//! Transaction markers: writes the outcome of a transaction into its partitions and groups.

use std::sync::Arc;

use mainstem_coordinator::group::{Response, TransactionEnd};
use mainstem_coordinator::producer::{Marker, Outcome};
use mainstem_coordinator::transaction::{Markers, Participant};
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::partition_message::{MarkPart, PartitionRequest};
use crate::pending::{AfterGroupReply, AfterMarkers};
use crate::shard::Shard;
use crate::shard_message::Mail;

impl Shard {
    /// Writes markers into partitions of any shard, and continues with their outcomes, in order.
    pub(crate) fn write_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: Vec<(PartitionId, Marker)>,
        then: AfterMarkers,
    ) {
        let mut outcomes = Vec::with_capacity(markers.len());
        let mut by_shard: Vec<Vec<MarkPart>> = (0..self.env.shared().shards).map(|_| Vec::new()).collect();
        let mut waiting = 0;
        for (part, (id, marker)) in (0..).zip(markers) {
            match self.env.owner_of(id) {
                Ok(shard) => {
                    by_shard[shard].push(MarkPart { part, id, marker });
                    outcomes.push(Ok(()));
                    waiting += 1;
                }
                Err(code) => outcomes.push(Err(code)),
            }
        }
        if waiting == 0 {
            return self.resume_markers(io, then, outcomes);
        }
        let job = self.jobs.add_markers(outcomes, waiting, then);
        for (shard, parts) in by_shard.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
            self.send_partition_request(io, shard, job, PartitionRequest::WriteMarkers(parts));
        }
    }

    /// Writes the markers of a transaction and reports each outcome to the coordinator.
    pub(crate) fn issue_markers(&mut self, io: &mut Io<'_, Mail>, markers: &Arc<Markers>) {
        self.env.refresh();
        let marker = Marker {
            producer_id: markers.producer.id,
            producer_epoch: markers.producer.epoch,
            coordinator_epoch: markers.coordinator_epoch,
            outcome: markers.outcome,
            timestamp_ms: io.clock.unix_ms.cast_signed(),
        };
        let (mut partitions, mut gone, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for participant in &markers.participants {
            match participant {
                Participant::Group(_) => groups.push(participant.clone()),
                Participant::Partition { topic, index } => match self.env.catalogue().topic(topic) {
                    Some(known) => partitions.push((participant.clone(), known.partition(*index))),
                    None => gone.push(participant.clone()),
                },
            }
        }
        self.write_group_markers(io, markers, groups);
        for (participant, id) in partitions {
            let then = AfterMarkers::EndTransaction { markers: Arc::clone(markers), participant };
            self.write_markers(io, vec![(id, marker)], then);
        }
        for participant in gone {
            self.report_marker(io, markers, &participant, Ok(()));
        }
    }

    fn write_group_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: &Arc<Markers>,
        groups: Vec<Participant>,
    ) {
        if groups.is_empty() {
            return;
        }
        let end = match markers.outcome {
            Outcome::Commit => TransactionEnd::Commit,
            Outcome::Abort => TransactionEnd::Abort,
        };
        let producer_id = markers.producer.id;
        self.call_groups(
            io,
            |known, _, caller| known.handle_transaction_end(producer_id, end, caller),
            AfterGroupReply::EndTransaction { markers: Arc::clone(markers), groups },
        );
    }

    /// The end of a transaction is written to these groups.
    pub(crate) fn on_group_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: &Markers,
        groups: &[Participant],
        answer: &Response,
    ) {
        let outcome = match answer {
            Response::TransactionEnd(Ok(())) => Ok(()),
            _ => Err(ErrorCode::KafkaStorageError),
        };
        for participant in groups {
            self.report_marker(io, markers, participant, outcome);
        }
    }

    /// Reports the outcome of a marker to the transactions.
    pub(crate) fn report_marker(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: &Markers,
        participant: &Participant,
        outcome: Result<(), ErrorCode>,
    ) {
        let Markers { transactional_id, producer, .. } = markers;
        // A deleted partition, or one with a newer producer epoch, has no open transaction to end.
        let is_written = matches!(
            outcome,
            Ok(())
                | Err(ErrorCode::UnknownTopicOrPartition
                    | ErrorCode::InvalidProducerEpoch
                    | ErrorCode::TransactionCoordinatorFenced)
        );
        let Some(controller) = &mut self.controller else { return };
        controller.transactions.update(io.clock, |machine, now_ms| {
            if is_written {
                machine.marker_written(transactional_id, *producer, participant, now_ms);
            } else {
                machine.marker_failed(transactional_id, *producer, participant, now_ms);
            }
        });
        self.poll_transactions(io);
    }
}
