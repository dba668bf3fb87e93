//! The trie of wildcard filters, with one node per level, and the match over it.
//!
//! Every node that a match visits is a prefix of a filter that matches so far, so the cost does not depend on the
//! number of other filters. Nodes store their parent but no list of children. Instead, one hash table for the whole
//! trie maps (parent, level) to the child, so a lookup costs the same for a node with two children and for one with a
//! million.
//!
//! The match is iterative and depth first. It needs no visited set, because each node has one path from the root.

use hashbrown::HashTable;

use crate::arena::{Arena, FIRST_RESERVED, NONE};
use crate::free_list::shrink_if_sparse;
use crate::inline::InlineList;
use crate::levels::Levels;
use crate::seed::Seed;

/// The root node, which is never freed.
const ROOT: u32 = 0;
/// Level number of `+`.
const PLUS: u32 = FIRST_RESERVED;
/// Level number of a level that no filter contains.
const UNKNOWN: u32 = FIRST_RESERVED + 1;
/// Number of levels up to which a match does not allocate.
const INLINE_LEVELS: usize = 32;

/// The wildcard filters, each with a slot number.
pub(crate) struct Trie {
    seed: Seed,
    levels: Levels,
    nodes: Arena<Node>,
    /// Children by literal level, hashed by (parent, level). The child node stores both.
    children: HashTable<u32>,
}

/// One level of one or more filters.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    /// A level number of [`Levels`], or [`PLUS`].
    level: u32,
    /// Child node for `+`.
    plus: u32,
    /// Number of children by literal level.
    literals: u32,
    /// Slot of the filter that ends at this node.
    end: u32,
    /// Slot of the filter that continues with a final `#`.
    multi: u32,
}

impl Node {
    const fn new(parent: u32, level: u32) -> Self {
        Self { parent, level, plus: NONE, literals: 0, end: NONE, multi: NONE }
    }

    const fn is_unused(&self) -> bool {
        self.plus == NONE && self.literals == 0 && self.end == NONE && self.multi == NONE
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new(NONE, NONE)
    }
}

/// The position in the trie where a filter ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    node: u32,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The level of the node is the last one.
    Node,
    /// A `#` follows the level of the node.
    Multi,
}

impl Trie {
    pub(crate) fn new(seed: Seed) -> Self {
        let mut nodes = Arena::new();
        let root = nodes.insert(Node::default());
        debug_assert_eq!(root, ROOT);
        Self { levels: Levels::new(seed.clone()), seed, nodes, children: HashTable::new() }
    }

    /// Returns the slot of a filter.
    pub(crate) fn find(&self, filter: &str) -> Option<u32> {
        let mut node = ROOT;
        for level in filter.split('/') {
            let next = match level {
                "#" => return to_option(self.nodes[node].multi),
                "+" => to_option(self.nodes[node].plus),
                literal => self.child(node, self.levels.find(literal)?),
            };
            node = next?;
        }
        to_option(self.nodes[node].end)
    }

    /// Adds a filter that is not yet in the trie, with its slot.
    pub(crate) fn insert(&mut self, filter: &str, slot: u32) -> Position {
        let mut node = ROOT;
        for level in filter.split('/') {
            node = match level {
                "#" => {
                    self.nodes[node].multi = slot;
                    return Position { node, end: End::Multi };
                }
                "+" => self.plus_child_or_insert(node),
                literal => self.literal_child_or_insert(node, literal),
            };
        }
        self.nodes[node].end = slot;
        Position { node, end: End::Node }
    }

    fn plus_child_or_insert(&mut self, node: u32) -> u32 {
        if let Some(child) = to_option(self.nodes[node].plus) {
            return child;
        }
        let child = self.nodes.insert(Node::new(node, PLUS));
        self.nodes[node].plus = child;
        child
    }

