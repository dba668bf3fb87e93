//! The classes `Bus` and `Subscription`.
//!
//! The interpreter lock is released around every call into the bus, because publishing may block and runs callbacks,
//! and dropping a subscription may drop Python objects.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use mainstem_bus::{Cause, Fault};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;
use crate::error::{publish_error, subscribe_error, unsubscribed};
use crate::message::{Delivered, Message, bus_stats, parse_overflow, subscription_stats};
use crate::readers::{Cursor, Mailbox};

/// A publish/subscribe bus for Python objects.
///
/// `retained_max` is the maximum number of topics with a retained message. `cached_topics` is the capacity of each
/// match cache. `on_fault(filter, topic, exception)` is called when a callback raises; the default is
/// `sys.unraisablehook`.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Bus {
    inner: mainstem_bus::Bus<Payload>,
}

#[pymethods]
impl Bus {
    #[new]
    #[pyo3(signature = (*, retained_max = 65_536, cached_topics = 16_384, on_fault = None))]
    fn new(retained_max: usize, cached_topics: u32, on_fault: Option<Py<PyAny>>) -> Self {
        let builder = mainstem_bus::Bus::builder().retained_max(retained_max).cached_topics(cached_topics);
        let inner = builder.on_fault(move |fault| report(fault, on_fault.as_ref())).build();
        Self { inner }
    }

    /// Publishes an object to a topic and returns the number of deliveries.
    ///
    /// Runs matching callbacks on this thread. Blocks only while a subscription with overflow "block" is full.
    #[pyo3(signature = (topic, payload, *, headers = None, timestamp = None, retain = false))]
    fn publish(
        &self,
        py: Python<'_>,
        topic: &str,
        payload: Payload,
        headers: Option<Bound<'_, PyDict>>,
        timestamp: Option<f64>,
        retain: bool,
    ) -> PyResult<Delivered> {
        let mut draft = self.inner.message(topic, payload);
        for (key, value) in headers.iter().flat_map(PyDictMethods::iter) {
            draft = draft.header(key.extract::<String>()?, value.extract::<String>()?);
        }
        if let Some(seconds) = timestamp {
            let elapsed = Duration::try_from_secs_f64(seconds);
            let time = elapsed.ok().and_then(|elapsed| UNIX_EPOCH.checked_add(elapsed));
            draft =
                draft.timestamp(time.ok_or_else(|| {
                    PyValueError::new_err("timestamp must be a number of seconds since 1970")
                })?);
        }
        if retain {
            draft = draft.retain();
        }
        py.detach(|| draft.publish()).map(Delivered::from).map_err(publish_error)
    }

    /// Publishes several objects to one topic, in order.
    fn publish_batch(&self, py: Python<'_>, topic: &str, payloads: Bound<'_, PyAny>) -> PyResult<Delivered> {
        let payloads: Vec<Payload> =
            payloads.try_iter()?.map(|payload| payload.map(Bound::unbind)).collect::<PyResult<_>>()?;
        py.detach(|| self.inner.publish_batch(topic, payloads)).map(Delivered::from).map_err(publish_error)
    }

