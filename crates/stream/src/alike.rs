//! Names of topics that metrics cannot tell apart, since they differ in `.` and `_` only. Kafka lets no two of them be.

use std::sync::Arc;

use hashbrown::HashMap;

/// The names that there are, each under what it has in common with those like it. Names without such marks collide
/// with none, and are left out.
#[derive(Debug, Default)]
pub(crate) struct Alike(HashMap<String, Arc<str>, foldhash::fast::RandomState>);

/// Whether a name may collide with any other.
pub(crate) fn may_collide(name: &str) -> bool {
    name.contains(['.', '_'])
}

/// Whether one collides with the other.
pub(crate) fn collides(one: &str, other: &str) -> bool {
    one != other && one.len() == other.len() && common(one).is_some_and(|one| common(other) == Some(one))
}

fn common(name: &str) -> Option<String> {
    may_collide(name).then(|| name.replace('.', "_"))
}

impl Alike {
    /// The name that this one collides with.
    pub(crate) fn colliding(&self, name: &str) -> Option<&Arc<str>> {
        self.0.get(&common(name)?).filter(|known| ***known != *name)
    }

    pub(crate) fn add(&mut self, name: &Arc<str>) {
        if let Some(common) = common(name) {
            self.0.entry(common).or_insert_with(|| Arc::clone(name));
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(common) = common(name)
            && self.0.get(&common).is_some_and(|known| **known == *name)
        {
            self.0.remove(&common);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_collide_that_differ_in_marks_only() {
        let mut alike = Alike::default();
        alike.add(&"a.b_c".into());
        alike.add(&"plain".into());
        for name in ["a_b_c", "a_b.c", "a.b.c"] {
            assert_eq!(alike.colliding(name).map(|name| &**name), Some("a.b_c"), "{name}");
            assert!(collides(name, "a.b_c") && collides("a.b_c", name));
        }
        for name in ["a.b_c", "plain", "a-b-c", "a.b", "ab.c", "a.b_c_"] {
            assert_eq!(alike.colliding(name), None, "{name}");
            assert!(!collides(name, "a.b_c"));
        }
        alike.remove("a_b_c");
        assert!(alike.colliding("a_b_c").is_some(), "another has gone");
        alike.remove("a.b_c");
        assert_eq!(alike.colliding("a_b_c"), None);
    }
}
