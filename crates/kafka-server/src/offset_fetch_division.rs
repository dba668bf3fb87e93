//! An OffsetFetch over so many partitions that its response is made in parts, as data.
//!
//! A request names groups, or in older versions one group, which names topics, or asks for all offsets of the group.
//! These are listed when the group's turn comes. What a group has too much for one part takes several, which are joined
//! to one group in the response; the same holds for a topic.

use std::sync::Arc;
use std::vec;

use mainstem_kafka::Uuid;
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use mainstem_security::{Action, ResourceKind};

use crate::catalogue::Catalogue;
use crate::groups::GroupCoordinator;
use crate::joined_response::{Identifier, NestedArray, Placement};
use crate::shard_message::RequestContext;
use crate::topics_left::{PartTopics, TopicsLeft, has_more_items, items_of};

/// First version with several groups in one request.
pub(crate) const BATCHED: i16 = 8;
/// First version that names topics by identifier (KIP-848).
pub(crate) const TOPIC_IDS: i16 = 10;
/// Groups, topics and partitions of a part.
const PART_ITEMS: usize = 500;

/// A part of a request, or one that is short: in the form of the newest version.
#[derive(Debug)]
pub(crate) struct OffsetFetchPart {
    pub(crate) groups: Vec<OffsetFetchRequestGroup>,
    pub(crate) require_stable: bool,
}

/// What is left of a request.
#[derive(Debug)]
pub(crate) struct OffsetFetchRest {
    groups: vec::IntoIter<OffsetFetchRequestGroup>,
    require_stable: bool,
    /// A group that takes several parts: without its topics, and those that are left.
    large: Option<(OffsetFetchRequestGroup, TopicsLeft<OffsetFetchRequestTopics>)>,
}

/// What the offsets of a group are listed from.
pub(crate) struct KnownOffsets<'a> {
    /// `None` on other shards than the controller's.
    pub(crate) groups: Option<&'a GroupCoordinator>,
    pub(crate) catalogue: &'a Catalogue,
}

impl OffsetFetchRest {
    /// Prepares a request to be answered in parts, unless it is short.
    ///
    /// # Errors
    /// Returns the request if it is no longer than a part.
    pub(crate) fn of(
        request: OffsetFetchPart,
        call: &RequestContext,
        known: &KnownOffsets<'_>,
    ) -> Result<Self, OffsetFetchPart> {
        let OffsetFetchPart { groups, require_stable } = request;
        // Of a group whose offsets must be listed there is nothing else in its part.
        let is_short = match &groups[..] {
            [group] if group.topics.is_none() => known.topics_of(call, &group.group_id).is_none(),
            groups => {
                groups.len() <= PART_ITEMS
                    && groups.iter().all(|group| {
                        group.topics.as_deref().is_some_and(|topics| !has_more_items(topics, PART_ITEMS))
                    })
                    && groups.iter().map(items_of_group).sum::<usize>() <= PART_ITEMS
            }
        };
        if is_short {
            return Err(OffsetFetchPart { groups, require_stable });
        }
        Ok(Self { groups: groups.into_iter(), require_stable, large: None })
    }

    /// Takes the next part, and where its items belong; `None` if nothing is left.
    pub(crate) fn take_part(
        &mut self,
        call: &RequestContext,
        known: &KnownOffsets<'_>,
    ) -> Option<(OffsetFetchPart, Placement)> {
        let (groups, mut placement) = self.take_groups(call, known)?;
        if call.version < BATCHED {
            // The topics of the only group are the items of the response.
            placement.depth = placement.depth.saturating_sub(1);
            placement.ends = placement.ends.min(placement.depth);
        }
        Some((OffsetFetchPart { groups, require_stable: self.require_stable }, placement))
    }

