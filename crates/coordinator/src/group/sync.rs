//! SyncGroup: the leader sends the assignment, every member fetches its part.
//!
//! The assignment becomes visible to members only once it is durable, so that after a crash the coordinator still has
//! every generation that any member works in.

use std::collections::BTreeMap;

use super::context::GroupContext;
use super::request::SyncGroup;
use super::response::{Response, SyncResult};
use super::state::State;
use crate::{Caller, Error};

impl GroupContext<'_> {
    pub(super) fn sync(&mut self, request: &SyncGroup<'_>, caller: Caller) {
        if self.group.consumer().is_some() {
            return self.sync_consumer_group(request, caller);
        }
        if let Err(error) = self.check_sync(request) {
            return self.effects.reply(caller, Response::Sync(Err(error)));
        }
        let id = request.member_id;
        if self.group.note_sync(id) {
            self.clear_sync_timer();
        }
        if self.group.state() == State::Stable {
            self.renew_session(id);
            return self.reply_with_assignment(id, caller);
        }
        let superseded = self.group.member_mut(id).and_then(|member| member.syncing.replace(caller));
        if let Some(superseded) = superseded {
            // The client no longer waits for this response, but its connection may.
            self.effects.reply(superseded, Response::Sync(Err(Error::RebalanceInProgress)));
        }
        if self.group.is_leader(id) {
            self.assign(request);
        }
    }

    fn check_sync(&self, request: &SyncGroup<'_>) -> Result<(), Error> {
        if self.group.state() == State::Empty {
            return Err(Error::UnknownMemberId);
        }
        self.check_member(request.member_id, request.instance_id)?;
        if request.generation != self.group.generation() {
            return Err(Error::IllegalGeneration);
        }
        // A member that expects another protocol would misread its assignment (KIP-559).
        let differs = |asked: Option<&str>, ours: Option<&str>| asked.zip(ours).is_some_and(|(a, b)| a != b);
        if differs(request.protocol_type, self.group.protocol_type())
            || differs(request.protocol, self.group.protocol())
        {
            return Err(Error::InconsistentGroupProtocol);
        }
        if self.group.state() == State::PreparingRebalance {
            return Err(Error::RebalanceInProgress);
        }
        Ok(())
    }

    /// Members that the leader left out get an empty assignment. Assignments for unknown members are dropped.
    fn assign(&mut self, request: &SyncGroup<'_>) {
        let mut assignments: BTreeMap<&str, &[u8]> = request.assignments.iter().copied().collect();
        assignments.retain(|id, _| self.group.member(id).is_some());
        if !self.has_room_for(assignments.values().map(|assignment| assignment.len()).sum()) {
            // Kafka does the same with a group that does not fit its record.
            self.cancel_assignments(Error::UnknownServerError);
            return self.prepare_rebalance();
        }
        for id in self.group.member_ids() {
            let assignment = assignments.get(&*id).copied().unwrap_or_default();
            self.group.update_member(&id, |member| member.assignment = assignment.to_vec());
        }
        self.group.transition_to(State::Stable, self.now_ms);
        self.persist_group();
        for id in self.group.member_ids() {
            let syncing = self.group.member_mut(&id).and_then(|member| member.syncing.take());
            if let Some(caller) = syncing {
                self.reply_with_assignment(&id, caller);
                self.renew_session(&id);
            }
        }
    }

    /// Answers SyncGroup once the assignment is durable.
    fn reply_with_assignment(&mut self, id: &str, caller: Caller) {
        let synced = SyncResult {
            protocol_type: self.group.protocol_type().unwrap_or_default().to_owned(),
            protocol: self.group.protocol().unwrap_or_default().to_owned(),
            assignment: self.group.member(id).map(|member| member.assignment.clone()).unwrap_or_default(),
        };
        self.effects.reply_when_durable(caller, Response::Sync(Ok(synced)));
    }
}
