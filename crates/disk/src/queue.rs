//! The queue between a shard and its committer: groups in one direction, reports in the other.
//!
//! With a committer thread, submitting merges into the next group under a mutex and never waits for the disk. The
//! thread moves it to its [`Backlog`], and gives slow work to a second thread, a [`Batch`] at a time. The shard polls
//! for reports with one atomic load. A shard that has to wait for what it submitted for a log waits for the running
//! group, for a batch that concerns the log, and for one group with nothing else that is slow
//! ([`CommitQueue::wait_for`]), however long the backlog is. With the inline committer, submitting runs the group at
//! once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use mainstem_log::LogId;

use crate::backlog::Backlog;
use crate::batch::{Batch, Done};
use crate::commit::Syncer;
use crate::directories::Directories;
use crate::group::Group;
use crate::report::Report;
use crate::settings::{Committer, OnCommitted};

/// The shard's end of the queue.
pub(crate) struct CommitQueue {
    shared: Arc<Shared>,
    /// The committer and the thread for slow work. Empty with the inline committer.
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Whether [`State::report`] is not empty. Changes only while the state is locked.
    has_report: AtomicBool,
    syncer: Mutex<Syncer>,
    /// Signaled when work was submitted, or a batch is done.
    work: Condvar,
    /// Signaled when there is a batch.
    slow_work: Condvar,
    /// Signaled when the committer has no more work, or has done what was urgent.
    idle: Condvar,
    on_committed: Option<OnCommitted>,
}

/// What is done before everything else.
#[derive(Clone, Copy)]
struct Urgent {
    /// Everything that concerns this log.
    log: Option<LogId>,
}

/// Whether files that exist must stay.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    No,
    /// From the next batch on. The last one may still remove files.
    Requested,
    Active,
    /// Files could not stay. Nothing waits any more.
    Broken,
}

#[derive(Default)]
struct State {
    next: Group,
    /// What the shard waits for.
    urgent: Option<Urgent>,
    report: Report,
    batch: Option<Batch>,
    done: Option<Done>,
    hold: Hold,
    is_busy: bool,
    is_closed: bool,
    /// The committer has ended, and gives no more batches.
    has_ended: bool,
}

/// Ignores poisoning: no panic leaves the data behind these locks inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl CommitQueue {
    pub(crate) fn start(
        syncer: Syncer,
        committer: Committer,
        on_committed: Option<OnCommitted>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            has_report: AtomicBool::new(false),
            syncer: Mutex::new(syncer),
            work: Condvar::new(),
            slow_work: Condvar::new(),
            idle: Condvar::new(),
            on_committed,
        });
        let mut queue = Self { shared, threads: Vec::new() };
        if let Committer::Thread { wake } = committer {
            let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
                std::thread::Builder::new().name(name.into()).spawn(run)
            };
            let shared = Arc::clone(&queue.shared);
            let directories = lock(&shared.syncer).directories();
            queue.threads.push(spawn("committer", Box::new(move || shared.run(&*wake)))?);
            let shared = Arc::clone(&queue.shared);
            // If this fails, the queue is dropped, which ends the committer.
            queue.threads.push(spawn("directories", Box::new(move || shared.run_batches(&directories)))?);
        }
        Ok(queue)
    }

    /// Whether the committer has a thread of its own.
    pub(crate) fn has_thread(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Submits a group.
    pub(crate) fn submit(&self, group: Group) {
        if group.is_empty() {
            return;
        }
        if !self.has_thread() {
            if group.deferred.removes_files() {
                self.break_hold();
            }
            let mut syncer = lock(&self.shared.syncer);
            let (acks, deferred) = syncer.run(group);
            let mut report = Report { acks, ..Report::default() };
            report.append(&mut syncer.run_deferred(deferred));
            syncer.pace();
            report.broken.append(&mut syncer.newly_broken());
            report.refused.append(&mut syncer.refused_names.take_unreported());
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
        if self.has_thread() {
            let mut state = lock(&self.shared.state);
            while state.is_busy || !state.next.is_empty() {
                state = wait(&self.shared.idle, state);
            }
        }
        lock(&self.shared.syncer)
    }

    /// Waits until everything submitted for this log, and every checkpoint, is done. Returns the locked syncer.
    pub(crate) fn wait_for(&self, log: Option<LogId>) -> MutexGuard<'_, Syncer> {
        if self.has_thread() {
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

    /// Lets the files that exist stay until [`CommitQueue::release_files`]: removals and replacements wait.
    pub(crate) fn hold_files(&self) {
        let hold = if self.has_thread() { Hold::Requested } else { Hold::Active };
        lock(&self.shared.state).hold = hold;
        self.shared.work.notify_one();
    }

    /// Whether no file is being removed or replaced. Everything that was before has been reported.
    pub(crate) fn are_files_held(&self) -> bool {
        matches!(lock(&self.shared.state).hold, Hold::Active | Hold::Broken)
    }

    /// A file had to be removed although it was to stay.
    pub(crate) fn break_hold(&self) {
        let mut state = lock(&self.shared.state);
        if state.hold != Hold::No {
            state.hold = Hold::Broken;
        }
    }

    /// Lets files be removed again. Returns whether none was removed or replaced meanwhile.
    pub(crate) fn release_files(&self) -> bool {
        let hold = std::mem::take(&mut lock(&self.shared.state).hold);
        self.shared.work.notify_one();
        hold == Hold::Active
    }

    /// Reports logs that broke while the shard held the syncer.
    pub(crate) fn note_broken(&self, broken: Vec<LogId>) {
        self.shared.put(Report { broken, ..Report::default() });
    }
}

impl Drop for CommitQueue {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        (state.is_closed, state.hold) = (true, Hold::No);
        drop(state);
        self.shared.work.notify_one();
        // The committer first: it waits for the last batch.
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of the committer panicked");
            }
            lock(&self.shared.state).has_ended = true;
            self.shared.slow_work.notify_one();
        }
    }
}

