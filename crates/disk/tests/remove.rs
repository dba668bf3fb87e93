//! A removed log stays removed, even if a log of the same name is created.

use std::path::PathBuf;
use std::sync::Arc;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Fs, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{LogAdmin, LogReader, LogWriter, Options, Store};

fn open(fs: &FaultFs) -> SegmentStore {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    SegmentStore::open(fs, PathBuf::from("/"), Settings::default(), Committer::Inline).unwrap()
}

/// Fails each sync in turn.
#[test]
fn removed_log_never_reappears_under_a_new_log_of_its_name() {
    for (seed, failing) in (0..20).flat_map(|seed| (1..8).map(move |failing| (seed, failing))) {
        let fs = FaultFs::new(seed);
        let mut store = open(&fs);
        let log = store.open("plant", &Options::default()).unwrap();
        store.append(log, &batch(1, 1, 100, 7)).unwrap();
        store.commit();
        store.remove(log).unwrap();
        fs.set(Plan { failing_sync: Some(failing), ..Plan::default() });
        let opened = store.open("plant", &Options::default());
        fs.set(Plan::default());
        let log = opened.or_else(|_| store.open("plant", &Options::default())).unwrap();
        assert_eq!(store.status(log).end, 0);

        let fs = fs.survivor(seed);
        let mut store = open(&fs);
        let log = store.open("plant", &Options::default()).unwrap();
        assert_eq!(store.status(log).end, 0, "seed {seed}, sync {failing}: {:?}", fs.files());
    }
}
