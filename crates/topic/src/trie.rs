//! The wildcard filters as a trie, one node per level, and the walk that finds those matching a name.
//!
//! Why a trie beside the exact table: a name is looked up once however many filters there are, and every node the
//! walk visits is a prefix of some filter that matches so far. Nodes know their parent and hold no list of
//! children: one table for the whole trie maps (parent, level) to the child, which costs the same for a node with
//! two children and for one with a million.

use hashbrown::HashTable;

use crate::arena::{Arena, FIRST_RESERVED, NONE};
use crate::inline::InlineList;
use crate::levels::Levels;
use crate::seed::Seed;

/// The node that every filter starts from; it is never freed.
const ROOT: u32 = 0;
/// Stands for a level: `+`.
const PLUS: u32 = FIRST_RESERVED;
/// Stands for a level of a name that no filter has.
const UNKNOWN: u32 = FIRST_RESERVED + 1;
/// Names of up to this many levels are matched without an allocation.
const INLINE_LEVELS: usize = 32;

/// The wildcard filters, each bearing the number of a slot.
pub(crate) struct Trie {
    seed: Seed,
    levels: Levels,
    nodes: Arena<Node>,
    /// The children by literal levels, found by (parent, level), both of which the child knows.
    children: HashTable<u32>,
}

/// One level of one or more filters.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    /// A number of [`Levels`], or [`PLUS`].
    level: u32,
    /// The child by `+`.
    plus: u32,
    /// How many children by literal levels there are.
    literals: u32,
    /// The slot of the filter that ends here.
    end: u32,
    /// The slot of the filter that has `#` as its next and last level.
    multi: u32,
}

impl Node {
    const fn new(parent: u32, level: u32) -> Self {
        Self { parent, level, plus: NONE, literals: 0, end: NONE, multi: NONE }
    }

    const fn is_bare(&self) -> bool {
        self.plus == NONE && self.literals == 0 && self.end == NONE && self.multi == NONE
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new(NONE, NONE)
    }
}

/// Where in the trie a filter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    node: u32,
    last: Last,
}

/// How a filter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// With the level of the node.
    Node,
    /// With `#` behind it.
    Multi,
}

impl Trie {
    pub(crate) fn new(seed: Seed) -> Self {
        let mut nodes = Arena::new();
        let root = nodes.insert(Node::default());
        debug_assert_eq!(root, ROOT);
        Self { levels: Levels::new(seed.clone()), seed, nodes, children: HashTable::new() }
    }

    /// The slot of a filter.
    pub(crate) fn find(&self, filter: &str) -> Option<u32> {
        let mut node = ROOT;
        for level in filter.split('/') {
            let next = match level {
                "#" => return some(self.nodes[node].multi),
                "+" => some(self.nodes[node].plus),
                literal => self.child(node, self.levels.find(literal)?),
            };
            node = next?;
        }
        some(self.nodes[node].end)
    }

    /// Grows the nodes of a filter that is not in the trie, and has it bear `slot`.
    pub(crate) fn insert(&mut self, filter: &str, slot: u32) -> Place {
        let mut node = ROOT;
        for level in filter.split('/') {
            node = match level {
                "#" => {
                    self.nodes[node].multi = slot;
                    return Place { node, last: Last::Multi };
                }
                "+" => self.grow_plus(node),
                literal => self.grow_literal(node, literal),
            };
        }
        self.nodes[node].end = slot;
        Place { node, last: Last::Node }
    }

    fn grow_plus(&mut self, node: u32) -> u32 {
        if let Some(child) = some(self.nodes[node].plus) {
            return child;
        }
        let child = self.nodes.insert(Node::new(node, PLUS));
        self.nodes[node].plus = child;
        child
    }

    fn grow_literal(&mut self, node: u32, literal: &str) -> u32 {
        let known = self.levels.find(literal).and_then(|level| self.child(node, level));
        if let Some(child) = known {
            return child;
        }
        let level = self.levels.acquire(literal);
        let child = self.nodes.insert(Node::new(node, level));
        self.nodes[node].literals += 1;
        let Self { seed, nodes, children, .. } = self;
        children.insert_unique(seed.hash_pair(node, level), child, |&other| {
            seed.hash_pair(nodes[other].parent, nodes[other].level)
        });
        child
    }

    /// The child of a node by a literal level.
    #[inline]
    fn child(&self, node: u32, level: u32) -> Option<u32> {
        let is_it = |&child: &u32| self.nodes[child].parent == node && self.nodes[child].level == level;
        self.children.find(self.seed.hash_pair(node, level), is_it).copied()
    }

    /// Takes the filter at `place` out, and with it the nodes that no other filter needs.
    pub(crate) fn remove(&mut self, place: Place) {
        let Place { mut node, last } = place;
        match last {
            Last::Node => self.nodes[node].end = NONE,
            Last::Multi => self.nodes[node].multi = NONE,
        }
        while node != ROOT && self.nodes[node].is_bare() {
            let Node { parent, level, .. } = self.nodes[node];
            if level == PLUS {
                self.nodes[parent].plus = NONE;
            } else {
                let hash = self.seed.hash_pair(parent, level);
                if let Ok(entry) = self.children.find_entry(hash, |&child| child == node) {
                    entry.remove();
                } else {
                    debug_assert!(false, "a node that is not in the table of children");
                }
                self.nodes[parent].literals -= 1;
                self.levels.release(level);
            }
            self.nodes.remove(node);
            node = parent;
        }
    }

