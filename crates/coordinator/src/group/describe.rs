//! ListGroups and DescribeGroups: read-only views of the groups.

use super::Groups;
use super::consumer_group::Group;
use super::member::Member;
use super::response::{DescribedGroup, DescribedMember, ListedGroup};
use super::state::State;
use crate::Error;

/// Group types in ListGroups filters (KIP-848).
const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";

impl Groups {
    /// ListGroups: groups ordered by id. Empty filters match everything; states and types are compared
    /// case-insensitively (KIP-518, KIP-848).
    pub fn list(&self, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
        let matches = |filter: &[&str], name: &str| {
            filter.is_empty() || filter.iter().any(|accepted| accepted.eq_ignore_ascii_case(name))
        };
        let (has_classic, has_consumer) = (matches(types, CLASSIC), matches(types, CONSUMER));
        let is_of_type = |group: &&Group| if group.consumer().is_some() { has_consumer } else { has_classic };
        // Once per state, not per group: there may be a hundred thousand of them, and as many filters.
        let accepted: Vec<State> =
            State::ALL.into_iter().filter(|state| matches(states, state.name())).collect();
        let groups = self.by_id.values().filter(is_of_type).filter(|group| accepted.contains(&group.state()));
        let listed = |group: &Group| ListedGroup {
            group_id: group.id().as_ref().to_owned(),
            protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
            state: group.state(),
            is_consumer: group.consumer().is_some(),
        };
        groups.map(listed).collect()
    }

    /// DescribeGroups.
    ///
    /// # Errors
    /// [`Error::GroupIdNotFound`], also for a group of the consumer protocol.
    pub fn describe(&self, group_id: &str) -> Result<DescribedGroup, Error> {
        let group = self.by_id.get(group_id).filter(|group| group.consumer().is_none());
        let group = group.ok_or(Error::GroupIdNotFound)?;
        // Metadata and assignments only apply to a stable generation.
        let protocol = group.protocol().filter(|_| group.state() == State::Stable);
        Ok(DescribedGroup {
            state: group.state(),
            protocol_type: group.protocol_type().unwrap_or_default().to_owned(),
            protocol: protocol.unwrap_or_default().to_owned(),
            members: group.members().map(|member| describe(member, protocol)).collect(),
        })
    }
}

fn describe(member: &Member, protocol: Option<&str>) -> DescribedMember {
    DescribedMember {
        member_id: member.id.as_ref().to_owned(),
        instance_id: member.instance_id.as_deref().map(str::to_owned),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        metadata: protocol.map_or_else(Vec::new, |protocol| member.metadata(protocol).to_vec()),
        assignment: protocol.map_or_else(Vec::new, |_| member.assignment.clone()),
    }
}
