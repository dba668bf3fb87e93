//! QoS 2 publishes of one durable session across journals: each is delivered once, even if a crash or a failing disk
//! stops it halfway.
//!
//! A publish is *in flight* until every target has confirmed it, and *partial* if some did not. When the client sends a
//! partial publish again, as it must, it skips the targets that are known to have it. PUBREC is never sent for a
//! partial publish: the client would not repeat it.
//!
//! The publisher's shard records what a partial publish has reached, because the client may be away for any time: the
//! journals that have the publish remember only their last few thousand.

use std::collections::BTreeSet;

use mainstem_mqtt::QoS;

use crate::groups::Group;
use crate::journal::entry::{Origin, ReachedTargets};
use crate::journal::stored::StoredReceived;
use crate::pending_acks::RemoteCommitResult;

/// The QoS 2 publishes of a restored session that may not have reached all their targets. What the journals of other
/// shards contain decides.
#[derive(Debug)]
pub(crate) struct UndecidedPublishes {
    /// Slot of the session.
    pub(crate) slot: u32,
    /// By packet identifier.
    pub(crate) received: Vec<(u16, StoredReceived)>,
}

/// How far a QoS 2 publish had come when the process ended or a disk failed.
#[derive(Clone, Debug)]
pub(crate) struct PartialPublish {
    pub(crate) origin: Origin,
    pub(crate) reached: ReachedTargets,
    /// What was still in flight; `None` after a restart.
    pub(crate) in_flight: Option<Box<InFlightPublish>>,
}

impl PartialPublish {
    /// It was delivered since the process began. Sessions without a journal have it, and what its topic retains in
    /// memory is that message or a newer one.
    pub(crate) fn was_delivered(&self) -> bool {
        self.in_flight.is_some()
    }

    pub(crate) fn has_reached(&self, group: &Group) -> bool {
        self.reached.groups.iter().any(|known| group.is_called(known))
    }
}

/// A QoS 2 publish that is not known to be durable everywhere.
#[derive(Clone, Debug)]
pub(crate) struct InFlightPublish {
    pub(crate) origin: Origin,
    /// Number of its pending ack, by which other shards refer to it.
    pub(crate) number: u64,
    /// Its commit on its own shard.
    pub(crate) commit: u64,
    pub(crate) has_sinks: bool,
    /// Targets that had it before, and shared subscriptions that have it on disk on other shards.
    pub(crate) reached: ReachedTargets,
    /// Shared subscriptions that have dealt it out on this shard.
    pub(crate) groups: Vec<Box<str>>,
    /// Journals that could not keep it.
    pub(crate) missing: BTreeSet<u16>,
    /// Other shards that have not answered yet.
    pub(crate) awaited: u32,
}

impl InFlightPublish {
    fn on_remote_commit(&mut self, result: &RemoteCommitResult) {
        self.awaited = self.awaited.saturating_sub(1);
        match (&result.group, result.is_durable) {
            (Some(group), true) => drop(self.reached.groups.insert(group.full_name().into())),
            // No member has it: it is dealt out again.
            (Some(_), false) | (None, true) => {}
            (None, false) => self.missing.extend(&result.failing_journals),
        }
    }

    /// Whether some target has yet to report.
    fn is_open(&self, durable_commit: u64) -> bool {
        self.awaited > 0 || self.commit > durable_commit
    }

    /// What a snapshot of its own journal, which comes after its entries there, may count on.
    fn durable_targets(&self) -> ReachedTargets {
        let (mut reached, journal_id) = (self.reached.clone(), self.origin.journal_id);
        if !self.missing.contains(&journal_id) {
            reached.journals.insert(journal_id);
        }
        reached.groups.extend(self.groups.iter().cloned());
        reached
    }
}

/// The QoS 2 publishes of one session that are in flight or partial.
#[derive(Debug, Default)]
pub(crate) struct Qos2Publishes {
    /// Number of publishes received so far.
    sequence: u64,
    partial: Vec<PartialPublish>,
    in_flight: Vec<InFlightPublish>,
}

