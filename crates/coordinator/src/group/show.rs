//! ListGroups and DescribeGroups.

use super::Groups;
use super::answer::{DescribedGroup, DescribedMember, ListedGroup};
use super::member::Member;
use super::roster::Group;
use super::state::State;
use crate::Error;

/// The type of all groups here, as ListGroups names and filters it (KIP-848).
pub(super) const CLASSIC: &str = "classic";

impl Groups {
    /// ListGroups: groups by name. Empty filters let everything pass; states and types are told apart without regard
    /// to case (KIP-518, KIP-848).
    pub fn list(&self, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
        let passes = |filter: &[&str], name: &str| {
            filter.is_empty() || filter.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
        };
        if !passes(types, CLASSIC) {
            return Vec::new();
        }
        let groups = self.known.values().filter(|group| passes(states, group.state.name()));
        let listed = |group: &Group| ListedGroup {
            group_id: group.id.as_ref().to_owned(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            state: group.state,
        };
        groups.map(listed).collect()
    }

    /// DescribeGroups.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn describe(&self, group_id: &str) -> Result<DescribedGroup, Error> {
        let group = self.known.get(group_id).ok_or(Error::GroupIdNotFound)?;
        // Between generations nothing that members have said or got counts.
        let protocol = group.protocol.as_deref().filter(|_| group.state == State::Stable);
        Ok(DescribedGroup {
            state: group.state,
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
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
