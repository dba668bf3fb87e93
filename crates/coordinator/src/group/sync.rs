//! SyncGroup: the leader says who gets what, and everybody asks for its part.

use std::collections::BTreeMap;

use super::answer::{Answer, Synced};
use super::request::SyncGroup;
use super::state::State;
use super::visit::Visit;
use crate::{Caller, Error};

impl Visit<'_> {
    pub(super) fn sync(&mut self, request: &SyncGroup<'_>, caller: Caller) {
        if let Err(error) = self.check_sync(request) {
            return self.out.reply(caller, Answer::Sync(Err(error)));
        }
        let id = request.member_id;
        self.group.unsynced.remove(id);
        if self.group.unsynced.is_empty() {
            self.clear_sync_timer();
        }
        if self.group.state == State::Stable {
            self.give_assignment(id, caller);
            return;
        }
        let older = self.group.member_mut(id).and_then(|member| member.syncing.replace(caller));
        if let Some(older) = older {
            // The client has asked again and waits for this answer no longer, but its connection may.
            self.out.reply(older, Answer::Sync(Err(Error::RebalanceInProgress)));
        }
        if self.group.is_leader(id) {
            self.assign(request);
        }
    }

    fn check_sync(&self, request: &SyncGroup<'_>) -> Result<(), Error> {
        if self.group.state == State::Empty {
            return Err(Error::UnknownMemberId);
        }
        self.check_member(request.member_id, request.instance_id)?;
        if request.generation != self.group.generation {
            return Err(Error::IllegalGeneration);
        }
        // A member that has another protocol in mind would misread its assignment (KIP-559).
        let differs = |asked: Option<&str>, ours: Option<&str>| asked.zip(ours).is_some_and(|(a, b)| a != b);
        if differs(request.protocol_type, self.group.protocol_type.as_deref())
            || differs(request.protocol, self.group.protocol.as_deref())
        {
            return Err(Error::InconsistentGroupProtocol);
        }
        if self.group.state == State::PreparingRebalance {
            return Err(Error::RebalanceInProgress);
        }
        Ok(())
    }

    /// Members the leader has forgotten get nothing. What it assigns to others that are none is dropped.
    fn assign(&mut self, request: &SyncGroup<'_>) {
        let mut assignments: BTreeMap<&str, &[u8]> = request.assignments.iter().copied().collect();
        assignments.retain(|id, _| self.group.member(id).is_some());
        if !self.has_room_for(assignments.values().map(|assignment| assignment.len()).sum()) {
            // As Kafka does with a group that is too large for its record.
            self.give_up_assigning(Error::UnknownServerError);
            return self.prepare_rebalance();
        }
        for id in self.group.member_ids() {
            let assignment = assignments.get(&*id).copied().unwrap_or_default();
            self.group.change(&id, |member| member.assignment = assignment.to_vec());
        }
        self.group.enter(State::Stable, self.now_ms);
        self.keep_group();
        for id in self.group.member_ids() {
            let syncing = self.group.member_mut(&id).and_then(|member| member.syncing.take());
            if let Some(caller) = syncing {
                self.give_assignment(&id, caller);
                self.note_life(&id);
            }
        }
    }

    /// Only when it is kept: a generation that has begun to work must be known after a crash.
    fn give_assignment(&mut self, id: &str, caller: Caller) {
        let synced = Synced {
            protocol_type: self.group.protocol_type.clone().unwrap_or_default(),
            protocol: self.group.protocol.as_deref().unwrap_or_default().to_owned(),
            assignment: self.group.member(id).map(|member| member.assignment.clone()).unwrap_or_default(),
        };
        self.out.reply_when_kept(caller, Answer::Sync(Ok(synced)));
    }
}
