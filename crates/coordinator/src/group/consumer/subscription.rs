//! Subscriptions of members, and the topics that they select.
//!
//! Most members of a group have the same subscription, so the group keeps each of them once, with what it selects. It
//! is resolved again when topics have changed, which a version tells, not with every heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder};

use super::partitions::TopicId;
use super::response::Refusal;
use crate::Error;

/// Largest size of a compiled regular expression, and of its cache, bytes.
const REGEX_BYTES_MAX: usize = 128 << 10;
/// Longest regular expression, bytes.
const PATTERN_BYTES_MAX: usize = 4096;

/// Largest number of topics that all members of a group may select together.
const SELECTED_MAX: usize = 200_000;
/// The same for subscriptions, each of which counts once.
const ENTRIES_MAX: usize = 20_000;

/// A topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Identifier; a topic that is created again has another one.
    pub id: TopicId,
    /// Number of partitions.
    pub partitions: i32,
}

/// The topics of the broker.
pub trait Topics {
    /// Changes whenever a topic is created, deleted, or gets more partitions.
    fn version(&self) -> u64;

    /// The topic of a name, if there is one.
    fn topic(&self, name: &str) -> Option<Topic>;

    /// Calls `visit` with the name of each topic that the member who sends this heartbeat may know of.
    fn for_each(&self, visit: &mut dyn FnMut(&str, Topic));
}

/// What a member is subscribed to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subscription {
    pub(super) names: BTreeSet<Arc<str>>,
    /// Regular expression of further names.
    pub(super) regex: Option<Arc<str>>,
}

/// What a subscription selects.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolved {
    /// Number of members with this subscription.
    pub(super) members: usize,
    /// Names that the regular expression has selected.
    pub(super) names: BTreeSet<Arc<str>>,
    pub(super) ids: BTreeSet<TopicId>,
    /// Name and number of partitions by topic.
    pub(super) topics: BTreeMap<TopicId, (Arc<str>, i32)>,
}

/// A topic that a regular expression has selected.
pub(super) type Matched = (Arc<str>, Topic);

/// How much the members of a group select together. It is bounded, because the memory and the computation of targets
/// grow with it, also when topics are created after members have joined.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Selection {
    /// Topics of each member, of all members.
    selected: usize,
    /// Topics of each subscription, of all subscriptions.
    entries: usize,
    /// Members with the subscription that is being resolved.
    members: usize,
    is_unlimited: bool,
}

impl Selection {
    /// For a subscription that is checked before it is added.
    pub(super) fn unlimited() -> Self {
        Self { is_unlimited: true, ..Self::default() }
    }

    /// Begins a subscription that so many members have.
    pub(super) fn begin(&mut self, members: usize) {
        self.members = members;
    }

    /// Adds topics of the subscription.
    pub(super) fn add(&mut self, topics: usize) {
        self.selected += topics * self.members;
        self.entries += topics;
    }

    /// Adds a topic of the subscription, if that stays within the limits.
    fn try_add(&mut self) -> bool {
        let has_room =
            self.is_unlimited || self.selected + self.members <= SELECTED_MAX && self.entries < ENTRIES_MAX;
        if has_room {
            self.add(1);
        }
        has_room
    }

    /// Whether another member may have a subscription with so many topics.
    pub(super) fn has_room_for(&self, topics: usize) -> bool {
        self.selected + topics <= SELECTED_MAX && self.entries + topics <= ENTRIES_MAX
    }
}

/// The topics that a regular expression selects.
pub(super) fn matching(pattern: &str, topics: &dyn Topics) -> Vec<Matched> {
    let Ok(regex) = compile(pattern) else { return Vec::new() };
    let mut matched = Vec::new();
    topics.for_each(&mut |name, topic| {
        if regex.is_match(name.as_bytes()) {
            matched.push((name.into(), topic));
        }
    });
    matched
}

