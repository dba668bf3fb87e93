//! Mailboxes and cursors: what Python reads from.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use mainstem_bus::RecvError;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;
use crate::bus::seconds;
use crate::error::{of_receive, unsubscribed};
use crate::message::{Message, subscription_stats};

/// How long a wait lasts before it looks for Ctrl-C, and whether the subscription is still there.
const NAP: Duration = Duration::from_millis(50);

/// Waits in naps until `attempt` has something; `None` when `timeout` ends.
fn wait<R: Send>(
    py: Python<'_>,
    timeout: Option<f64>,
    attempt: impl Fn(Duration) -> PyResult<Option<R>> + Sync,
) -> PyResult<Option<R>> {
    let timeout = timeout.map(seconds).transpose()?;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map_or(NAP, |deadline| deadline.saturating_duration_since(Instant::now()));
        if let Some(found) = py.detach(|| attempt(left.min(NAP)))? {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

type Inner = mainstem_bus::Mailbox<Payload>;

/// A subscription that waits to be read.
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
        let received = wait(py, timeout, |nap| self.inner()?.recv_timeout(nap).map_err(of_receive))?;
        Ok(received.map(|message| Message::of(py, &message.event())))
    }
}

#[pymethods]
impl Mailbox {
    /// Waits for the next message.
    #[pyo3(signature = (timeout = None))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        self.next(py, timeout)?.ok_or_else(|| PyTimeoutError::new_err("no message has come in time"))
    }

    /// The next message, if one waits.
    fn try_recv(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        let received = py.detach(|| self.inner()?.try_recv().map_err(of_receive))?;
        Ok(received.map(|message| Message::of(py, &message.event())))
    }

    /// Up to `max` messages that wait.
    fn drain(&self, py: Python<'_>, max: usize) -> PyResult<Vec<Message>> {
        let mut messages = Vec::new();
        py.detach(|| self.inner()?.drain(max, &mut messages).map_err(of_receive))?;
        Ok(messages.iter().map(|message| Message::of(py, &message.event())).collect())
    }

    /// The next message, if one waits; otherwise `wake` is called once one does, or at the end, from any thread.
    fn _poll(&self, py: Python<'_>, wake: Py<PyAny>) -> PyResult<Option<Message>> {
        let waker = Waker::from(Arc::new(Callable(wake)));
        let inner = self.inner()?;
        match py.detach(|| inner.poll_recv(&mut Context::from_waker(&waker))) {
            Poll::Ready(received) => Ok(Some(Message::of(py, &received.map_err(of_receive)?.event()))),
            Poll::Pending => Ok(None),
        }
    }

    /// Ends the subscription.
    fn unsubscribe(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// This subscription's numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.inner().map(|inner| inner.stats()))?;
        subscription_stats(py, &stats)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Message>> {
        ended_or(py, self.next(py, None))
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

/// Iteration ends where the bus does; that a subscription was cut off is an error there, too.
fn ended_or<R>(py: Python<'_>, received: PyResult<Option<R>>) -> PyResult<Option<R>> {
    match received {
        Err(error) if error.is_instance_of::<crate::error::ClosedError>(py) => Ok(None),
        other => other,
    }
}

/// A waker that calls.
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

/// A subscription that reads in batches.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Cursor {
    inner: Mutex<Option<mainstem_bus::Cursor<Payload>>>,
}

impl Cursor {
    pub(crate) const fn new(inner: mainstem_bus::Cursor<Payload>) -> Self {
        Self { inner: Mutex::new(Some(inner)) }
    }

    /// Runs `read` with the cursor, and makes messages of what it has read.
    fn read(
        &self,
        read: impl FnOnce(
            &mut mainstem_bus::Cursor<Payload>,
        ) -> Result<mainstem_bus::Batch<'_, Payload>, RecvError>,
    ) -> PyResult<Vec<Message>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = read(inner.as_mut().ok_or_else(unsubscribed)?).map_err(of_receive)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        Ok(Python::attach(|py| batch.iter().map(|event| Message::of(py, &event)).collect()))
    }
}

#[pymethods]
impl Cursor {
    /// Waits until there are messages, and returns some of them; none if `timeout` ends first.
    #[pyo3(signature = (max = 256, timeout = None))]
    fn next_batch(&self, py: Python<'_>, max: usize, timeout: Option<f64>) -> PyResult<Vec<Message>> {
        let read = wait(py, timeout, |nap| {
            let messages = self.read(|cursor| cursor.batch_timeout(max, nap))?;
            Ok(Some(messages).filter(|messages| !messages.is_empty()))
        })?;
        Ok(read.unwrap_or_default())
    }

    /// Some of the messages that wait; none if none does.
    #[pyo3(signature = (max = 256))]
    fn try_batch(&self, py: Python<'_>, max: usize) -> PyResult<Vec<Message>> {
        py.detach(|| self.read(|cursor| cursor.try_batch(max)))
    }

    /// Ends the subscription.
    fn unsubscribe(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// This subscription's numbers.
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
        ended_or(py, self.next_batch(py, 256, None).map(Some))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.unsubscribe(py);
    }
}
