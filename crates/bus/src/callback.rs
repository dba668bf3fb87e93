//! Callback subscriptions: run on the publisher's thread, with their failures contained.
//!
//! A fan-out runs a slice of callbacks under a single `catch_unwind`, and resumes behind a callback that failed. The
//! cost of catching panics is therefore per fan-out, not per callback. A callback that is subscribed with replay stands
//! behind a [`ReplayGate`], which parks new messages until the retained ones have been replayed.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::event::{Event, SharedMessage, View};
use crate::stats::{Backlog, SubscriptionInfo};
use crate::subscriber_list::Subscriber;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};

/// The error type of callbacks.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The return type of a callback: `()`, or a `Result` whose error is reported to
/// [`Builder::on_fault`](crate::Builder::on_fault).
pub trait Outcome {
    /// Converts the value into a `Result`.
    ///
    /// # Errors
    /// Returns the error of the callback.
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

/// A failed run of a callback, as reported to [`Builder::on_fault`](crate::Builder::on_fault).
#[derive(Debug)]
#[non_exhaustive]
pub struct Fault<'a> {
    /// Id of the subscription, see [`SubscriptionStats::id`](crate::SubscriptionStats::id).
    pub subscription: u64,
    /// Filter of the subscription, including `$share/<group>/`.
    pub filter: &'a str,
    /// Topic of the message the callback failed on.
    pub topic: &'a str,
    /// Whether the callback returned an error or panicked.
    pub cause: Cause<'a>,
}

/// The cause of a [`Fault`].
#[derive(Debug)]
pub enum Cause<'a> {
    /// The callback returned this error.
    Error(&'a (dyn Error + Send + Sync + 'static)),
    /// The callback panicked with this message, or with `no message` if the panic payload is not a string.
    Panic(&'a str),
}

pub(crate) type OnFault = dyn Fn(&Fault<'_>) + Send + Sync;

type Handler<T> = dyn Fn(&Event<'_, T>) -> Result<(), BoxError> + Send + Sync;

/// One subscribed callback. Everything a fan-out needs is stored inline in the list it iterates over.
pub(crate) struct Callback<T> {
    handler: Arc<Handler<T>>,
    pub(crate) info: Arc<SubscriptionInfo>,
    has_metadata: bool,
}

impl<T> Clone for Callback<T> {
    fn clone(&self) -> Self {
        Self { handler: Arc::clone(&self.handler), info: Arc::clone(&self.info), ..*self }
    }
}

impl<T: Send + Sync + 'static> Callback<T> {
    pub(crate) fn new<R: Outcome>(
        info: Arc<SubscriptionInfo>,
        handler: impl Fn(&Event<'_, T>) -> R + Send + Sync + 'static,
    ) -> Self {
        let has_metadata = info.options.metadata;
        let handler = Arc::new(move |event: &Event<'_, T>| handler(event).into_result());
        Self { handler, info, has_metadata }
    }

    /// Returns a copy behind a closed gate, and the gate.
    pub(crate) fn gated(self) -> (Self, Arc<ReplayGate<T>>) {
        let gate = Arc::new(ReplayGate {
            is_open: AtomicBool::new(false),
            parked: Mutex::new(Some(VecDeque::new())),
        });
        let (inner, admission) = (self.clone(), Arc::clone(&gate));
        let handler =
            Arc::new(
                move |event: &Event<'_, T>| {
                    if admission.admits(event, &inner.info) { (inner.handler)(event) } else { Ok(()) }
                },
            );
        (Self { handler, ..self }, gate)
    }
}

impl<T: 'static> Subscriber for Callback<T> {
    fn id(&self) -> u64 {
        self.info.id
    }

    fn vacate(&mut self) -> Self {
        let handler = std::mem::replace(&mut self.handler, Arc::new(|_: &Event<'_, T>| Ok(())));
        Self { handler, info: Arc::clone(&self.info), ..*self }
    }
}

/// Runs each callback with `event`. Returns the number of callbacks that failed.
pub(crate) fn run_all<T>(callbacks: &[Callback<T>], event: &Event<'_, T>, on_fault: &OnFault) -> usize {
    let bare = event.without_metadata();
    let (next, mut failed) = (Cell::new(0), 0);
    loop {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            while let Some(callback) = callbacks.get(next.get()) {
                next.set(next.get() + 1);
                let shown = if callback.has_metadata { event } else { &bare };
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
    let info = &callback.info;
    info.failed.fetch_add(1, Ordering::Relaxed);
    let fault = Fault { subscription: info.id, filter: &info.filter, topic, cause };
    // If the reporter panics, the panic hook has already reported that, and the failure is already counted.
    drop(catch_unwind(AssertUnwindSafe(|| on_fault(&fault))));
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The default of `on_fault`: writes one line to standard error.
pub(crate) fn print_fault(fault: &Fault<'_>) {
    let Fault { filter, topic, cause, .. } = fault;
    match cause {
        Cause::Error(error) => eprintln!("the callback of {filter:?} failed on {topic:?}: {error}"),
        Cause::Panic(message) => eprintln!("the callback of {filter:?} panicked on {topic:?}: {message}"),
    }
}

/// Parks new messages while the retained ones are replayed to a new callback, so that an old value never follows a new
/// one. Parks at most as many messages as the subscription's capacity; the rest are dropped and counted.
pub(crate) struct ReplayGate<T> {
    is_open: AtomicBool,
    /// `None` once the gate is open.
    parked: Mutex<Option<VecDeque<Parked<T>>>>,
}

type Parked<T> = (Arc<SharedMessage<T>>, View);

impl<T> ReplayGate<T> {
    /// Returns whether the callback may run now. If not, parks the message, or drops and counts it.
    fn admits(&self, event: &Event<'_, T>, info: &SubscriptionInfo) -> bool {
        if self.is_open.load(Ordering::Acquire) || event.is_replay() {
            return true;
        }
        let mut guard = lock(&self.parked);
        let Some(parked) = guard.as_mut() else { return true };
        let room = parked.len() < info.options.capacity;
        match event.shared() {
            Some(shared) if room => parked.push_back((Arc::clone(shared), event.view())),
            _ => info.count_dropped(1),
        }
        false
    }

    /// Returns the next parked message. If there is none, opens the gate.
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

/// A callback in a group. Its lag is the number of publishers that are running it now.
pub(crate) struct Worker<T> {
    pub(crate) callback: Callback<T>,
    pub(crate) running: AtomicUsize,
}

impl<T> Worker<T> {
    pub(crate) fn new(callback: Callback<T>) -> Self {
        Self { callback, running: AtomicUsize::new(0) }
    }

    pub(crate) fn backlog(&self) -> Backlog {
        Backlog { lag: self.running.load(Ordering::Relaxed), ..Backlog::default() }
    }
}
