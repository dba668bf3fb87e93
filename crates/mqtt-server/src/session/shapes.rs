//! How many wildcard filters of one session a topic can match.
//!
//! A client gets one copy of a message, however many of its filters match. Thousands of overlapping filters thus cost
//! a publisher thousands of visits for one delivery. The *shape* of a filter is where its wildcards are, and how many
//! levels it has. For each shape, a topic matches at most one filter. The levels of a session's distinct shapes are a
//! bound on what the session adds to the cost of any match, and they have a limit. Clients that subscribe to
//! thousands of devices use a few shapes; only overlapping filters need many.

use hashbrown::HashMap;

/// The distinct shapes of a session's wildcard filters, each with the number of filters.
#[derive(Debug, Default)]
pub(crate) struct WildcardShapes {
    by_shape: HashMap<Box<[u16]>, u32, foldhash::fast::RandomState>,
    /// Sum of the levels of the shapes.
    levels: u32,
    has_refused: bool,
    scratch: Vec<u16>,
}

/// Marks the number of levels before a final `#`.
const MULTI: u16 = u16::MAX;

impl WildcardShapes {
    /// Adds a filter, unless the levels of all shapes would exceed `levels_max`. Returns whether it was added.
    pub(crate) fn add(&mut self, filter: &str, levels_max: u32) -> bool {
        let Some(levels) = write_shape(filter, &mut self.scratch) else { return true };
        if let Some(filters) = self.by_shape.get_mut(&*self.scratch) {
            *filters += 1;
            return true;
        }
        if self.levels + levels > levels_max {
            return false;
        }
        self.levels += levels;
        self.by_shape.insert(self.scratch.as_slice().into(), 1);
        true
    }

    /// Notes that a filter was refused. True for the first.
    pub(crate) fn refuses_first(&mut self) -> bool {
        !std::mem::replace(&mut self.has_refused, true)
    }

    /// Removes a filter that was added.
    pub(crate) fn remove(&mut self, filter: &str) {
        let Some(levels) = write_shape(filter, &mut self.scratch) else { return };
        let Some(filters) = self.by_shape.get_mut(&*self.scratch) else { return };
        *filters -= 1;
        if *filters == 0 {
            self.by_shape.remove(&*self.scratch);
            self.levels -= levels;
        }
    }
}

/// Writes the positions of the `+`, the number of levels, and whether a `#` follows. Returns the number of levels;
/// `None` without wildcards.
fn write_shape(filter: &str, shape: &mut Vec<u16>) -> Option<u32> {
    shape.clear();
    let mut levels = 0;
    let mut is_multi = false;
    for level in filter.split('/') {
        match level {
            "+" => shape.push(levels),
            "#" => is_multi = true,
            _ => {}
        }
        levels = levels.saturating_add(1);
    }
    if shape.is_empty() && !is_multi {
        return None;
    }
    shape.push(levels);
    if is_multi {
        shape.push(MULTI);
    }
    Some(u32::from(levels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_one_shape_count_once() {
        let mut shapes = WildcardShapes::default();
        for device in 0..1000 {
            assert!(shapes.add(&format!("device/{device}/+/state"), 8));
            assert!(shapes.add(&format!("exact/{device}"), 8), "it has no wildcard");
        }
        assert_eq!((shapes.levels, shapes.by_shape.len()), (4, 1));
        assert!(shapes.add("a/b/c/#", 8), "another shape of four levels");
        assert!(!shapes.add("+", 8));
        assert!(shapes.add("+", 9));
        shapes.remove("+");
        assert!(!shapes.add("a/+", 9));
        shapes.remove("a/b/c/#");
        assert!(shapes.add("a/+", 9));
        for device in 0..1000 {
            shapes.remove(&format!("device/{device}/+/state"));
        }
        shapes.remove("a/+");
        assert_eq!((shapes.levels, shapes.by_shape.len()), (0, 0));
    }

    #[test]
    fn shapes_differ_by_wildcards_and_length() {
        let all = ["+", "#", "a/+", "+/a", "+/+", "a/#", "+/#", "a/+/a", "a/a/+", "a/a/#", "+/a/#", "+/a/+"];
        let mut shapes = WildcardShapes::default();
        for filter in all {
            assert!(shapes.add(filter, u32::MAX));
        }
        assert_eq!(shapes.by_shape.len(), all.len());
        assert!(shapes.add("b/+", u32::MAX) && shapes.add("/c/#", u32::MAX));
        assert_eq!(shapes.by_shape.len(), all.len());
    }
}
