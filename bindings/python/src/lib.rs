//! Python bindings of `mainstem-bus`: the same bus, for Python objects.
//!
//! Nothing is decided here. Each class holds its counterpart and translates; the interpreter is let go of wherever the
//! bus may wait or run callbacks, so no lock of the bus is ever held by somebody who waits for the interpreter.
//!
//! | file | holds |
//! |---|---|
//! | `bus.rs` | `Bus`, `Subscription` |
//! | `readers.rs` | `Mailbox`, `Cursor` |
//! | `message.rs` | `Message`, `Delivered`, and statistics as dictionaries |
//! | `error.rs` | the exceptions |

mod bus;
mod error;
mod message;
mod readers;

use pyo3::prelude::*;

/// What travels on a bus: any object.
type Payload = Py<PyAny>;

/// The module `mainstem_bus._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<bus::Bus>()?;
    module.add_class::<bus::Subscription>()?;
    module.add_class::<readers::Mailbox>()?;
    module.add_class::<readers::Cursor>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<message::Delivered>()?;
    error::register(module)
}
