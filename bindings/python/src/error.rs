//! The exceptions, and which error becomes which.

use mainstem_bus::{PublishError, RecvError, SubscribeError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(mainstem_bus, BusError, PyException, "What a bus refuses.");
create_exception!(mainstem_bus, ClosedError, BusError, "The bus is closed, or the subscription ended here.");
create_exception!(mainstem_bus, DisconnectedError, BusError, "The subscription overflowed and was ended.");
create_exception!(mainstem_bus, RetainedFullError, BusError, "No more topics can have a retained message.");
create_exception!(mainstem_bus, NestedError, BusError, "Callbacks publish from callbacks too deeply.");

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("BusError", py.get_type::<BusError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())?;
    module.add("DisconnectedError", py.get_type::<DisconnectedError>())?;
    module.add("RetainedFullError", py.get_type::<RetainedFullError>())?;
    module.add("NestedError", py.get_type::<NestedError>())
}

pub(crate) fn of_publish(error: PublishError) -> PyErr {
    let text = error.to_string();
    match error {
        PublishError::Topic(_) => PyValueError::new_err(text),
        PublishError::Closed => ClosedError::new_err(text),
        PublishError::RetainedFull => RetainedFullError::new_err(text),
        PublishError::Nested => NestedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

pub(crate) fn of_subscribe(error: SubscribeError) -> PyErr {
    let text = error.to_string();
    match error {
        SubscribeError::Filter(_) | SubscribeError::Capacity => PyValueError::new_err(text),
        SubscribeError::Closed => ClosedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

pub(crate) fn of_receive(error: RecvError) -> PyErr {
    let text = error.to_string();
    match error {
        RecvError::Closed => ClosedError::new_err(text),
        RecvError::Disconnected => DisconnectedError::new_err(text),
        _ => BusError::new_err(text),
    }
}

/// The subscription was ended by its own holder.
pub(crate) fn unsubscribed() -> PyErr {
    ClosedError::new_err("the subscription has been ended by unsubscribe()")
}
