//! The bus, and subscribed callbacks.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use mainstem_bus::{Cause, Fault};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;
use crate::error::{of_publish, of_subscribe, unsubscribed};
use crate::message::{Delivered, Message, bus_stats, policy, subscription_stats};
use crate::readers::{Cursor, Mailbox};

/// Topics, and those who subscribe to them.
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

    /// Publishes an object to a topic.
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
            let since = Duration::try_from_secs_f64(seconds);
            let time = since.ok().and_then(|since| UNIX_EPOCH.checked_add(since));
            draft = draft
                .timestamp(time.ok_or_else(|| PyValueError::new_err("a timestamp is seconds since 1970"))?);
        }
        if retain {
            draft = draft.retain();
        }
        py.detach(|| draft.publish()).map(Delivered::from).map_err(of_publish)
    }

    /// Publishes objects to one topic, in their order.
    fn publish_batch(&self, py: Python<'_>, topic: &str, payloads: Bound<'_, PyAny>) -> PyResult<Delivered> {
        let payloads: Vec<Payload> =
            payloads.try_iter()?.map(|payload| payload.map(Bound::unbind)).collect::<PyResult<_>>()?;
        py.detach(|| self.inner.publish_batch(topic, payloads)).map(Delivered::from).map_err(of_publish)
    }

    /// Has `callback` run with each message, by whoever publishes it.
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
        let subscription = py.detach(|| subscribe.callback(run)).map_err(of_subscribe)?;
        Ok(Subscription { inner: Mutex::new(Some(subscription)) })
    }

    /// Has messages put into a mailbox.
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
        py.detach(|| subscribe.mailbox()).map(Mailbox::new).map_err(of_subscribe)
    }

    /// Has messages put into a ring that cursors share.
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
        py.detach(|| subscribe.cursor()).map(Cursor::new).map_err(of_subscribe)
    }

    /// The retained message of a topic.
    fn retained(&self, py: Python<'_>, topic: &str) -> Option<Message> {
        let message = py.detach(|| self.inner.retained(topic))?;
        Some(Message::of(py, &message.event()))
    }

    /// Forgets the retained message of a topic, and says whether there was one.
    fn clear_retained(&self, py: Python<'_>, topic: &str) -> bool {
        py.detach(|| self.inner.clear_retained(topic))
    }

    /// Ends the bus: what waits is received, and then comes the end.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }

    /// Ends the bus, and waits until every mailbox and cursor has seen the end; says whether that is so.
    fn close_and_wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout)?;
        Ok(py.detach(|| self.inner.close_and_wait(timeout)))
    }

    /// Whether the bus is closed.
    #[getter]
    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// All numbers there are.
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
        let mut subscribe = self.inner.subscribe(filter).capacity(capacity).overflow(policy(overflow)?);
        if metadata {
            subscribe = subscribe.metadata();
        }
        if replay {
            subscribe = subscribe.replay();
        }
        Ok(subscribe)
    }
}

/// A wait in seconds.
pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err("a timeout is a number of seconds"))
}

/// Tells `on_fault(filter, topic, exception)`, or Python's hook for exceptions that nobody can catch.
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

/// A subscribed callback.
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

    /// This subscription's numbers.
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
