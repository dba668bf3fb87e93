//! The queue between a shard and its committer: groups in one direction, reports in the other.
//!
//! With a committer thread, submitting merges into the next group under a mutex and never waits for the disk. The
//! thread moves it to its [`Backlog`]. The shard polls for reports with one atomic load. A shard that has to wait for
//! what it submitted for a log waits for the running group and for one with nothing else that is slow
//! ([`CommitQueue::wait_for`]), however long the backlog is. With the inline committer, submitting runs the group at
//! once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use mainstem_log::LogId;

use crate::backlog::Backlog;
use crate::commit::{Report, Syncer};
use crate::group::Group;
use crate::settings::Committer;

/// The shard's end of the queue.
pub(crate) struct CommitQueue {
    shared: Arc<Shared>,
    /// `None` with the inline committer.
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether [`State::report`] is not empty. Changes only while the state is locked.
    has_report: AtomicBool,
    syncer: Mutex<Syncer>,
    /// Signaled when work was submitted.
    work: Condvar,
    /// Signaled when the committer has no more work, or has done what was urgent.
    idle: Condvar,
}

/// What is done before everything else.
#[derive(Clone, Copy)]
struct Urgent {
    /// Everything that concerns this log.
    log: Option<LogId>,
}

#[derive(Default)]
struct State {
    next: Group,
    /// What the shard waits for.
    urgent: Option<Urgent>,
    report: Report,
    is_busy: bool,
    is_closed: bool,
}

/// Ignores poisoning: no panic leaves the data behind these locks inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl CommitQueue {
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
                Some(builder.spawn(move || shared.run(&*wake))?)
            }
        };
        Ok(Self { shared, thread })
    }

    /// Whether the committer has a thread of its own.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Submits a group.
    pub(crate) fn submit(&self, group: Group) {
        if group.is_empty() {
            return;
        }
        if self.thread.is_none() {
            let mut syncer = lock(&self.shared.syncer);
            let (acks, deferred) = syncer.run(group);
            let mut report = Report { acks, ..Report::default() };
            report.append(&mut syncer.run_deferred(deferred));
            self.shared.put(report);
            return;
        }
        lock(&self.shared.state).next.merge(group);
        self.shared.work.notify_one();
    }

    /// Takes the report since the last call, if there is one.
    pub(crate) fn report(&self) -> Option<Report> {
        if !self.shared.has_report.load(Ordering::Acquire) {
            return None;
        }
        let mut state = lock(&self.shared.state);
        self.shared.has_report.store(false, Ordering::Release);
        Some(std::mem::take(&mut state.report))
    }

    /// Waits until everything submitted is done and returns the locked syncer.
    pub(crate) fn wait_idle(&self) -> MutexGuard<'_, Syncer> {
        if self.thread.is_some() {
            let mut state = lock(&self.shared.state);
            while state.is_busy || !state.next.is_empty() {
                state = wait(&self.shared.idle, state);
            }
        }
        lock(&self.shared.syncer)
    }

    /// Waits until everything submitted for this log, and every checkpoint, is done. Returns the locked syncer.
    pub(crate) fn wait_for(&self, log: Option<LogId>) -> MutexGuard<'_, Syncer> {
        if self.thread.is_some() {
            let mut state = lock(&self.shared.state);
            if state.is_busy || !state.next.is_empty() {
                state.urgent = Some(Urgent { log });
                self.shared.work.notify_one();
                while state.urgent.is_some() {
                    state = wait(&self.shared.idle, state);
                }
            }
        }
        lock(&self.shared.syncer)
    }

    /// Reports logs that broke while the shard held the syncer.
    pub(crate) fn note_broken(&self, broken: Vec<LogId>) {
        self.shared.put(Report { broken, ..Report::default() });
    }
}

impl Drop for CommitQueue {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            lock(&self.shared.state).is_closed = true;
            self.shared.work.notify_one();
            if thread.join().is_err() {
                log::error!("the committer thread panicked");
            }
        }
    }
}

impl Shared {
    /// Runs the committer thread: processes groups until the queue is closed and empty.
    fn run(&self, wake: &(dyn Fn() + Send + Sync)) {
        let mut state = lock(&self.state);
        let mut backlog = Backlog::default();
        loop {
            let urgent = state.urgent;
            if urgent.is_none() && state.next.is_empty() && backlog.is_empty() {
                state.is_busy = false;
                self.idle.notify_all();
                if state.is_closed {
                    return;
                }
                state = wait(&self.work, state);
                continue;
            }
            let submitted = std::mem::take(&mut state.next);
            state.is_busy = true;
            drop(state);
            backlog.add(submitted);
            let group = match urgent {
                Some(Urgent { log }) => backlog.take_urgent(log),
                None => backlog.next(),
            };

            let mut syncer = lock(&self.syncer);
            let (acks, deferred) = syncer.run(group);
            let (broken, refused) = (syncer.newly_broken(), syncer.refused_names.take_unreported());
            self.deliver(Report { acks, broken, refused, ..Report::default() }, wake);
            self.deliver(syncer.run_deferred(deferred), wake);
            drop(syncer);

            state = lock(&self.state);
            if urgent.is_some() {
                state.urgent = None;
                self.idle.notify_all();
            }
        }
    }

    fn deliver(&self, report: Report, wake: &(dyn Fn() + Send + Sync)) {
        if self.put(report) {
            wake();
        }
    }

    /// Merges a report for the shard. Returns whether it has any content.
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
