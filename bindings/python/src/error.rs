//! Python exceptions, and the conversion of Rust errors.
//!
//! Invalid arguments become `ValueError`. All other errors are subclasses of `BusError`.

use mainstem_bus::{PublishError, RecvError, SubscribeError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(mainstem_bus, BusError, PyException, "Base class of the errors of a bus.");
create_exception!(
    mainstem_bus,
    ClosedError,
    BusError,
    "The bus is closed, or the subscription was ended with unsubscribe()."
);
create_exception!(
    mainstem_bus,
    DisconnectedError,
    BusError,
    "The subscription overflowed and was disconnected."
);
create_exception!(
    mainstem_bus,
    RetainedFullError,
    BusError,
    "The maximum number of topics with a retained message is reached."
);
create_exception!(mainstem_bus, NestedError, BusError, "Callbacks publish from callbacks too deeply.");

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BusError", py.get_type::<BusError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())?;
    module.add("DisconnectedError", py.get_type::<DisconnectedError>())?;
    module.add("RetainedFullError", py.get_type::<RetainedFullError>())?;
    module.add("NestedError", py.get_type::<NestedError>())
}

pub(crate) fn publish_error(error: PublishError) -> PyErr {
    let text = error.to_string();
    match error {
        PublishError::Topic(_) => PyValueError::new_err(text),
        PublishError::Closed => ClosedError::new_err(text),
        PublishError::RetainedFull => RetainedFullError::new_err(text),
        PublishError::Nested => NestedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

pub(crate) fn subscribe_error(error: SubscribeError) -> PyErr {
    let text = error.to_string();
    match error {
        SubscribeError::Filter(_) | SubscribeError::Capacity => PyValueError::new_err(text),
        SubscribeError::Closed => ClosedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

pub(crate) fn receive_error(error: RecvError) -> PyErr {
    let text = error.to_string();
    match error {
        RecvError::Closed => ClosedError::new_err(text),
        RecvError::Disconnected => DisconnectedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

/// The error for using a subscription after `unsubscribe()`.
pub(crate) fn unsubscribed() -> PyErr {
    ClosedError::new_err("the subscription was ended by unsubscribe()")
}
