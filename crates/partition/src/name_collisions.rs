//! Topic names that differ only in `.` and `_`.
//!
//! Kafka replaces `.` with `_` in the names of metrics, so such topics would share their metrics. Kafka therefore
//! rejects the second name. The index maps normalized names to topics, so a check costs one lookup.

use std::sync::Arc;

use hashbrown::HashMap;

/// Existing names by their normalized form. It omits names without `.` and `_`, because they cannot collide.
#[derive(Debug, Default)]
pub struct NameCollisions(HashMap<String, Arc<str>, foldhash::fast::RandomState>);

/// Whether a name can collide with another one.
pub fn may_collide(name: &str) -> bool {
    name.contains(['.', '_'])
}

/// Whether two names collide.
pub fn collides(one: &str, other: &str) -> bool {
    one != other
        && one.len() == other.len()
        && normalized(one).is_some_and(|one| normalized(other) == Some(one))
}

/// The name with `_` for each `.`; `None` if it cannot collide.
fn normalized(name: &str) -> Option<String> {
    may_collide(name).then(|| name.replace('.', "_"))
}

impl NameCollisions {
    /// The existing name that this one collides with.
    pub fn collision(&self, name: &str) -> Option<&Arc<str>> {
        self.0.get(&normalized(name)?).filter(|known| ***known != *name)
    }

    /// Adds an existing name.
    pub fn add(&mut self, name: &Arc<str>) {
        if let Some(normalized) = normalized(name) {
            self.0.entry(normalized).or_insert_with(|| Arc::clone(name));
        }
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &str) {
        if let Some(normalized) = normalized(name)
            && self.0.get(&normalized).is_some_and(|known| **known == *name)
        {
            self.0.remove(&normalized);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_only_in_dots_and_underscores_collide() {
        let mut names = NameCollisions::default();
        names.add(&"a.b_c".into());
        names.add(&"plain".into());
        for name in ["a_b_c", "a_b.c", "a.b.c"] {
            assert_eq!(names.collision(name).map(|name| &**name), Some("a.b_c"), "{name}");
            assert!(collides(name, "a.b_c") && collides("a.b_c", name));
        }
        for name in ["a.b_c", "plain", "a-b-c", "a.b", "ab.c", "a.b_c_"] {
            assert_eq!(names.collision(name), None, "{name}");
            assert!(!collides(name, "a.b_c"));
        }
        names.remove("a_b_c");
        assert!(names.collision("a_b_c").is_some(), "removing another name has no effect");
        names.remove("a.b_c");
        assert_eq!(names.collision("a_b_c"), None);
    }
}