impl Qos2Publishes {
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn set_sequence(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    pub(crate) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(crate) fn track(&mut self, publish: InFlightPublish) {
        self.in_flight.retain(|known| known.origin.packet_id != publish.origin.packet_id);
        self.in_flight.push(publish);
    }

    /// Another shard reports its part of the publish with this ack number. Returns the publish if it is now partial.
    pub(crate) fn on_remote_commit(
        &mut self,
        number: u64,
        result: &RemoteCommitResult,
    ) -> Option<InFlightPublish> {
        if let Some(index) = self.in_flight.iter().position(|known| known.number == number) {
            self.in_flight[index].on_remote_commit(result);
            // Its client may be gone, and must get no PUBREC when it comes back.
            return (!result.is_durable).then(|| self.in_flight.remove(index));
        }
        let mut publish = self
            .partial
            .iter_mut()
            .find_map(|partial| partial.in_flight.take_if(|publish| publish.number == number))?;
        publish.on_remote_commit(result);
        Some(*publish)
    }

    pub(crate) fn take_in_flight(&mut self, packet_id: u16) -> Option<InFlightPublish> {
        // In order: the oldest completes first most of the time.
        let index = self.in_flight.iter().position(|known| known.origin.packet_id == packet_id)?;
        Some(self.in_flight.remove(index))
    }

    /// PUBREL: the packet identifier is free again.
    pub(crate) fn release(&mut self, packet_id: u16) {
        self.partial.retain(|known| known.origin.packet_id != packet_id);
        self.in_flight.retain(|known| known.origin.packet_id != packet_id);
    }

    /// Takes the publishes that were in flight in commit `first_lost` or later.
    pub(crate) fn take_lost(&mut self, first_lost: u64) -> Vec<InFlightPublish> {
        let is_lost = |publish: &InFlightPublish| publish.commit >= first_lost;
        let mut lost: Vec<_> = self.in_flight.extract_if(.., |publish| is_lost(publish)).collect();
        for partial in &mut self.partial {
            lost.extend(partial.in_flight.take_if(|publish| is_lost(publish)).map(|publish| *publish));
        }
        lost
    }

    /// Records that a publish has not reached all its targets: of `journals`, those miss it that have failed.
    /// `groups_here` are shared subscriptions that have it according to other journals of the shard.
    pub(crate) fn record_partial(
        &mut self,
        publish: InFlightPublish,
        journals: &BTreeSet<u16>,
        groups_here: Vec<Box<str>>,
    ) {
        let (origin, mut reached) = (publish.origin, publish.reached.clone());
        reached.journals.extend(journals - &publish.missing);
        reached.groups.extend(publish.groups.iter().cloned().chain(groups_here));
        self.add_partial(PartialPublish { origin, reached, in_flight: Some(Box::new(publish)) });
    }

    pub(crate) fn add_partial(&mut self, partial: PartialPublish) {
        self.partial.retain(|known| known.origin.packet_id != partial.origin.packet_id);
        self.partial.push(partial);
    }

    fn partial(&self, packet_id: u16) -> Option<&PartialPublish> {
        self.partial.iter().find(|known| known.origin.packet_id == packet_id)
    }

    pub(crate) fn is_partial(&self, packet_id: u16) -> bool {
        self.partial(packet_id).is_some()
    }

    /// Whether it is not known yet which targets miss a publish, or whether its sinks have it. Sinks write to logs that
    /// no commit of the shard covers, so a fence would not tell.
    pub(crate) fn is_unconfirmed(&self, packet_id: u16) -> bool {
        let partial = self.partial(packet_id).and_then(|partial| partial.in_flight.as_deref());
        let is_of_sinks =
            |publish: &&InFlightPublish| publish.origin.packet_id == packet_id && publish.has_sinks;
        let in_flight = self.in_flight.iter().find(is_of_sinks);
        partial.into_iter().chain(in_flight).any(|publish| publish.awaited > 0)
    }

    /// Takes a partial publish, which is about to be repeated to the targets that miss it.
    pub(crate) fn take_partial(&mut self, packet_id: u16, qos: QoS) -> Option<PartialPublish> {
        let index = self.partial.iter().position(|known| known.origin.packet_id == packet_id)?;
        (qos == QoS::ExactlyOnce).then(|| self.partial.swap_remove(index))
    }

    /// Sequence number of a partial publish and what it has reached, if every shard has reported.
    pub(crate) fn settled_partial(
        &self,
        packet_id: u16,
        durable_commit: u64,
    ) -> Option<(u64, ReachedTargets)> {
        let partial = self.partial(packet_id)?;
        let is_open = partial.in_flight.as_ref().is_some_and(|publish| publish.is_open(durable_commit));
        (!is_open).then(|| (partial.origin.sequence, partial.reached.clone()))
    }

    /// All of them, as a snapshot of the session's journal contains them. What a partial publish has reached counts
    /// when every shard has reported: a crash before may still take it from a journal.
    pub(crate) fn received(&self, durable_commit: u64) -> impl Iterator<Item = (u16, StoredReceived)> {
        let in_flight = self.in_flight.iter().map(|publish| (publish.origin, publish.durable_targets()));
        let partial = self.partial.iter().map(move |partial| {
            let open = partial.in_flight.as_ref().filter(|publish| publish.is_open(durable_commit));
            let reached = open.map_or_else(|| partial.reached.clone(), |publish| publish.durable_targets());
            (partial.origin, reached)
        });
        in_flight.chain(partial).map(|(Origin { packet_id, sequence, .. }, reached)| {
            (packet_id, StoredReceived { sequence, is_complete: false, reached })
        })
    }
}
