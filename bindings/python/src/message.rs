//! What Python sees of a message, of a delivery, and of the numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_bus::{BusStats, Event, Kind, Overflow, SubscriptionStats};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::Payload;

/// A message as its subscriber sees it.
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
        let since = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_secs_f64(),
            Err(before) => -before.duration().as_secs_f64(),
        };
        Self {
            topic: event.topic().to_owned(),
            payload: event.payload().clone_ref(py),
            headers: event.headers().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            timestamp: event.timestamp().map(since),
            is_replay: event.is_replay(),
        }
    }
}

#[pymethods]
impl Message {
    /// The value of the first header called `key`.
    fn header(&self, key: &str) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.bind(py).repr()?;
        Ok(format!("Message(topic={:?}, payload={payload})", self.topic))
    }
}

/// Where a published message went.
#[pyclass(frozen, eq, module = "mainstem_bus")]
#[derive(PartialEq)]
#[expect(clippy::struct_field_names, reason = "Python sees them, and they are those of the Rust crate")]
pub(crate) struct Delivered {
    #[pyo3(get)]
    delivered: usize,
    #[pyo3(get)]
    dropped: usize,
    #[pyo3(get)]
    failed: usize,
}

impl From<mainstem_bus::Delivered> for Delivered {
    fn from(told: mainstem_bus::Delivered) -> Self {
        Self { delivered: told.delivered, dropped: told.dropped, failed: told.failed }
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
const POLICIES: [(&str, Overflow); 4] = [
    ("block", Overflow::Block),
    ("drop_oldest", Overflow::DropOldest),
    ("drop_newest", Overflow::DropNewest),
    ("disconnect", Overflow::Disconnect),
];

pub(crate) fn policy(name: &str) -> PyResult<Overflow> {
    let known = POLICIES.iter().find(|(known, _)| *known == name);
    known.map(|(_, overflow)| *overflow).ok_or_else(|| {
        let names = POLICIES.map(|(name, _)| name).join(", ");
        pyo3::exceptions::PyValueError::new_err(format!(
            "no overflow policy is called {name:?}; there are {names}"
        ))
    })
}

pub(crate) fn subscription_stats<'py>(
    py: Python<'py>,
    stats: &SubscriptionStats,
) -> PyResult<Bound<'py, PyDict>> {
    let overflow = POLICIES.iter().find(|(_, overflow)| *overflow == stats.overflow).map(|(name, _)| name);
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
