//! LeaveGroup and Heartbeat.
//!
//! LeaveGroup may name several members, and each gets its own outcome; at most one rebalance follows.

use std::sync::Arc;

use super::context::GroupContext;
use super::request::{Heartbeat, LeaveGroup, LeavingMember};
use super::response::{LeaveResult, Response};
use super::state::State;
use crate::{Caller, Error};

impl GroupContext<'_> {
    pub(super) fn heartbeat(&mut self, request: &Heartbeat<'_>) -> Result<(), Error> {
        if self.group.consumer().is_some() {
            return self.heartbeat_of_classic(request);
        }
        self.check_member(request.member_id, request.instance_id)?;
        if request.generation != self.group.generation() {
            return Err(Error::IllegalGeneration);
        }
        self.renew_session(request.member_id);
        match self.group.state() {
            State::PreparingRebalance => Err(Error::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    pub(super) fn leave(&mut self, request: &LeaveGroup<'_>, caller: Caller) {
        let left: Vec<LeaveResult> = request.members.iter().map(|leaving| self.leave_one(leaving)).collect();
        if self.group.consumer().is_none() && left.iter().any(|left| left.outcome.is_ok()) {
            match self.group.state() {
                State::Stable | State::CompletingRebalance => self.prepare_rebalance(),
                _ => self.try_complete_join(),
            }
        }
        self.effects.reply_when_durable(caller, Response::Leave(Ok(left)));
    }

    fn leave_one(&mut self, leaving: &LeavingMember<'_>) -> LeaveResult {
        let outcome = self.resolve_member(leaving).map(|id| {
            if self.group.consumer().is_some() {
                self.expire_consumer_member(&id);
            } else if !self.remove_pending(&id) {
                self.remove_member(&id);
            }
        });
        LeaveResult {
            member_id: leaving.member_id.to_owned(),
            instance_id: leaving.instance_id.map(str::to_owned),
            outcome,
        }
    }

    fn resolve_member(&self, leaving: &LeavingMember<'_>) -> Result<Arc<str>, Error> {
        let id = leaving.member_id;
        if let Some(consumer) = self.group.consumer() {
            return consumer.find_leaving(id, leaving.instance_id);
        }
        if id.is_empty() {
            // Administrative removal (KIP-345): only the instance id is known.
            let instance =
                leaving.instance_id.and_then(|instance_id| self.group.static_member_id(instance_id));
            return instance.cloned().ok_or(Error::UnknownMemberId);
        }
        if !self.group.is_pending(id) {
            self.check_member(id, leaving.instance_id)?;
        }
        Ok(id.into())
    }
}
