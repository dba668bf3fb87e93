//! When API keys were last used.
//!
//! A use is noted in memory at each log-in, and stored at intervals: a record per log-in would wear the disk, and a
//! change of the state would make every connection compile its rules again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::api_key::ApiKeyId;

/// The last use of each API key.
#[derive(Debug, Default)]
pub struct ApiKeyUses(Mutex<Uses>);

#[derive(Debug, Default)]
struct Uses {
    /// Unix time, ms. Only keys that exist are noted, which bounds them.
    last: BTreeMap<ApiKeyId, u64>,
    unstored: BTreeSet<ApiKeyId>,
}

impl ApiKeyUses {
    /// Restores the last use of a key from the log.
    pub fn restore(&self, id: ApiKeyId, at_ms: Option<u64>) {
        let mut uses = self.uses();
        match at_ms {
            Some(at_ms) => drop(uses.last.insert(id, at_ms)),
            None => drop(uses.last.remove(&id)),
        }
    }

    /// A key that exists is used.
    pub fn note(&self, id: ApiKeyId, at_ms: u64) {
        let mut uses = self.uses();
        uses.last.insert(id, at_ms);
        uses.unstored.insert(id);
    }

    /// A key is deleted.
    pub fn forget(&self, id: ApiKeyId) {
        let mut uses = self.uses();
        uses.last.remove(&id);
        uses.unstored.remove(&id);
    }

    /// When a key was last used, Unix time, ms.
    pub fn last(&self, id: ApiKeyId) -> Option<u64> {
        self.uses().last.get(&id).copied()
    }

    /// At most `max` uses that are not stored yet. They count as stored now.
    pub fn take_unstored(&self, max: usize) -> Vec<(ApiKeyId, u64)> {
        let mut uses = self.uses();
        let ids: Vec<ApiKeyId> = uses.unstored.iter().take(max).copied().collect();
        for id in &ids {
            uses.unstored.remove(id);
        }
        ids.into_iter().filter_map(|id| Some((id, *uses.last.get(&id)?))).collect()
    }

    fn uses(&self) -> std::sync::MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_is_stored_once_and_the_newest_counts() {
        let uses = ApiKeyUses::default();
        let [a, b] = [ApiKeyId(1), ApiKeyId(2)];
        uses.restore(a, Some(5));
        assert!(uses.take_unstored(10).is_empty(), "it comes from the log");
        uses.note(a, 7);
        uses.note(a, 8);
        uses.note(b, 9);
        assert_eq!(uses.take_unstored(1), [(a, 8)]);
        assert_eq!(uses.take_unstored(10), [(b, 9)]);
        assert!(uses.take_unstored(10).is_empty());
        uses.note(b, 10);
        uses.forget(b);
        assert!(uses.take_unstored(10).is_empty());
        assert_eq!((uses.last(a), uses.last(b)), (Some(8), None));
    }
}
