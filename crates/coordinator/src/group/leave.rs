//! LeaveGroup, and Heartbeat, its opposite.

use std::sync::Arc;

use super::answer::{Answer, Left};
use super::request::{Heartbeat, LeaveGroup, Leaving};
use super::state::State;
use super::visit::Visit;
use crate::{Caller, Error};

impl Visit<'_> {
    pub(super) fn heartbeat(&mut self, request: &Heartbeat<'_>) -> Result<(), Error> {
        self.check_member(request.member_id, request.instance_id)?;
        if request.generation != self.group.generation {
            return Err(Error::IllegalGeneration);
        }
        self.note_life(request.member_id);
        match self.group.state {
            State::PreparingRebalance => Err(Error::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    pub(super) fn leave(&mut self, request: &LeaveGroup<'_>, caller: Caller) {
        let left: Vec<Left> = request.members.iter().map(|leaving| self.let_go(leaving)).collect();
        if left.iter().any(|left| left.outcome.is_ok()) {
            match self.group.state {
                State::Stable | State::CompletingRebalance => self.prepare_rebalance(),
                _ => self.complete_join_if_all_are_there(),
            }
        }
        self.out.reply_when_kept(caller, Answer::Leave(Ok(left)));
    }

    fn let_go(&mut self, leaving: &Leaving<'_>) -> Left {
        let outcome = self.whom(leaving).map(|id| {
            if !self.forget_pending(&id) {
                self.dismiss(&id);
            }
        });
        Left {
            member_id: leaving.member_id.to_owned(),
            instance_id: leaving.instance_id.map(str::to_owned),
            outcome,
        }
    }

    fn whom(&self, leaving: &Leaving<'_>) -> Result<Arc<str>, Error> {
        let id = leaving.member_id;
        if id.is_empty() {
            // By an administrator, who knows the instance and not the member.
            let instance = leaving.instance_id.and_then(|instance_id| self.group.instance(instance_id));
            return instance.cloned().ok_or(Error::UnknownMemberId);
        }
        if !self.group.pending.contains_key(id) {
            self.check_member(id, leaving.instance_id)?;
        }
        Ok(id.into())
    }
}