impl Subscription {
    /// The topics that it selects of those that exist, `matched` of them by its regular expression.
    pub(super) fn resolve(
        &self,
        topics: &dyn Topics,
        matched: &[Matched],
        selection: &mut Selection,
    ) -> Resolved {
        let mut resolved = Resolved::default();
        let named = self.names.iter().filter_map(|name| Some((name.clone(), topics.topic(name)?)));
        for (name, topic) in named.chain(matched.iter().cloned()) {
            if resolved.ids.contains(&topic.id) || !selection.try_add() {
                continue;
            }
            resolved.ids.insert(topic.id);
            resolved.topics.insert(topic.id, (name.clone(), topic.partitions));
            if !self.names.contains(&name) {
                resolved.names.insert(name);
            }
        }
        resolved
    }

    /// Approximate size in memory and in a record.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 64;
        let names = self.names.iter().chain(&self.regex).map(|name| FIXED + name.len());
        names.sum()
    }
}

impl Resolved {
    /// Memory of the topics, without their partitions.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 96;
        self.ids.len() * FIXED + self.names.iter().map(|name| FIXED + name.len()).sum::<usize>()
    }

    pub(super) fn partition_count(&self) -> usize {
        self.topics.values().map(|(_, count)| usize::try_from(*count).unwrap_or(0)).sum()
    }
}

/// Compiles a regular expression that must match a whole name.
pub(super) fn compile(pattern: &str) -> Result<Regex, Refusal> {
    let refused = |message| Refusal { error: Error::InvalidRegularExpression, message };
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(refused("SubscribedTopicRegex is too long."));
    }
    // Compiled alone first: `a)(b` is not a regular expression, though it would be one in parentheses.
    let pattern = expand_quotes(pattern);
    let build = |pattern: &str| {
        let mut builder = RegexBuilder::new(pattern);
        builder.unicode(false).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX).build()
    };
    let compiled = build(&pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
    compiled.map_err(|_| refused("SubscribedTopicRegex is not a valid regular expression."))
}

/// Replaces `\Q…\E`, which RE2 takes literally, as Java's `Pattern.quote` writes it.
fn expand_quotes(pattern: &str) -> String {
    let mut expanded = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('\\') {
        expanded.push_str(&rest[..at]);
        let escaped = &rest[at + 1..];
        if let Some(quoted) = escaped.strip_prefix('Q') {
            let (literal, behind) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            expanded.push_str(&regex::escape(literal));
            rest = behind;
        } else {
            let mut behind = escaped.chars();
            expanded.push('\\');
            if let Some(character) = behind.next() {
                // Writing to a string does not fail.
                let _written = expanded.write_char(character);
            }
            rest = behind.as_str();
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        compile(pattern).unwrap().is_match(name.as_bytes())
    }

    #[test]
    fn regular_expressions_match_whole_names() {
        assert!(matches("a.*", "abc"));
        assert!(!matches("a.*", "ba"));
        assert!(matches("a|b", "b"));
        assert!(!matches("a|b", "ab"));
        assert!(matches("(?i)TOPIC-[0-9]+", "topic-12"));
        assert!(matches("[[:alpha:]]+\\d", "abc1"));
    }

    #[test]
    fn quoted_text_is_literal() {
        assert!(matches(r"\Qa.b\E.*", "a.b-1"));
        assert!(!matches(r"\Qa.b\E.*", "axb-1"));
        assert!(matches(r"x\Q*[", "x*["));
        assert!(matches(r"a\\Q", r"a\Q"));
    }

    #[test]
    fn other_text_is_refused() {
        let long = "a".repeat(PATTERN_BYTES_MAX + 1);
        for pattern in ["(", "a)(b", "[", "(?=a)", "a{1000}{1000}", "\\", long.as_str()] {
            assert_eq!(compile(pattern).unwrap_err().error, Error::InvalidRegularExpression, "{pattern}");
        }
    }
}
