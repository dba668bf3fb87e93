//! A process without file descriptors: the error names the limit, and nothing is lost. The limit is that of the
//! process, so this file has one test.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_disk::{Committer, RealFs, SegmentStore, Settings};
use mainstem_log::contract::batch;
use mainstem_log::{Completion, Error, LogAdmin, LogReader, LogWriter, Options, State, Store};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A directory that is removed on drop.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Takes all descriptors that are left.
fn take_all() -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken
}

#[test]
fn errors_name_the_limit_of_open_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..limit }).unwrap();
    let dir = std::env::temp_dir().join(format!("mainstem-descriptors-{}", std::process::id()));
    let dir = Directory(dir);
    let open = SegmentStore::open(Arc::new(RealFs), dir.0.clone(), Settings::default(), Committer::Inline);
    let mut store = open.unwrap();
    let options = Options { segment_bytes: 300, ..Options::default() };
    let log = store.open("one", &options).unwrap();
    store.append(log, &batch(1, 1, 200, 0)).unwrap();
    store.commit();

    let taken = take_all();
    assert!(taken.len() > 50, "{} descriptors", taken.len());
    // It needs another segment.
    assert_eq!(store.append(log, &batch(2, 1, 200, 0)).unwrap_err(), Error::TooManyFiles);
    assert_eq!((store.status(log).state, store.status(log).end), (State::Full, 1));
    let text = store.open("two", &options).unwrap_err().to_string();
    assert!(text.contains("too many open files") && text.contains("LimitNOFILE"), "{text}");

    drop(taken);
    assert_eq!(store.append(log, &batch(3, 1, 200, 0)).unwrap().base_offset, 1);
    store.open("two", &options).unwrap();
    store.commit();
    let mut completions: Vec<Completion> = Vec::new();
    store.completions(&mut completions);
    assert!(completions.iter().all(|completion| completion.outcome.is_ok()), "{completions:?}");
    assert_eq!((store.status(log).state, store.status(log).committed), (State::Ready, 2));
}
