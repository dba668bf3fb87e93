//! Captures what the broker logs, as lines of the trace. Each run has one thread.

use std::cell::RefCell;

use log::{Level, LevelFilter, Log, Metadata, Record};

thread_local! {
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct LogCapture;

impl Log for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Debug && CAPTURED.with_borrow(Option::is_some)
    }

    fn log(&self, record: &Record<'_>) {
        CAPTURED.with_borrow_mut(|captured| {
            if let Some(captured) = captured {
                captured.push(format!("  {}: {}", record.level(), record.args()));
            }
        });
    }

    fn flush(&self) {}
}

/// Begins to capture, unless the program has another logger.
pub(super) fn start() {
    if log::set_logger(&LogCapture).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    CAPTURED.set(Some(Vec::new()));
}

/// Takes the lines logged since the last call.
pub(super) fn take() -> Vec<String> {
    CAPTURED.with_borrow_mut(|captured| captured.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Stops capturing.
pub(super) fn stop() {
    CAPTURED.set(None);
}
