//! The classes `Mailbox` and `Cursor`.
//!
//! Blocking reads wait in short slices. Between slices they check for signals such as Ctrl-C and for a concurrent
//! `unsubscribe()`, neither of which could interrupt a single long wait in Rust.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use mainstem_bus::RecvError;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;
use crate::bus::seconds;
use crate::error::{receive_error, unsubscribed};
use crate::message::{Message, subscription_stats};

/// Maximum length of one wait between checks for signals and for `unsubscribe()`.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// Calls `attempt` in slices until it returns a value. Returns `None` on timeout.
fn wait<R: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    attempt: impl Fn(Duration) -> PyResult<Option<R>> + Sync,
) -> PyResult<Option<R>> {
    let timeout = timeout.map(seconds).transpose()?;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map_or(WAIT_SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(found) = py.detach(|| attempt(left.min(WAIT_SLICE)))? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

type Inner = mainstem_bus::Mailbox<Payload>;

/// A subscription with a bounded queue. Iterate over it with `for` or `async for`, or call `recv()`.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Mailbox {
    inner: Mutex<Option<Arc<Inner>>>,
}

impl Mailbox {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Mutex::new(Some(Arc::new(inner))) }
    }

    fn inner(&self) -> PyResult<Arc<Inner>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(unsubscribed)
    }

    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Message>> {
        let received = wait(py, timeout, |slice| self.inner()?.recv_timeout(slice).map_err(receive_error))?;
        Ok(received.map(|message| Message::of(py, &message.event())))
    }
}

#[pymethods]
impl Mailbox {
    /// Waits for the next message. Raises TimeoutError after `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        self.next(py, timeout)?
            .ok_or_else(|| PyTimeoutError::new_err("no message was received before the timeout"))
    }

    /// Returns the next message without waiting, or None.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let received = py.detach(|| self.inner()?.recv_timeout(Duration::ZERO).map_err(receive_error))?;
        Ok(received.map(|message| Message::of(py, &message.event())))
    }

    /// Returns up to `max` queued messages without waiting.
    fn drain(&self, py: Python<'_>, max: usize) -> PyResult<Vec<Message>> {
        let mut messages = Vec::new();
        py.detach(|| self.inner()?.drain(max, &mut messages).map_err(receive_error))?;
        Ok(messages.iter().map(|message| Message::of(py, &message.event())).collect())
    }

    /// Returns the next message without waiting. If there is none, returns None and calls `wake` when a message arrives
    /// or the subscription ends, on any thread.
    fn _poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<Option<Message>> {
        let waker = Waker::from(Arc::new(Callable(wake)));
        let inner = self.inner()?;
        match py.detach(|| inner.poll_recv(&mut Context::from_waker(&waker))) {
            Poll::Ready(received) => Ok(Some(Message::of(py, &received.map_err(receive_error)?.event()))),
            Poll::Pending => Ok(None),
        }
    }

    /// Ends the subscription.
    fn unsubscribe(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Returns the statistics of this subscription.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.inner().map(|inner| inner.stats()))?;
        subscription_stats(py, &stats)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        stop_if_closed(py, self.next(py, None))
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(slf: Py<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        py.import("mainstem_bus._aio")?.call_method1("next_message", (slf,))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.unsubscribe(py);
    }
}

/// Converts `ClosedError` to the end of the iteration. `DisconnectedError` is still raised.
fn stop_if_closed<R>(py: Python<'_>, received: PyResult<Option<R>>) -> PyResult<Option<R>> {
    match received {
        Err(error) if error.is_instance_of::<crate::error::ClosedError>(py) => Ok(None),
        other => other,
    }
}

/// A waker that calls a Python function.
struct Callable(Py<PyAny>);

impl Wake for Callable {
    fn wake(self: Arc<Self>) {
        Python::attach(|py| {
            if let Err(error) = self.0.call0(py) {
                error.write_unraisable(py, Some(self.0.bind(py)));
            }
        });
    }
}

/// A subscription that reads batches from a ring shared with other cursors of the same filter.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Cursor {
    inner: Mutex<Option<mainstem_bus::Cursor<Payload>>>,
}

impl Cursor {
    pub(crate) const fn new(inner: mainstem_bus::Cursor<Payload>) -> Self {
        Self { inner: Mutex::new(Some(inner)) }
    }

    /// Runs `read` with the cursor and converts the batch to messages.
    fn read(
        &self,
        read: impl FnOnce(
            &mut mainstem_bus::Cursor<Payload>,
        ) -> Result<mainstem_bus::Batch<'_, Payload>, RecvError>,
    ) -> PyResult<Vec<Message>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = read(inner.as_mut().ok_or_else(unsubscribed)?).map_err(receive_error)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        Ok(Python::attach(|py| batch.iter().map(|event| Message::of(py, &event)).collect()))
    }
}

#[pymethods]
impl Cursor {
    /// Waits for messages and returns up to `max` of them. Returns an empty list after `timeout` seconds.
    #[pyo3(signature = (max = 256, timeout = None))]
    fn next_batch(&self, py: Python<'_>, max: usize, timeout: Option<f64>) -> PyResult<Vec<Message>> {
        let read = wait(py, timeout, |slice| {
            let messages = self.read(|cursor| cursor.batch_timeout(max, slice))?;
            Ok(Some(messages).filter(|messages| !messages.is_empty()))
        })?;
        Ok(read.unwrap_or_default())
    }

    /// Returns up to `max` messages without waiting; an empty list if there are none.
    #[pyo3(signature = (max = 256))]
    fn try_batch(&self, py: Python<'_>, max: usize) -> PyResult<Vec<Message>> {
        py.detach(|| self.read(|cursor| cursor.try_batch(max)))
    }

    /// Ends the subscription.
    fn unsubscribe(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Returns the statistics of this subscription.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_ref().map(mainstem_bus::Cursor::stats)
        });
        subscription_stats(py, &stats.ok_or_else(unsubscribed)?)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Vec<Message>>> {
        stop_if_closed(py, self.next_batch(py, 256, None).map(Some))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.unsubscribe(py);
    }
}