    fn literal_child_or_insert(&mut self, node: u32, literal: &str) -> u32 {
        let existing = self.levels.find(literal).and_then(|level| self.child(node, level));
        if let Some(child) = existing {
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

    /// Returns the child of a node for a literal level.
    #[inline]
    fn child(&self, node: u32, level: u32) -> Option<u32> {
        let is_match = |&child: &u32| self.nodes[child].parent == node && self.nodes[child].level == level;
        self.children.find(self.seed.hash_pair(node, level), is_match).copied()
    }

    /// Removes the filter at `position` and the nodes that no other filter needs.
    pub(crate) fn remove(&mut self, position: Position) {
        let Position { mut node, end } = position;
        match end {
            End::Node => self.nodes[node].end = NONE,
            End::Multi => self.nodes[node].multi = NONE,
        }
        while node != ROOT && self.nodes[node].is_unused() {
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
                let Self { seed, nodes, children, .. } = self;
                shrink_if_sparse(children, |&other| seed.hash_pair(nodes[other].parent, nodes[other].level));
            }
            self.nodes.remove(node);
            node = parent;
        }
    }

    /// Rebuilds the text of the filter at `position`.
    pub(crate) fn text(&self, position: Position) -> String {
        let mut levels = Vec::new();
        if position.end == End::Multi {
            levels.push("#");
        }
        let mut node = position.node;
        while node != ROOT {
            let Node { parent, level, .. } = self.nodes[node];
            levels.push(if level == PLUS { "+" } else { self.levels.text(level) });
            node = parent;
        }
        levels.reverse();
        levels.join("/")
    }

    /// Length of the text of the filter at `position`, bytes.
    pub(crate) fn text_len(&self, position: Position) -> usize {
        // Each level but the first has a separator, which its length includes here.
        let mut len = if position.end == End::Multi { 2 } else { 0 };
        let mut node = position.node;
        while node != ROOT {
            let Node { parent, level, .. } = self.nodes[node];
            len += 1 + if level == PLUS { 1 } else { self.levels.text(level).len() };
            node = parent;
        }
        len - 1
    }

    /// Calls `f` with the slot of each filter that matches a valid name. Returns the number of visited nodes; each node
    /// is visited at most once.
    ///
    /// The traversal is depth first, with literal levels before `+`. At most one `+` branch per level is pending, so
    /// the stack is bounded by the number of levels of the name, regardless of the width of the trie.
    #[inline]
    pub(crate) fn for_each_match(&self, name: &str, f: impl FnMut(u32)) -> usize {
        if self.nodes[ROOT].is_unused() { 0 } else { self.walk(name, f) }
    }

    /// Not inlined, so that an index without wildcards does not pay for its stack frame.
    #[inline(never)]
    fn walk(&self, name: &str, mut f: impl FnMut(u32)) -> usize {
        let mut levels = NameLevels::new(&self.levels, name);
        let mut pending = InlineList::<(u32, u32), INLINE_LEVELS>::new((NONE, 0));
        let mut visited = 0;
        // A wildcard in the first level does not match a name that starts with `$` [MQTT-4.7.2-1].
        let mut next = if name.starts_with('$') {
            self.first_literal(&mut levels).map(|node| (node, 1))
        } else {
            Some((ROOT, 0))
        };
        while let Some((number, depth)) = next {
            visited += 1;
            let node = &self.nodes[number];
            // `a/#` also matches `a` (4.7.1.2), so this holds whether or not the name continues.
            if node.multi != NONE {
                f(node.multi);
            }
            next = None;
            if !levels.is_deeper_than(depth) {
                if node.end != NONE {
                    f(node.end);
                }
            } else if node.literals == 0 {
                next = to_option(node.plus).map(|plus| (plus, depth + 1));
            } else {
                let level = levels.get(depth);
                if level != UNKNOWN {
                    next = self.child(number, level).map(|child| (child, depth + 1));
                }
                if node.plus != NONE {
                    pending.push((node.plus, depth + 1));
                }
            }
            next = next.or_else(|| pending.pop());
        }
        visited
    }

    /// Returns the child of the root for the first level of a name, ignoring `+`.
    fn first_literal(&self, levels: &mut NameLevels<'_>) -> Option<u32> {
        match levels.get(0) {
            UNKNOWN => None,
            level => self.child(ROOT, level),
        }
    }

    /// Returns the number of nodes without the root, of child table entries, of level strings and of level table
    /// entries.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [usize; 4] {
        let (levels, level_entries) = self.levels.counts();
        [self.nodes.len() - 1, self.children.len(), levels, level_entries]
    }

    /// Returns the largest number of nodes that were in use at once.
    #[cfg(test)]
    pub(crate) fn high_water(&self) -> usize {
        self.nodes.high_water()
    }
}

/// Converts [`NONE`] to `None`.
#[inline]
const fn to_option(number: u32) -> Option<u32> {
    if number == NONE { None } else { Some(number) }
}

/// The levels of a name as numbers, looked up lazily. A name of 65,535 levels costs no more than the depth of the
/// filters that it is compared with.
struct NameLevels<'a> {
    levels: &'a Levels,
    numbers: InlineList<u32, INLINE_LEVELS>,
    /// The levels not yet looked up; `None` after the last level.
    rest: Option<&'a str>,
}

impl<'a> NameLevels<'a> {
    fn new(levels: &'a Levels, name: &'a str) -> Self {
        Self { levels, numbers: InlineList::new(NONE), rest: Some(name) }
    }

    /// Returns whether the name has more than `depth` levels. Depths must be queried without gaps.
    #[inline]
    fn is_deeper_than(&mut self, depth: u32) -> bool {
        while self.numbers.len() < depth as usize && self.rest.is_some() {
            self.look_up_next();
        }
        (depth as usize) < self.numbers.len() || self.rest.is_some()
    }

    /// Returns the number of the level at `depth`, which the name must have; [`UNKNOWN`] if no filter contains it.
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
