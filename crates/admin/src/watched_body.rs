//! Whether the body of a request was read to its end.
//!
//! A request may be refused by its head. If its body has not arrived by the time of the response, the server cannot
//! wait for the next request, and closes the connection. The response has to say so.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use http_body::{Frame, SizeHint};

/// Tells whether a body was read.
pub(crate) struct BodyWatch {
    /// `None` if there is no body.
    is_read: Option<Arc<AtomicBool>>,
}

struct WatchedBody {
    body: Body,
    is_read: Arc<AtomicBool>,
}

/// Watches the body of a request, if it has one.
pub(crate) fn watch_body(request: Request) -> (Request, BodyWatch) {
    if request.body().is_end_stream() {
        return (request, BodyWatch { is_read: None });
    }
    let is_read = Arc::new(AtomicBool::new(false));
    let watch = BodyWatch { is_read: Some(Arc::clone(&is_read)) };
    (request.map(|body| Body::new(WatchedBody { body, is_read })), watch)
}

impl BodyWatch {
    /// Whether it was read to its end, or there is none.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read.as_ref().is_none_or(|is_read| is_read.load(Ordering::Relaxed))
    }
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
