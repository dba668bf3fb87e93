//! Transaction markers: writes the outcome of a transaction into its partitions and groups.
//!
//! The outcome is decided and durable when this begins, so markers are written until each participant has its own; a
//! participant that fails is reported, and the coordinator tries it again. A participant that no longer exists counts
//! as written, or the transaction would never end.
//!
//! A transaction may have thousands of participants on all shards: they are handled in slices, one per turn.

use std::sync::Arc;

use mainstem_coordinator::group::{Response, TransactionEnd};
use mainstem_coordinator::producer::{Marker, Outcome};
use mainstem_coordinator::transaction::{Markers, Participant};
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::partition_message::{MarkPart, PartitionRequest};
use crate::pending::{AfterGroupReply, AfterMarkers};
use crate::pending_work::Task;
use crate::shard::Shard;
use crate::shard_message::Mail;

/// Participants of a transaction whose markers are written together.
const MARKERS_PER_SLICE: usize = 250;
/// Finding a participant, and reporting the outcome of its marker.
const MARKER_UNITS: u32 = 20;

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

    /// Writes the markers of a transaction and reports each outcome to the coordinator. A transaction may have
    /// thousands of participants, so this may take several turns.
    pub(crate) fn issue_markers(&mut self, io: &mut Io<'_, Mail>, markers: Arc<Markers>) {
        let is_group = |participant: &&Participant| matches!(participant, Participant::Group(_));
        let groups = markers.participants.iter().filter(is_group).cloned().collect();
        self.write_group_markers(io, &markers, groups);
        self.pending_work.begin_request(io.charged());
        if let Some(next) = self.write_next_markers(io, &markers, 0) {
            self.pending_work.add(Task::WriteMarkers { markers, next });
            io.request_turn();
        }
    }

    /// Writes the markers of the partitions among the next participants, from the one with index `from` on. Returns the
    /// index to continue with, if there are more.
    pub(crate) fn write_next_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: &Arc<Markers>,
        from: usize,
    ) -> Option<usize> {
        self.env.refresh();
        let marker = Marker {
            producer_id: markers.producer.id,
            producer_epoch: markers.producer.epoch,
            coordinator_epoch: markers.coordinator_epoch,
            outcome: markers.outcome,
            timestamp_ms: io.clock.unix_ms.cast_signed(),
        };
        let rest = markers.participants.get(from..).unwrap_or_default();
        let slice = &rest[..rest.len().min(MARKERS_PER_SLICE)];
        io.charge(slice.len() as u32 * MARKER_UNITS);
        let (mut partitions, mut participants, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for participant in slice {
            let Participant::Partition { topic, index } = participant else { continue };
            match self.env.catalogue().topic(topic) {
                Some(known) => {
                    partitions.push((known.partition(*index), marker));
                    participants.push(participant.clone());
                }
                None => gone.push((participant.clone(), Ok(()))),
            }
        }
        let next = from + slice.len();
        if !partitions.is_empty() {
            let then = AfterMarkers::EndTransaction { markers: Arc::clone(markers), participants };
            self.write_markers(io, partitions, then);
        }
        self.report_markers(io, markers, gone.into_iter());
        (next < markers.participants.len()).then_some(next)
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
        self.report_markers(io, markers, groups.iter().map(|group| (group.clone(), outcome)));
    }

    /// Reports the outcomes of markers to the transactions.
    pub(crate) fn report_markers(
        &mut self,
        io: &mut Io<'_, Mail>,
        markers: &Markers,
        outcomes: impl Iterator<Item = (Participant, Result<(), ErrorCode>)>,
    ) {
        let Markers { transactional_id, producer, .. } = markers;
        let Some(controller) = &mut self.controller else { return };
        controller.transactions.update(io.clock, |machine, now_ms| {
            for (participant, outcome) in outcomes {
                if is_written(outcome) {
                    machine.marker_written(transactional_id, *producer, &participant, now_ms);
                } else {
                    machine.marker_failed(transactional_id, *producer, &participant, now_ms);
                }
            }
        });
        self.poll_transactions(io);
    }
}

/// Whether nothing is left to write. A deleted partition, or one with a newer producer epoch, has no open transaction
/// to end.
fn is_written(outcome: Result<(), ErrorCode>) -> bool {
    matches!(
        outcome,
        Ok(())
            | Err(ErrorCode::UnknownTopicOrPartition
                | ErrorCode::InvalidProducerEpoch
                | ErrorCode::TransactionCoordinatorFenced)
    )
}
