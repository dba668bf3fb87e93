//! Python bindings of `mainstem-bus`: the same bus, for Python objects.
//!
//! There is no logic here. Each class wraps its Rust counterpart and converts arguments and results. Every call into
//! the bus that may block or run callbacks releases the interpreter lock first, so no thread waits for the interpreter
//! while it holds a lock of the bus.
//!
//! | file | contents |
//! |---|---|
//! | `bus.rs` | `Bus`, `Subscription` |
//! | `readers.rs` | `Mailbox`, `Cursor` |
//! | `message.rs` | `Message`, `Delivered`, and statistics as dictionaries |
//! | `error.rs` | exceptions |

mod bus;
mod error;
mod message;
mod readers;

use pyo3::prelude::*;

/// The payload type of a Python bus: any object.
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