    fn take_groups(
        &mut self,
        call: &RequestContext,
        known: &KnownOffsets<'_>,
    ) -> Option<(Vec<OffsetFetchRequestGroup>, Placement)> {
        if self.large.is_some() {
            return self.take_topics();
        }
        let mut items = 0;
        let fits = |group: &&OffsetFetchRequestGroup| {
            let is_short = |topics| !has_more_items(topics, PART_ITEMS);
            if !group.topics.as_deref().is_some_and(is_short) {
                return false;
            }
            items += items_of_group(group);
            items <= PART_ITEMS
        };
        let count = self.groups.as_slice().iter().take_while(fits).count();
        if count > 0 {
            return Some((self.groups.by_ref().take(count).collect(), Placement::default()));
        }
        let mut group = self.groups.next()?;
        let topics = match group.topics.take() {
            Some(topics) => topics,
            None => match known.topics_of(call, &group.group_id) {
                Some(topics) => topics,
                None => return Some((vec![group], Placement::default())),
            },
        };
        self.large = Some((group, TopicsLeft::new(topics)));
        self.take_topics()
    }

    /// Takes topics of the group that takes several parts.
    fn take_topics(&mut self) -> Option<(Vec<OffsetFetchRequestGroup>, Placement)> {
        let (group, left) = self.large.as_mut()?;
        let (topics, part_topics) = left.take(PART_ITEMS).unwrap_or((Vec::new(), PartTopics::Whole));
        let is_last_of_group = left.is_empty();
        let (depth, is_last_of_topic) = match part_topics {
            PartTopics::Whole => (1, false),
            PartTopics::Slice { is_last } => (2, is_last),
        };
        let ends = usize::from(is_last_of_topic) + usize::from(is_last_of_group);
        let part = OffsetFetchRequestGroup { topics: Some(topics), ..group.clone() };
        if is_last_of_group {
            self.large = None;
        }
        Some((vec![part], Placement { depth, ends }))
    }
}

impl KnownOffsets<'_> {
    /// The topics and partitions of all offsets of a group that the sender may see, if they are too many for a part.
    /// `None` if it may not see the group, which is answered like a short one.
    fn topics_of(&self, call: &RequestContext, group_id: &str) -> Option<Vec<OffsetFetchRequestTopics>> {
        if !call.allows(Action::Describe, ResourceKind::Group, group_id) {
            return None;
        }
        let committed = self.groups?.committed_beyond(group_id, PART_ITEMS)?;
        let topic = |(name, partition_indexes): (Arc<str>, Vec<i32>)| {
            let known = self.catalogue.topic(&name);
            // Deleted topics have no identifier, so their offsets appear in older versions only.
            let is_shown =
                call.may_topic(Action::Describe, &name) && (call.version < TOPIC_IDS || known.is_some());
            let topic_id = known.map_or(Uuid::ZERO, |known| Uuid(known.id.0));
            is_shown.then(|| OffsetFetchRequestTopics { name: name.to_string(), topic_id, partition_indexes })
        };
        Some(committed.into_iter().filter_map(topic).collect())
    }
}

/// Number of groups, topics and partitions in a group of a request, as far as it names them.
fn items_of_group(group: &OffsetFetchRequestGroup) -> usize {
    1 + group.topics.as_deref().map_or(0, items_of)
}

/// The arrays in the items of a response that may take several parts.
pub(crate) fn nested_arrays(version: i16) -> Vec<NestedArray> {
    let after = if version >= TOPIC_IDS { Identifier::Uuid } else { Identifier::Name };
    let topic = NestedArray { after, behind: 0 };
    if version < BATCHED {
        return vec![topic];
    }
    // An error code follows the topics of a group.
    let group = NestedArray { after: Identifier::Name, behind: size_of::<i16>() };
    vec![group, topic]
}

/// Bytes of a response behind its groups or topics, without tagged fields.
pub(crate) fn bytes_behind_items(version: i16) -> usize {
    if (2..BATCHED).contains(&version) { size_of::<i16>() } else { 0 }
}
