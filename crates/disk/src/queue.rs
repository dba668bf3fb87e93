//! Between the shard and whoever waits for the disk: groups one way, what became of them the other.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mainstem_log::LogId;

use crate::commit::{Ack, Group, Syncer};
use crate::settings::Committer;

/// What has become of groups.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) acks: Vec<Ack>,
    /// Logs that have failed.
    pub(crate) broken: Vec<LogId>,
}

impl Report {
    fn is_empty(&self) -> bool {
        self.acks.is_empty() && self.broken.is_empty()
    }

    fn append(&mut self, later: &mut Self) {
        self.acks.append(&mut later.acks);
        self.broken.append(&mut later.broken);
    }
}

/// The shard's end.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    /// Nothing if the shard waits itself.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether there is something in [`State::report`]. Changes only while the state is locked.
    has_report: AtomicBool,
    syncer: Mutex<Syncer>,
    /// There is something to do.
    work: Condvar,
    /// There is not.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    next: Group,
    report: Report,
    is_busy: bool,
    is_over: bool,
}

/// A panic elsewhere leaves what is behind these locks as good as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl Queue {
    pub(crate) fn start(syncer: Syncer, committer: Committer) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            has_report: AtomicBool::new(false),
            syncer: Mutex::new(syncer),
            work: Condvar::new(),
            idle: Condvar::new(),
        });
        let thread = match committer {
            Committer::Inline => None,
            Committer::Thread { wake } => {
                let shared = shared.clone();
                let builder = std::thread::Builder::new().name("committer".into());
                Some(builder.spawn(move || shared.serve(&*wake))?)
            }
        };
        Ok(Self { shared, thread })
    }

    /// Sets a group on its way.
    pub(crate) fn submit(&self, group: Group) {
        if group.is_empty() {
            return;
        }
        if self.thread.is_none() {
            let mut syncer = lock(&self.shared.syncer);
            let (acks, rest) = syncer.run(group);
            syncer.rest(rest);
            self.shared.put(Report { acks, broken: syncer.newly_broken() });
            return;
        }
        lock(&self.shared.state).next.merge(group);
        self.shared.work.notify_one();
    }

    /// What there is to say since this was last called, if anything.
    pub(crate) fn report(&self) -> Option<Report> {
        if !self.shared.has_report.load(Ordering::Acquire) {
            return None;
        }
        let mut state = lock(&self.shared.state);
        self.shared.has_report.store(false, Ordering::Release);
        Some(std::mem::take(&mut state.report))
    }

    /// Waits until everything submitted has come to its end, and hands out the syncer.
    pub(crate) fn settled(&self) -> MutexGuard<'_, Syncer> {
        if self.thread.is_some() {
            let mut state = lock(&self.shared.state);
            while state.is_busy || !state.next.is_empty() {
                state = wait(&self.shared.idle, state);
            }
        }
        lock(&self.shared.syncer)
    }

    /// Takes note of logs that failed while the shard had the syncer.
    pub(crate) fn note_broken(&self, broken: Vec<LogId>) {
        self.shared.put(Report { acks: Vec::new(), broken });
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            lock(&self.shared.state).is_over = true;
            self.shared.work.notify_one();
            if thread.join().is_err() {
                log::error!("the committer has panicked");
            }
        }
    }
}

impl Shared {
    /// The committer's thread: group after group, until it is over and there is none left.
    fn serve(&self, wake: &(dyn Fn() + Send + Sync)) {
        let mut state = lock(&self.state);
        let mut from = LogId(0);
        loop {
            if state.next.is_empty() {
                if state.is_over {
                    return;
                }
                state = wait(&self.work, state);
                continue;
            }
            let mut group = std::mem::take(&mut state.next);
            state.next = group.split_off(&mut from);
            state.is_busy = true;
            drop(state);

            let mut syncer = lock(&self.syncer);
            let (acks, rest) = syncer.run(group);
            self.deliver(Report { acks, broken: syncer.newly_broken() }, wake);
            syncer.rest(rest);
            self.deliver(Report { acks: Vec::new(), broken: syncer.newly_broken() }, wake);
            drop(syncer);

            state = lock(&self.state);
            state.is_busy = false;
            if state.next.is_empty() {
                self.idle.notify_all();
            }
        }
    }

    fn deliver(&self, report: Report, wake: &(dyn Fn() + Send + Sync)) {
        if self.put(report) {
            wake();
        }
    }

    /// Leaves a report for the shard. Whether there is anything in it.
    fn put(&self, mut report: Report) -> bool {
        if report.is_empty() {
            return false;
        }
        let mut state = lock(&self.state);
        state.report.append(&mut report);
        self.has_report.store(true, Ordering::Release);
        true
    }
}
