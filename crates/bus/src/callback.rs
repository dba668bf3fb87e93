//! Callbacks: run by publishers, one message after the other, with their failures contained.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::event::{Event, Shared, View};
use crate::stats::{Profile, Waiting};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// The error of a callback.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a callback returns: nothing, or a `Result` whose error is reported.
pub trait Outcome {
    /// The same as a `Result`.
    ///
    /// # Errors
    /// The callback's own.
    fn into_result(self) -> Result<(), BoxError>;
}

impl Outcome for () {
    #[inline]
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> Outcome for Result<(), E> {
    #[inline]
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

/// A callback that failed, as told to [`Builder::on_fault`](crate::Builder::on_fault).
#[derive(Debug)]
#[non_exhaustive]
pub struct Fault<'a> {
    /// The number of its subscription.
    pub subscription: u64,
    /// What it subscribed to.
    pub filter: &'a str,
    /// The topic of the message it failed at.
    pub topic: &'a str,
    /// How it failed.
    pub cause: Cause<'a>,
}

/// How a callback failed.
#[derive(Debug)]
pub enum Cause<'a> {
    /// It returned this error.
    Error(&'a (dyn Error + Send + Sync + 'static)),
    /// It panicked, with this message if the panic had one.
    Panic(&'a str),
}

pub(crate) type OnFault = dyn Fn(&Fault<'_>) + Send + Sync;

type Handler<T> = dyn Fn(&Event<'_, T>) -> Result<(), BoxError> + Send + Sync;

/// One subscribed callback. What a fan-out needs of it stands side by side in the list it runs through.
pub(crate) struct Callback<T> {
    handler: Arc<Handler<T>>,
    pub(crate) profile: Arc<Profile>,
    wants_metadata: bool,
}

impl<T> Clone for Callback<T> {
    fn clone(&self) -> Self {
        Self { handler: Arc::clone(&self.handler), profile: Arc::clone(&self.profile), ..*self }
    }
}

impl<T: Send + Sync + 'static> Callback<T> {
    pub(crate) fn new<R: Outcome>(
        profile: Arc<Profile>,
        handler: impl Fn(&Event<'_, T>) -> R + Send + Sync + 'static,
    ) -> Self {
        let wants_metadata = profile.options.metadata;
        let handler = Arc::new(move |event: &Event<'_, T>| handler(event).into_result());
        Self { handler, profile, wants_metadata }
    }

    /// The same behind a gate, through which nothing passes before it is open.
    pub(crate) fn gated(self) -> (Self, Arc<Gate<T>>) {
        let gate =
            Arc::new(Gate { is_open: AtomicBool::new(false), parked: Mutex::new(Some(VecDeque::new())) });
        let (inner, at) = (self.clone(), Arc::clone(&gate));
        let handler =
            Arc::new(
                move |event: &Event<'_, T>| {
                    if at.passes(event, &inner.profile) { (inner.handler)(event) } else { Ok(()) }
                },
            );
        (Self { handler, ..self }, gate)
    }
}

/// Runs each callback with `event`, and returns how many have failed.
///
/// One frame catches the panics of all: it costs the same for one callback as for a thousand.
pub(crate) fn run_all<T>(callbacks: &[Callback<T>], event: &Event<'_, T>, on_fault: &OnFault) -> usize {
    let bare = event.without_metadata();
    let (next, mut failed) = (Cell::new(0), 0);
    loop {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            while let Some(callback) = callbacks.get(next.get()) {
                next.set(next.get() + 1);
                let shown = if callback.wants_metadata { event } else { &bare };
                if let Err(error) = (callback.handler)(shown) {
                    return Some(error);
                }
            }
            None
        }));
        let Some(callback) = callbacks.get(next.get().wrapping_sub(1)) else { return failed };
        match ran {
            Ok(None) => return failed,
            Ok(Some(error)) => report(callback, event.topic(), Cause::Error(&*error), on_fault),
            Err(panic) => {
                report(callback, event.topic(), Cause::Panic(panic_message(&*panic)), on_fault);
            }
        }
        failed += 1;
    }
}

#[cold]
fn report<T>(callback: &Callback<T>, topic: &str, cause: Cause<'_>, on_fault: &OnFault) {
    let profile = &callback.profile;
    profile.failed.fetch_add(1, Ordering::Relaxed);
    let fault = Fault { subscription: profile.id, filter: &profile.filter, topic, cause };
    // A reporter that panics has said so through the panic hook, and the failure it was told of is counted.
    drop(catch_unwind(AssertUnwindSafe(|| on_fault(&fault))));
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// What a bus does with faults unless told otherwise: a line on the standard error.
pub(crate) fn print(fault: &Fault<'_>) {
    let Fault { filter, topic, cause, .. } = fault;
    match cause {
        Cause::Error(error) => eprintln!("the callback of {filter:?} failed on {topic:?}: {error}"),
        Cause::Panic(message) => eprintln!("the callback of {filter:?} panicked on {topic:?}: {message}"),
    }
}

/// Holds back what is published while the retained messages of a new subscription are handed to its callback, so
/// that an old value never comes behind a new one. Holds as many as the subscription's capacity says.
pub(crate) struct Gate<T> {
    is_open: AtomicBool,
    /// `None` once the gate is open.
    parked: Mutex<Option<VecDeque<Parked<T>>>>,
}

type Parked<T> = (Arc<Shared<T>>, View);

impl<T> Gate<T> {
    /// Whether the callback is to be run now; otherwise the message is parked, or dropped and counted.
    fn passes(&self, event: &Event<'_, T>, profile: &Profile) -> bool {
        if self.is_open.load(Ordering::Acquire) || event.is_replay() {
            return true;
        }
        let mut guard = lock(&self.parked);
        let Some(parked) = guard.as_mut() else { return true };
        let room = parked.len() < profile.options.capacity;
        match event.shared() {
            Some(shared) if room => parked.push_back((Arc::clone(shared), event.view())),
            _ => profile.count_dropped(1),
        }
        false
    }

    /// The next parked message; where there is none, the gate is open from now on.
    pub(crate) fn next_or_open(&self) -> Option<Parked<T>> {
        let mut guard = lock(&self.parked);
        let next = guard.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            *guard = None;
            self.is_open.store(true, Ordering::Release);
        }
        next
    }
}

/// A callback in a group, and how many publishers are running it now: its lag.
pub(crate) struct Worker<T> {
    pub(crate) callback: Callback<T>,
    pub(crate) running: AtomicUsize,
}

impl<T> Worker<T> {
    pub(crate) fn new(callback: Callback<T>) -> Self {
        Self { callback, running: AtomicUsize::new(0) }
    }

    pub(crate) fn waiting(&self) -> Waiting {
        Waiting { lag: self.running.load(Ordering::Relaxed), ..Waiting::default() }
    }
}
