//! Background opening of the next window of a file, by one thread for all files.
//!
//! Opening a window overwrites part of the file with zeros. Therefore a writer must first [take](NextWindow::take) the
//! pending request: this waits while the thread is opening it, and otherwise cancels it.

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::window::Window;

/// Maximum number of pending requests. Further requests are dropped, and those windows open on demand.
const REQUESTS_MAX: usize = 64;

/// The next window of a file.
#[derive(Debug, Default)]
pub(super) struct NextWindow {
    /// Start of the requested window, while a request is pending or done.
    from: Option<u64>,
    request: Arc<Mutex<Request>>,
    /// The thread ends when the last handle is dropped.
    opener: Option<Arc<Opener>>,
}

type Opener = SyncSender<Arc<Mutex<Request>>>;

#[derive(Debug, Default)]
enum Request {
    #[default]
    None,
    Pending(Arc<fs::File>, Range<u64>),
    Opened(io::Result<Window>),
}

impl NextWindow {
    /// Requests a window of these bytes of the file.
    pub(super) fn request(&mut self, file: &Arc<fs::File>, bytes: Range<u64>) {
        if self.opener.is_none() {
            self.opener = opener();
        }
        self.take();
        let Some(opener) = &self.opener else { return };
        self.from = Some(bytes.start);
        *lock(&self.request) = Request::Pending(Arc::clone(file), bytes);
        if opener.try_send(Arc::clone(&self.request)).is_err() {
            self.take();
        }
    }

    /// Whether a write that ends at position `end` may overlap the requested window.
    pub(super) fn overlaps(&self, end: u64) -> bool {
        self.from.is_some_and(|from| end > from)
    }

    /// Waits until the requested window is open.
    #[cfg(test)]
    pub(super) fn wait(&self) {
        while matches!(&*lock(&self.request), Request::Pending(..)) {
            thread::yield_now();
        }
    }

    /// Takes the requested window if it is open, and cancels the request otherwise.
    pub(super) fn take(&mut self) -> Option<io::Result<Window>> {
        self.from.take()?;
        match std::mem::take(&mut *lock(&self.request)) {
            Request::Opened(window) => Some(window),
            Request::None | Request::Pending(..) => None,
        }
    }
}

impl Drop for NextWindow {
    /// Cancels the request: another handle may write to the file afterwards.
    fn drop(&mut self) {
        self.take();
    }
}

fn lock(request: &Mutex<Request>) -> MutexGuard<'_, Request> {
    request.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the opener thread, starting it if necessary; `None` if it cannot be started.
fn opener() -> Option<Arc<Opener>> {
    static OPENER: Mutex<Weak<Opener>> = Mutex::new(Weak::new());
    let mut known = OPENER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opener) = known.upgrade() {
        return Some(opener);
    }
    let (sender, requests) = sync_channel(REQUESTS_MAX);
    let thread = thread::Builder::new().name("mainstem-windows".into()).spawn(move || open_all(&requests));
    if let Err(error) = thread {
        log::warn!("cannot start the thread that opens file windows: {error}; they open on demand");
        return None;
    }
    let opener = Arc::new(sender);
    *known = Arc::downgrade(&opener);
    Some(opener)
}

fn open_all(requests: &Receiver<Arc<Mutex<Request>>>) {
    for request in requests {
        let mut request = lock(&request);
        // A request that was canceled and renewed is in the channel twice.
        if let Request::Pending(file, bytes) = &*request {
            *request = Request::Opened(Window::open(file, bytes.clone()));
        }
    }
}
