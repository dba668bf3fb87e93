//! Windows that are opened before they are needed, by a thread that all files share.
//!
//! Opening one overwrites a part of the file with zeros. So nobody writes there who has not [taken](Ahead::take) what
//! was ordered: whoever does waits while that thread is at it, and nothing is opened afterwards.

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::window::Window;

/// Most windows that wait to be opened. Whoever orders one more has none ahead.
const ORDERS_MAX: usize = 64;

/// The window of a file that is opened next.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Where it begins, while one is ordered.
    from: Option<u64>,
    order: Arc<Mutex<Order>>,
    /// The thread ends when nobody has this any more.
    opener: Option<Arc<Opener>>,
}

type Opener = SyncSender<Arc<Mutex<Order>>>;

#[derive(Debug, Default)]
enum Order {
    #[default]
    None,
    Wanted(Arc<fs::File>, Range<u64>),
    Opened(io::Result<Window>),
}

impl Ahead {
    /// Has a window opened that shows these bytes of the file.
    pub(super) fn order(&mut self, file: &Arc<fs::File>, bytes: Range<u64>) {
        if self.opener.is_none() {
            self.opener = opener();
        }
        self.take();
        let Some(opener) = &self.opener else { return };
        self.from = Some(bytes.start);
        *lock(&self.order) = Order::Wanted(Arc::clone(file), bytes);
        if opener.try_send(Arc::clone(&self.order)).is_err() {
            self.take();
        }
    }

    /// Whether what ends at byte offset `end` may reach into what is ordered.
    pub(super) fn concerns(&self, end: u64) -> bool {
        self.from.is_some_and(|from| end > from)
    }

    /// Waits until what was ordered is opened.
    #[cfg(test)]
    pub(super) fn wait(&self) {
        while matches!(&*lock(&self.order), Order::Wanted(..)) {
            thread::yield_now();
        }
    }

    /// What was ordered, if it has been opened.
    pub(super) fn take(&mut self) -> Option<io::Result<Window>> {
        self.from.take()?;
        match std::mem::take(&mut *lock(&self.order)) {
            Order::Opened(window) => Some(window),
            Order::None | Order::Wanted(..) => None,
        }
    }
}

impl Drop for Ahead {
    /// Somebody else may open the file and write there.
    fn drop(&mut self) {
        self.take();
    }
}

fn lock(order: &Mutex<Order>) -> MutexGuard<'_, Order> {
    order.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that opens windows, which is started if there is none. Nothing if it cannot be.
fn opener() -> Option<Arc<Opener>> {
    static OPENER: Mutex<Weak<Opener>> = Mutex::new(Weak::new());
    let mut known = OPENER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opener) = known.upgrade() {
        return Some(opener);
    }
    let (sender, orders) = sync_channel(ORDERS_MAX);
    let thread = thread::Builder::new().name("mainstem-windows".into()).spawn(move || open_all(&orders));
    if let Err(error) = thread {
        log::warn!("windows of files are opened when they are needed: {error}");
        return None;
    }
    let opener = Arc::new(sender);
    *known = Arc::downgrade(&opener);
    Some(opener)
}

fn open_all(orders: &Receiver<Arc<Mutex<Order>>>) {
    for order in orders {
        let mut order = lock(&order);
        // One that was taken, and then ordered anew, comes twice.
        if let Order::Wanted(file, bytes) = &*order {
            *order = Order::Opened(Window::open(file, bytes.clone()));
        }
    }
}
