//! Snapshots: all shards capture their stores at the same moment.
//!
//! What one shard has stored may depend on what another has: a session on the message that it was promised, an offset
//! of a consumer group on the records before it. Images of different moments would contradict each other. So the shards
//! stop at the end of a turn, each waits until all have, and then notes what its stores contain, which takes no system
//! call. A snapshot is therefore what a kill of the whole process at that moment would have left.
//!
//! One thread at a time [takes](Snapshots::take) a snapshot and leads the shards through its [`Stage`]s; a shard looks
//! at the stage at the end of each turn. Files are linked by that thread, so a shard makes no slow call for it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstem_log::{ImageFile, StoreImage, Stores};
use mainstem_runtime::Wake;

/// How long a shard waits for the others at most. Clients of all shards wait meanwhile.
const MEETING_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the shards have for a stage: for its syncs, above all.
const STAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the shards are woken during a stage: not everything that they wait for wakes them.
const WAKE_INTERVAL: Duration = Duration::from_millis(1);
/// Attempts to take a snapshot. One fails if a log is removed and created again meanwhile, or a shard is busy.
const ATTEMPTS: usize = 5;

/// What the shards do for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing: there is none, or its files may be removed again.
    Release,
    /// They let no file be removed.
    Hold,
    /// They meet, and capture their stores.
    Capture,
}

const STAGES: [Stage; 3] = [Stage::Release, Stage::Hold, Stage::Capture];

/// A snapshot as seen by the shards, and by the thread that takes it.
pub struct Snapshots {
    /// Number of stages so far. The stage is this modulo the number of stages.
    step: AtomicU64,
    progress: Mutex<Progress>,
    /// Signaled when a shard has arrived at the meeting, or has finished a stage.
    changed: Condvar,
    /// Lets one thread at a time take a snapshot.
    taking: Mutex<()>,
    /// The shards are ending: nobody must wait for them.
    is_ending: AtomicBool,
    shards: usize,
}

/// How far the shards are with the current stage.
#[derive(Default)]
struct Progress {
    wakes: Vec<Wake>,
    /// Shards that have arrived at the meeting.
    arrived: usize,
    /// Shards that have finished the stage.
    finished: usize,
    /// Images of stores, with the number of the store.
    images: Vec<(u16, Box<dyn StoreImage>)>,
    error: Option<String>,
}

/// Why an attempt failed.
enum Failure {
    /// Another one may succeed.
    Passing(String),
    Final(String),
}

/// What a shard has done for the current snapshot.
#[derive(Debug, Default)]
pub(crate) struct ShardSnapshot {
    /// The last step that it has finished.
    finished: u64,
    /// Whether files are held.
    is_holding: bool,
    /// Numbers of the stores whose images are not taken yet; `None` before they are captured.
    missing: Option<Vec<u16>>,
}

/// The files of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFiles {
    /// Number of each store, and its files, below the directory of that number.
    pub stores: Vec<(u16, Vec<ImageFile>)>,
}

impl Snapshots {
    /// For this many shards.
    pub fn new(shards: usize) -> Arc<Self> {
        Arc::new(Self {
            step: AtomicU64::new(0),
            progress: Mutex::default(),
            changed: Condvar::new(),
            taking: Mutex::default(),
            is_ending: AtomicBool::new(false),
            shards,
        })
    }

    /// Sets the function that wakes a shard. To be called once for each shard, when it starts.
    pub fn bind_wake(&self, wake: Wake) {
        self.lock().wakes.push(wake);
    }

