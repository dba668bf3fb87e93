//! How long the commits of each store take, as a metric: what the disk costs those who wait for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_disk::OnCommitted;
use mainstem_metrics::{Durations, Exposition, Metric};

/// The metric.
pub(crate) const COMMITS: Metric = Metric::histogram(
    "mainstem_commit_duration_seconds",
    &["store"],
    "Time that the disk took to make a group of appends durable, by store (a directory in `log/` of the data).",
);

/// Histograms by store.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommitTimes(Arc<Mutex<BTreeMap<u16, Arc<Durations>>>>);

impl CommitTimes {
    /// Records the commits of a store.
    pub(crate) fn recorder(&self, store_id: u16) -> OnCommitted {
        let mut stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = Arc::clone(stores.entry(store_id).or_default());
        Arc::new(move |duration| times.record(duration))
    }

    /// Writes the metric.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut commits = text.begin(&COMMITS);
        for (store_id, times) in &*stores {
            commits.durations(&[&store_id.to_string()], times);
        }
    }
}
