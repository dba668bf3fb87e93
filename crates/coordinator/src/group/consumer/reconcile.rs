//! One step of a member toward its target.
//!
//! What the member has beyond its target is taken from it first. Until it has confirmed that, its epoch stays, so that
//! it may still commit offsets of what it gives up. Then it reaches the epoch of the target and gets what is free; it
//! waits for the rest, which others give up in their own heartbeats.

use super::ConsumerGroup;
use super::member::{ConsumerMember, Progress};
use super::partitions::{Partitions, TopicPartition};
use super::request::ConsumerHeartbeat;

impl ConsumerGroup {
    /// Takes one step with a member. Returns whether what it is assigned has changed.
    pub(super) fn reconcile(&mut self, id: &str, request: &ConsumerHeartbeat<'_>) -> bool {
        let target_epoch = self.assignment_epoch;
        let Some(member) = self.members.get_mut(id) else { return false };
        if member.has_reached(target_epoch) {
            return false;
        }
        if member.progress == Progress::Revoking && owns_any(request, &member.revoking) {
            return false;
        }
        let before = (member.epoch, member.progress);
        let (assigned, revoking) = (member.assigned.clone(), member.revoking.clone());
        let holders = &self.holders;
        let is_free =
            |partition: &TopicPartition| holders.get(partition).is_none_or(|holder| **holder == *id);
        step(member, target_epoch, request, is_free);
        let has_changed = member.assigned != assigned;
        if !has_changed && member.revoking == revoking && before == (member.epoch, member.progress) {
            return false;
        }
        for partition in assigned.iter().chain(&revoking) {
            self.holders.remove(partition);
        }
        for partition in member.held() {
            self.holders.insert(*partition, member.id.clone());
        }
        self.pending.members.insert(member.id.clone());
        has_changed
    }
}

/// Whether the member owns any of these, or may because it does not say.
fn owns_any(request: &ConsumerHeartbeat<'_>, partitions: &Partitions) -> bool {
    let owned = request.owned_partitions();
    owned.is_none_or(|mut owned| owned.any(|partition| partitions.contains(&partition)))
}

fn step(
    member: &mut ConsumerMember,
    target_epoch: i32,
    request: &ConsumerHeartbeat<'_>,
    is_free: impl Fn(&TopicPartition) -> bool,
) {
    let kept: Partitions = member.assigned.intersection(&member.target).copied().collect();
    let excess: Partitions = member.assigned.difference(&member.target).copied().collect();
    if !excess.is_empty() && owns_any(request, &excess) {
        (member.assigned, member.revoking, member.progress) = (kept, excess, Progress::Revoking);
        return;
    }
    let missing = member.target.difference(&kept);
    let (free, occupied): (Partitions, Partitions) = missing.copied().partition(|missing| is_free(missing));
    member.assigned = kept.union(&free).copied().collect();
    member.revoking.clear();
    member.since.retain(|partition, _| kept.contains(partition));
    member.since.extend(free.into_iter().map(|partition| (partition, target_epoch)));
    member.progress = if occupied.is_empty() { Progress::Stable } else { Progress::Waiting };
    member.advance_to(target_epoch);
}
