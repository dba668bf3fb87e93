//! Conversion of messages, delivery counts and statistics to Python objects.

use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_bus::{BusStats, Event, Kind, Overflow, SubscriptionStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;

/// A received message. `headers` and `timestamp` are set only for subscriptions with `metadata=True`.
#[pyclass(frozen, module = "mainstem_bus")]
pub(crate) struct Message {
    #[pyo3(get)]
    topic: String,
    #[pyo3(get)]
    payload: Payload,
    #[pyo3(get)]
    headers: Vec<(String, String)>,
    #[pyo3(get)]
    timestamp: Option<f64>,
    #[pyo3(get)]
    is_replay: bool,
}

impl Message {
    pub(crate) fn of(py: Python<'_>, event: &Event<'_, Payload>) -> Self {
        let unix_seconds = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
            Ok(elapsed) => elapsed.as_secs_f64(),
            Err(before) => -before.duration().as_secs_f64(),
        };
        Self {
            topic: event.topic().to_owned(),
            payload: event.payload().clone_ref(py),
            headers: event.headers().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            timestamp: event.timestamp().map(unix_seconds),
            is_replay: event.is_replay(),
        }
    }
}

#[pymethods]
impl Message {
    /// Returns the value of the first header named `key`, or None.
    fn header(&self, key: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.bind(py).repr()?;
        Ok(format!("Message(topic={:?}, payload={payload})", self.topic))
    }
}

/// The result of a publish: numbers of deliveries, drops and failed callbacks.
#[pyclass(frozen, eq, module = "mainstem_bus")]
#[derive(PartialEq)]
#[expect(clippy::struct_field_names, reason = "the names are public in Python and match the Rust crate")]
pub(crate) struct Delivered {
    #[pyo3(get)]
    delivered: usize,
    #[pyo3(get)]
    dropped: usize,
    #[pyo3(get)]
    failed: usize,
}

impl From<mainstem_bus::Delivered> for Delivered {
    fn from(result: mainstem_bus::Delivered) -> Self {
        Self { delivered: result.delivered, dropped: result.dropped, failed: result.failed }
    }
}

#[pymethods]
impl Delivered {
    fn __repr__(&self) -> String {
        let Self { delivered, dropped, failed } = self;
        format!("Delivered(delivered={delivered}, dropped={dropped}, failed={failed})")
    }
}

/// The names of the overflow policies in Python.
const OVERFLOW_NAMES: [(&str, Overflow); 4] = [
    ("block", Overflow::Block),
    ("drop_oldest", Overflow::DropOldest),
    ("drop_newest", Overflow::DropNewest),
    ("disconnect", Overflow::Disconnect),
];

pub(crate) fn parse_overflow(name: &str) -> PyResult<Overflow> {
    let entry = OVERFLOW_NAMES.iter().find(|(candidate, _)| *candidate == name);
    entry.map(|(_, overflow)| *overflow).ok_or_else(|| {
        let names = OVERFLOW_NAMES.map(|(name, _)| name).join(", ");
        pyo3::exceptions::PyValueError::new_err(format!(
            "unknown overflow policy {name:?}; use one of {names}"
        ))
    })
}

pub(crate) fn subscription_stats<'py>(
    py: Python<'py>,
    stats: &SubscriptionStats,
) -> PyResult<Bound<'py, PyDict>> {
    let overflow =
        OVERFLOW_NAMES.iter().find(|(_, overflow)| *overflow == stats.overflow).map(|(name, _)| name);
    let kind = match stats.kind {
        Kind::Callback => "callback",
        Kind::Mailbox => "mailbox",
        Kind::Cursor => "cursor",
    };
    let dict = PyDict::new(py);
    dict.set_item("id", stats.id)?;
    dict.set_item("filter", &stats.filter)?;
    dict.set_item("kind", kind)?;
    dict.set_item("capacity", stats.capacity)?;
    dict.set_item("overflow", overflow)?;
    dict.set_item("lag", stats.lag)?;
    dict.set_item("dropped", stats.dropped)?;
    dict.set_item("failed", stats.failed)?;
    dict.set_item("is_disconnected", stats.is_disconnected)?;
    Ok(dict)
}

pub(crate) fn bus_stats<'py>(py: Python<'py>, stats: &BusStats) -> PyResult<Bound<'py, PyDict>> {
    let subscriptions = stats.subscriptions.iter().map(|one| subscription_stats(py, one));
    let dict = PyDict::new(py);
    dict.set_item("published", stats.published)?;
    dict.set_item("filters", stats.filters)?;
    dict.set_item("retained", stats.retained)?;
    dict.set_item("in_flight", stats.in_flight)?;
    dict.set_item("dropped", stats.dropped)?;
    dict.set_item("abandoned", stats.abandoned)?;
    dict.set_item("failed", stats.failed)?;
    dict.set_item("subscriptions", subscriptions.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}