    /// Takes a snapshot: links the files of each store into the directory of its number in `into`, which must exist.
    /// Blocks for as long as that takes, usually some milliseconds and a few for each thousand files.
    ///
    /// # Errors
    /// A message for the user: a log cannot be captured, a file cannot be linked, or the shards do not answer. Files
    /// may be left in `into`.
    pub fn take(&self, into: &Path) -> Result<SnapshotFiles, String> {
        let _taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                log::info!("the snapshot is taken again: {last}");
                clear(into).map_err(|error| format!("{}: {error}", into.display()))?;
            }
            let captured = self.run(Stage::Hold).and_then(|()| self.run(Stage::Capture));
            let images = std::mem::take(&mut self.lock().images);
            let linked = captured.and_then(|()| link(images, into));
            // Whatever happened, the shards must not hold their files for ever.
            let released = self.run(Stage::Release);
            match linked.and_then(|files| released.map(|()| files)) {
                Ok(files) => return Ok(files),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error)) => last = error,
            }
        }
        Err(last)
    }

    /// No snapshot is taken from now on, and whoever is taking one gives up.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// Lets all shards finish a stage.
    fn run(&self, stage: Stage) -> Result<(), Failure> {
        let mut progress = self.lock();
        (progress.arrived, progress.finished, progress.error) = (0, 0, None);
        let step = self.step.load(Ordering::Relaxed);
        let later = step + 1..=step + STAGES.len() as u64;
        let next = later.into_iter().find(|step| stage_of(*step) == stage).unwrap_or(step);
        self.step.store(next, Ordering::Release);
        let deadline = Instant::now() + STAGE_TIMEOUT;
        while progress.finished < self.shards {
            if self.is_ending.load(Ordering::Acquire) {
                return Err(Failure::Final("the broker stops".into()));
            }
            if Instant::now() >= deadline {
                return Err(Failure::Final("a shard does not answer".into()));
            }
            progress.wakes.iter().for_each(|wake| wake());
            let waited = self.changed.wait_timeout(progress, WAKE_INTERVAL);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        progress.error.take().map_or(Ok(()), |error| Err(Failure::Passing(error)))
    }

    /// Does what a shard has to do now. To be called at the end of each turn, after the commit.
    #[inline]
    pub(crate) fn poll(&self, shard: &mut ShardSnapshot, stores: &mut Stores) {
        let step = self.step.load(Ordering::Acquire);
        if step != shard.finished {
            self.work(step, shard, stores);
        }
    }

    #[cold]
    fn work(&self, step: u64, shard: &mut ShardSnapshot, stores: &mut Stores) {
        let outcome = match stage_of(step) {
            Stage::Hold => Ok(hold(shard, stores)),
            Stage::Capture => self.capture(step, shard, stores),
            Stage::Release => release(shard, stores).map(|()| true),
        };
        if outcome == Ok(false) {
            return;
        }
        shard.finished = step;
        let mut progress = self.lock();
        // The thread has given the stage up: nobody waits for it.
        if self.step.load(Ordering::Relaxed) == step {
            progress.finished += 1;
            if let Err(error) = outcome {
                progress.error.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }

    /// Captures the stores, or takes the images that have become durable since. Returns whether all are taken.
    fn capture(&self, step: u64, shard: &mut ShardSnapshot, stores: &mut Stores) -> Result<bool, String> {
        let missing = match &mut shard.missing {
            Some(missing) => missing,
            missing => {
                self.meet()?;
                for at in stores.iter_mut() {
                    at.store.capture().map_err(|error| format!("store {}: {error}", at.store_id))?;
                }
                missing.insert(stores.iter().map(|at| at.store_id).collect())
            }
        };
        for at in stores.iter_mut().filter(|at| missing.contains(&at.store_id)).collect::<Vec<_>>() {
            let image = at.store.take_image().map_err(|error| format!("store {}: {error}", at.store_id))?;
            if let Some(image) = image {
                missing.retain(|store_id| *store_id != at.store_id);
                let mut progress = self.lock();
                if self.step.load(Ordering::Relaxed) == step {
                    progress.images.push((at.store_id, image));
                }
            }
        }
        Ok(missing.is_empty())
    }

    /// Waits until all shards are here.
    fn meet(&self) -> Result<(), String> {
        let deadline = Instant::now() + MEETING_TIMEOUT;
        let mut progress = self.lock();
        progress.arrived += 1;
        self.changed.notify_all();
        while progress.arrived < self.shards {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("a shard was too busy to meet the others".into());
            }
            progress = self.changed.wait_timeout(progress, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stage_of(step: u64) -> Stage {
    STAGES[(step % STAGES.len() as u64) as usize]
}

/// Holds the files of the stores. Returns whether that has come into effect.
fn hold(shard: &mut ShardSnapshot, stores: &mut Stores) -> bool {
    if !std::mem::replace(&mut shard.is_holding, true) {
        stores.iter_mut().for_each(|at| at.store.hold_files());
    }
    shard.missing = None;
    stores.iter_mut().all(|at| at.store.are_files_held())
}

/// Lets files be removed again.
fn release(shard: &mut ShardSnapshot, stores: &mut Stores) -> Result<(), String> {
    shard.missing = None;
    if !std::mem::take(&mut shard.is_holding) {
        return Ok(());
    }
    let mut has_stayed = true;
    for at in stores.iter_mut() {
        has_stayed &= at.store.release_files();
    }
    if has_stayed { Ok(()) } else { Err("a log was removed and created again meanwhile".into()) }
}

/// Links the files of each store.
fn link(mut images: Vec<(u16, Box<dyn StoreImage>)>, into: &Path) -> Result<SnapshotFiles, Failure> {
    images.sort_unstable_by_key(|(store_id, _)| *store_id);
    let link = |(store_id, image): (u16, Box<dyn StoreImage>)| {
        let files = image.link(&into.join(store_id.to_string()));
        files
            .map(|files| (store_id, files))
            .map_err(|error| Failure::Passing(format!("store {store_id}: {error}")))
    };
    Ok(SnapshotFiles { stores: images.into_iter().map(link).collect::<Result<_, _>>()? })
}

/// Removes what is left of an earlier attempt.
fn clear(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        std::fs::remove_dir_all(entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mainstem_log::{MemoryStore, StoreAt};

    use super::*;

    /// Polls as this many shards do, until the snapshot is over.
    fn take(shards: usize, of: &Arc<Snapshots>, is_ending: bool) -> Result<SnapshotFiles, String> {
        let into = std::env::temp_dir().join(format!("mainstem-snapshot-{}-{is_ending}", std::process::id()));
        std::fs::create_dir_all(&into).unwrap();
        let is_over = AtomicBool::new(false);
        let taken = std::thread::scope(|scope| {
            for _ in 0..shards {
                scope.spawn(|| {
                    let store = StoreAt::new(0, Box::new(MemoryStore::new()));
                    let (mut shard, mut stores) = (ShardSnapshot::default(), Stores::from_iter([store]));
                    while !is_over.load(Ordering::Acquire) {
                        of.poll(&mut shard, &mut stores);
                        std::thread::yield_now();
                    }
                });
            }
            if is_ending {
                of.end();
            }
            let taken = of.take(&into);
            is_over.store(true, Ordering::Release);
            taken
        });
        std::fs::remove_dir_all(&into).unwrap();
        taken
    }

    #[test]
    fn a_store_without_files_fails_after_all_attempts() {
        let snapshots = Snapshots::new(3);
        assert_eq!(take(3, &snapshots, false).unwrap_err(), "store 0: the store has no files to capture");
        // The shards are ready for the next one.
        assert_eq!(take(3, &snapshots, false).unwrap_err(), "store 0: the store has no files to capture");
    }

    #[test]
    fn nobody_waits_for_shards_that_are_ending() {
        let snapshots = Snapshots::new(3);
        assert_eq!(take(2, &snapshots, true).unwrap_err(), "the broker stops");
    }
}
