//! What the broker logs, for those who read a trace.

use std::cell::RefCell;

use log::{Level, LevelFilter, Log, Metadata, Record};

thread_local! {
    /// A run has one thread.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Ear;

impl Log for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Debug && HEARD.with_borrow(Option::is_some)
    }

    fn log(&self, record: &Record<'_>) {
        HEARD.with_borrow_mut(|heard| {
            if let Some(heard) = heard {
                heard.push(format!("  {}: {}", record.level(), record.args()));
            }
        });
    }

    fn flush(&self) {}
}

/// Begins to listen, unless the program logs elsewhere.
pub(crate) fn listen() {
    if log::set_logger(&Ear).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
    HEARD.set(Some(Vec::new()));
}

/// What was logged since this was last asked.
pub(crate) fn take() -> Vec<String> {
    HEARD.with_borrow_mut(|heard| heard.as_mut().map(std::mem::take).unwrap_or_default())
}

/// Listens no more.
pub(crate) fn stop() {
    HEARD.set(None);
}
