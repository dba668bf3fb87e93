//! Deleted topics: their offsets are removed from all groups.
//!
//! Thousands of topics may be deleted at once, with offsets in thousands of groups, so this takes many small steps.
//! Offsets that are committed in the meantime belong to a new topic of the same name. They have a higher
//! [order](super::offsets::Offset::order) and stay.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::Groups;
use super::consumer_group::Group;
use crate::Record;

/// The deleted topics whose offsets have not been removed from all groups.
#[derive(Debug, Default)]
pub(super) struct Forgetting {
    queue: VecDeque<Deleted>,
    /// Number of calls of [`Groups::forget_topics`], and of those that are carried out.
    begun: u64,
    done: u64,
}

/// Topics that were deleted together.
#[derive(Debug)]
struct Deleted {
    topics: BTreeSet<Arc<str>>,
    /// Only offsets of a lower order are removed.
    before: u64,
    /// The next group to look at, and the topics of it that are left.
    group: Bound<Arc<str>>,
    topic: Bound<Arc<str>>,
}

impl Groups {
    /// Has the offsets of deleted topics removed from all groups, by calls of [`Self::continue_forgetting`]. Returns a
    /// number for [`Self::has_forgotten`].
    pub fn forget_topics(&mut self, topics: BTreeSet<Arc<str>>) -> u64 {
        self.forgetting.begun += 1;
        self.forgetting.queue.push_back(Deleted {
            topics,
            before: self.next_order,
            group: Bound::Unbounded,
            topic: Bound::Unbounded,
        });
        self.forgetting.begun
    }

    /// Whether the offsets of these topics are removed, and those of all that were deleted before.
    pub fn has_forgotten(&self, number: u64) -> bool {
        self.forgetting.done >= number
    }

    /// The number of the newest call of [`Self::forget_topics`], unless it is carried out.
    pub fn unfinished_removal(&self) -> Option<u64> {
        self.is_forgetting().then_some(self.forgetting.begun)
    }

    /// Whether [`Self::continue_forgetting`] has anything to do.
    pub fn is_forgetting(&self) -> bool {
        !self.forgetting.queue.is_empty()
    }

    /// The topics with offsets for which `is_gone`. A restart may have interrupted their removal.
    pub fn topics_with_offsets(&self, is_gone: impl Fn(&str) -> bool) -> BTreeSet<Arc<str>> {
        let mut gone = BTreeSet::new();
        for group in self.by_id.values() {
            let mut from = Bound::Unbounded;
            while let Some(topic) = group.offsets().next_topic(from) {
                if is_gone(topic) {
                    gone.insert(Arc::clone(topic));
                }
                from = Bound::Excluded(&**topic);
            }
        }
        gone
    }

    /// Removes offsets of deleted topics. Visits about `steps_max` groups, topics and offsets, and returns the number.
    pub fn continue_forgetting(&mut self, steps_max: usize) -> usize {
        let mut steps = 0;
        while steps < steps_max
            && let Some(mut deleted) = self.forgetting.queue.pop_front()
        {
            while steps < steps_max && self.forget_step(&mut deleted, steps_max - steps, &mut steps) {}
            if deleted.topics.is_empty() {
                self.forgetting.done += 1;
            } else {
                self.forgetting.queue.push_front(deleted);
            }
        }
        steps
    }

    /// Removes at most `offsets_max` offsets of the next deleted topic that a group has offsets of. Returns false, and
    /// drops the topics, if there is none.
    fn forget_step(&mut self, deleted: &mut Deleted, offsets_max: usize, steps: &mut usize) -> bool {
        *steps += 1;
        let from = deleted.group.as_ref().map(|group_id| &**group_id);
        let Some((group_id, group)) = self.by_id.range::<str, _>((from, Bound::Unbounded)).next() else {
            deleted.topics.clear();
            return false;
        };
        if !matches!(&deleted.group, Bound::Included(known) if known == group_id) {
            deleted.topic = Bound::Unbounded;
        }
        let group_id = Arc::clone(group_id);
        let Some(topic) = next_common(&deleted.topics, group, &deleted.topic) else {
            deleted.group = Bound::Excluded(group_id);
            return true;
        };
        deleted.group = Bound::Included(Arc::clone(&group_id));
        match topic {
            Common::Both(topic) => {
                let doomed = doomed(group, &topic, deleted.before, offsets_max);
                *steps += doomed.len();
                let is_done = doomed.len() < offsets_max;
                let topic_bound = if is_done { Bound::Excluded } else { Bound::Included };
                deleted.topic = topic_bound(Arc::clone(&topic));
                self.drop_all(&group_id, &topic, &doomed);
            }
            Common::From(topic) => deleted.topic = Bound::Included(topic),
        }
        true
    }

    fn drop_all(&mut self, group_id: &str, topic: &str, doomed: &[(Option<i64>, i32)]) {
        let mut new_records: Vec<Record> = Vec::new();
        for (producer_id, partition) in doomed {
            match producer_id {
                Some(producer_id) => {
                    self.drop_pending_offset(group_id, *producer_id, topic, *partition, &mut new_records);
                }
                None => self.drop_committed_offset(group_id, topic, *partition, &mut new_records),
            }
        }
        self.persist_in_chunks(new_records);
        self.remove_if_unused(group_id);
    }
}

/// The result of looking for a topic that is in two sorted sets.
enum Common {
    /// It is in both.
    Both(Arc<str>),
    /// None before it is; the search continues with it.
    From(Arc<str>),
}

/// Looks for a deleted topic that the group has offsets of. Jumps to the next topic of the one set and of the other in
/// turn, so that a few topics in a large group cost as little as many in a small one.
fn next_common(topics: &BTreeSet<Arc<str>>, group: &Group, from: &Bound<Arc<str>>) -> Option<Common> {
    let from = from.as_ref().map(|topic| &**topic);
    let deleted = topics.range::<str, _>((from, Bound::Unbounded)).next()?;
    let used = group.offsets().next_topic(Bound::Included(deleted))?;
    Some(if used == deleted { Common::Both(Arc::clone(used)) } else { Common::From(Arc::clone(used)) })
}

/// Up to `max` offsets of a topic, of a lower order than `before`: the producer of a pending one, and the partition.
fn doomed(group: &Group, topic: &str, before: u64, max: usize) -> Vec<(Option<i64>, i32)> {
    let committed = group.offsets().committed_of(topic).map(|(partition, offset)| (None, partition, offset));
    let pending = group.offsets().producers().flat_map(|producer_id| {
        let of_topic = group.offsets().pending_of(producer_id, topic);
        of_topic.map(move |(partition, offset)| (Some(producer_id), partition, offset))
    });
    let old = committed.chain(pending).filter(|(_, _, offset)| offset.order < before);
    old.map(|(producer_id, partition, _)| (producer_id, partition)).take(max).collect()
}