impl Shared {
    /// Runs the committer thread: processes groups until the queue is closed and empty.
    fn run(&self, wake: &(dyn Fn() + Send + Sync)) {
        let mut state = lock(&self.state);
        let mut backlog = Backlog::default();
        loop {
            backlog.hold(matches!(state.hold, Hold::Requested | Hold::Active));
            if state.hold == Hold::Requested && state.done.is_none() && !backlog.is_removing() {
                state.hold = Hold::Active;
            }
            let may_run = |urgent: &Urgent| state.done.is_some() || backlog.has(urgent.log);
            let is_urgent = state.urgent.as_ref().is_some_and(may_run);
            if !is_urgent && state.done.is_none() && state.next.is_empty() && !backlog.is_ready() {
                if backlog.is_empty() {
                    state.is_busy = false;
                    self.idle.notify_all();
                    if state.is_closed {
                        return;
                    }
                }
                state = wait(&self.work, state);
                continue;
            }
            let (submitted, done) = (std::mem::take(&mut state.next), state.done.take());
            let urgent = state.urgent.filter(|_| is_urgent);
            state.is_busy = true;
            drop(state);

            let mut syncer = lock(&self.syncer);
            if let Some(done) = done {
                backlog.take_back();
                self.deliver(syncer.finish(done), wake);
            }
            backlog.add(submitted);
            let group = match urgent {
                Some(Urgent { log }) => backlog.take_urgent(log),
                None => backlog.take_plain(),
            };
            let breaks_hold = group.deferred.removes_files();
            let began = (!group.acks.is_empty()).then(Instant::now);
            let (acks, deferred) = syncer.run(group);
            if let (Some(began), Some(on_committed)) = (began, &self.on_committed) {
                on_committed(began.elapsed());
            }
            let (broken, refused) = (syncer.newly_broken(), syncer.refused_names.take_unreported());
            self.deliver(Report { acks, broken, refused, ..Report::default() }, wake);
            self.deliver(syncer.run_deferred(deferred), wake);
            self.give_batch(&mut backlog, &mut syncer);
            drop(syncer);

            state = lock(&self.state);
            if breaks_hold && state.hold != Hold::No {
                state.hold = Hold::Broken;
            }
            if urgent.is_some() {
                state.urgent = None;
                self.idle.notify_all();
            }
        }
    }

    /// Gives the next batch to the thread for slow work, unless it has one.
    fn give_batch(&self, backlog: &mut Backlog, syncer: &mut Syncer) {
        let mut batch = backlog.take_batch(|| syncer.due());
        let kept = syncer.admit(&mut batch);
        if !batch.is_empty() {
            backlog.give(&batch);
            lock(&self.state).batch = Some(batch);
            self.slow_work.notify_one();
        }
        backlog.add(kept);
    }

    /// Runs the thread for slow work.
    fn run_batches(&self, directories: &Directories) {
        let mut state = lock(&self.state);
        while !state.has_ended {
            let Some(batch) = state.batch.take() else {
                state = wait(&self.slow_work, state);
                continue;
            };
            drop(state);
            let done = batch.run(directories);
            state = lock(&self.state);
            state.done = Some(done);
            self.work.notify_one();
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