    /// Spells the filter at `place`.
    pub(crate) fn text(&self, place: Place) -> String {
        let mut levels = Vec::new();
        if place.last == Last::Multi {
            levels.push("#");
        }
        let mut node = place.node;
        while node != ROOT {
            let Node { parent, level, .. } = self.nodes[node];
            levels.push(if level == PLUS { "+" } else { self.levels.text(level) });
            node = parent;
        }
        levels.reverse();
        levels.join("/")
    }

    /// Calls `visit` with the slot of each filter that matches a valid name, and returns how many nodes it looked at:
    /// each at most once, as each is one prefix of a filter.
    ///
    /// Depth first, literal before `+`. At most one `+` branch per level waits for its turn, so what has to be
    /// remembered is bounded by the levels of the name, however wide the trie is.
    #[inline]
    pub(crate) fn for_each_match(&self, name: &str, visit: impl FnMut(u32)) -> usize {
        if self.nodes[ROOT].is_bare() { 0 } else { self.walk(name, visit) }
    }

    /// Not inlined: its stack frame would burden the match of an index that has no wildcards.
    #[inline(never)]
    fn walk(&self, name: &str, mut visit: impl FnMut(u32)) -> usize {
        let mut levels = NameLevels::new(&self.levels, name);
        let mut waiting = InlineList::<(u32, u32), INLINE_LEVELS>::new((NONE, 0));
        let mut visited = 0;
        // A wildcard in the first level does not match a name that starts with `$` [MQTT-4.7.2-1].
        let mut at = if name.starts_with('$') {
            self.first_literal(&mut levels).map(|node| (node, 1))
        } else {
            Some((ROOT, 0))
        };
        while let Some((number, depth)) = at {
            visited += 1;
            let node = &self.nodes[number];
            // `a/#` matches `a` too (4.7.1.2), so this does not ask whether the name goes on.
            if node.multi != NONE {
                visit(node.multi);
            }
            at = None;
            if !levels.reaches(depth) {
                if node.end != NONE {
                    visit(node.end);
                }
            } else if node.literals == 0 {
                at = some(node.plus).map(|plus| (plus, depth + 1));
            } else {
                let level = levels.get(depth);
                if level != UNKNOWN {
                    at = self.child(number, level).map(|child| (child, depth + 1));
                }
                if node.plus != NONE {
                    waiting.push((node.plus, depth + 1));
                }
            }
            at = at.or_else(|| waiting.pop());
        }
        visited
    }

    /// The node that the first level of a name leads to, `+` left aside.
    fn first_literal(&self, levels: &mut NameLevels<'_>) -> Option<u32> {
        match levels.get(0) {
            UNKNOWN => None,
            level => self.child(ROOT, level),
        }
    }

    /// What is stored: nodes but for the root, table entries, level strings, level table entries.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [usize; 4] {
        let (levels, level_entries) = self.levels.counts();
        [self.nodes.len() - 1, self.children.len(), levels, level_entries]
    }

    /// How many nodes have ever been in use at once.
    #[cfg(test)]
    pub(crate) fn high_water(&self) -> usize {
        self.nodes.high_water()
    }
}

/// The number, where there is one.
#[inline]
const fn some(number: u32) -> Option<u32> {
    if number == NONE { None } else { Some(number) }
}

/// The levels of a name as numbers, looked up only as deep as the walk gets: a name of 65,535 levels costs no more
/// than the filters that it meets.
struct NameLevels<'a> {
    levels: &'a Levels,
    numbers: InlineList<u32, INLINE_LEVELS>,
    /// What has not been looked at; `None` behind the last level.
    rest: Option<&'a str>,
}

impl<'a> NameLevels<'a> {
    fn new(levels: &'a Levels, name: &'a str) -> Self {
        Self { levels, numbers: InlineList::new(NONE), rest: Some(name) }
    }

    /// Whether the name has more than `depth` levels; the walk asks with each depth before it asks with the next.
    #[inline]
    fn reaches(&mut self, depth: u32) -> bool {
        while self.numbers.len() < depth as usize && self.rest.is_some() {
            self.look_up_next();
        }
        (depth as usize) < self.numbers.len() || self.rest.is_some()
    }

    /// The number of the level at `depth`, which the name must reach; [`UNKNOWN`] where no filter has it.
    #[inline]
    fn get(&mut self, depth: u32) -> u32 {
        while self.numbers.len() <= depth as usize {
            self.look_up_next();
        }
        self.numbers.get(depth as usize)
    }

    fn look_up_next(&mut self) {
        let rest = self.rest.unwrap_or_default();
        let end = rest.bytes().position(|byte| byte == b'/');
        let (level, rest) = match end {
            Some(end) => (&rest[..end], Some(&rest[end + 1..])),
            None => (rest, None),
        };
        self.rest = rest;
        self.numbers.push(self.levels.find(level).unwrap_or(UNKNOWN));
    }
}