    /// Subscribes a callback, which runs on the publishing thread with each `Message`.
    ///
    /// With `replay`, it is first called with the matching retained messages, before this returns.
    #[pyo3(signature = (filter, callback, *, capacity = 1_024, metadata = false, replay = false))]
    fn subscribe(
        &self,
        py: Python<'_>,
        filter: &str,
        callback: Py<PyAny>,
        capacity: usize,
        metadata: bool,
        replay: bool,
    ) -> PyResult<Subscription> {
        let subscribe = self.prepare(filter, capacity, "drop_oldest", metadata, replay)?;
        let run = move |event: &mainstem_bus::Event<'_, Payload>| {
            Python::attach(|py| callback.call1(py, (Message::of(py, event),)).map(drop))
        };
        let subscription = py.detach(|| subscribe.callback(run)).map_err(subscribe_error)?;
        Ok(Subscription { inner: Mutex::new(Some(subscription)) })
    }

    /// Subscribes with a queue of `capacity` messages, read through the returned mailbox.
    ///
    /// `overflow` is "block", "drop_oldest", "drop_newest" or "disconnect".
    #[pyo3(signature = (filter, *, capacity = 1_024, overflow = "drop_oldest", metadata = false, replay = false))]
    fn mailbox(
        &self,
        py: Python<'_>,
        filter: &str,
        capacity: usize,
        overflow: &str,
        metadata: bool,
        replay: bool,
    ) -> PyResult<Mailbox> {
        let subscribe = self.prepare(filter, capacity, overflow, metadata, replay)?;
        py.detach(|| subscribe.mailbox()).map(Mailbox::new).map_err(subscribe_error)
    }

    /// Subscribes with a cursor, which reads batches from a ring shared with other cursors of the same filter.
    #[pyo3(signature = (filter, *, capacity = 1_024, overflow = "drop_oldest", metadata = false, replay = false))]
    fn cursor(
        &self,
        py: Python<'_>,
        filter: &str,
        capacity: usize,
        overflow: &str,
        metadata: bool,
        replay: bool,
    ) -> PyResult<Cursor> {
        let subscribe = self.prepare(filter, capacity, overflow, metadata, replay)?;
        py.detach(|| subscribe.cursor()).map(Cursor::new).map_err(subscribe_error)
    }

    /// Returns the retained message of a topic, or None.
    fn retained(&self, py: Python<'_>, topic: &str) -> Option<Message> {
        let message = py.detach(|| self.inner.retained(topic))?;
        Some(Message::of(py, &message.event()))
    }

    /// Removes the retained message of a topic. Returns whether there was one.
    fn clear_retained(&self, py: Python<'_>, topic: &str) -> bool {
        py.detach(|| self.inner.clear_retained(topic))
    }

    /// Closes the bus. Readers receive what is queued, and then ClosedError or the end of iteration.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }

    /// Closes the bus and waits up to `timeout` seconds until every mailbox and cursor has reached the end. Returns
    /// False on timeout.
    fn close_and_wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout)?;
        Ok(py.detach(|| self.inner.close_and_wait(timeout)))
    }

    /// Whether the bus is closed.
    #[getter]
    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Returns the statistics of the bus and of each subscription.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.inner.stats());
        bus_stats(py, &stats)
    }
}

impl Bus {
    fn prepare<'a>(
        &'a self,
        filter: &'a str,
        capacity: usize,
        overflow: &str,
        metadata: bool,
        replay: bool,
    ) -> PyResult<mainstem_bus::Subscribe<'a, Payload>> {
        let mut subscribe =
            self.inner.subscribe(filter).capacity(capacity).overflow(parse_overflow(overflow)?);
        if metadata {
            subscribe = subscribe.metadata();
        }
        if replay {
            subscribe = subscribe.replay();
        }
        Ok(subscribe)
    }
}

/// Converts a timeout in seconds.
pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err("timeout must be a non-negative number of seconds"))
}

/// Reports a fault to `on_fault(filter, topic, exception)`, or to `sys.unraisablehook` if there is none.
fn report(fault: &Fault<'_>, on_fault: Option<&Py<PyAny>>) {
    Python::attach(|py| {
        let error = match fault.cause {
            Cause::Error(error) => match error.downcast_ref::<PyErr>() {
                Some(raised) => raised.clone_ref(py),
                None => PyRuntimeError::new_err(error.to_string()),
            },
            Cause::Panic(message) => PyRuntimeError::new_err(message.to_owned()),
        };
        let Some(on_fault) = on_fault else {
            error.write_unraisable(py, None);
            return;
        };
        let value = error.into_value(py);
        if let Err(error) = on_fault.call1(py, (fault.filter, fault.topic, value)) {
            error.write_unraisable(py, Some(on_fault.bind(py)));
        }
    });
}

/// The subscription of a callback. It ends with `unsubscribe()`, with its `with` block, or with this object.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Subscription {
    inner: Mutex<Option<mainstem_bus::Subscription<Payload>>>,
}

#[pymethods]
impl Subscription {
    /// Ends the subscription.
    fn unsubscribe(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }

    /// Returns the statistics of this subscription.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_ref().map(mainstem_bus::Subscription::stats)
        });
        subscription_stats(py, &stats.ok_or_else(unsubscribed)?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) {
        self.unsubscribe(py);
    }
}
