//! A connection's socket, and messages on their way through it.
//!
//! Messages that a client has taken are the client's when its answer is with the kernel. Until then they are [`Held`]:
//! by the request while it waits, by the answer's body, by the connection while the answer is in its buffer. Whatever of
//! that ends early drops them, and they are released.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use mainstem_queue::{GroupName, Receipt, Request, Settlement, Verdict};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::seam::Broker;

/// Messages of a client that may not have heard of them. Dropped, they are released.
pub(crate) struct Held {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) queue: Arc<str>,
    pub(crate) group: GroupName,
    pub(crate) receipts: Vec<Receipt>,
}

impl Held {
    /// The client has them.
    fn keep(mut self) {
        self.receipts.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        log::debug!(
            "http: {} messages of {} released, their client is gone",
            self.receipts.len(),
            self.queue
        );
        let release = |receipt| Settlement { receipt, verdict: Verdict::Release };
        let settlements = std::mem::take(&mut self.receipts).into_iter().map(release).collect();
        let request = Request::Settle { group: Arc::clone(&self.group), settlements };
        // What cannot be released comes back when its lease ends.
        self.broker.ask(&self.queue, request, Box::new(drop));
    }
}

/// What is held of the answers in a connection's buffer.
#[derive(Clone, Default)]
pub(crate) struct Buffered(Arc<Mutex<Vec<Held>>>);

impl Buffered {
    fn push(&self, held: Held) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(held);
    }

    /// The kernel has all that was in the buffer.
    fn flushed(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().for_each(Held::keep);
    }
}

/// An answer's body with messages.
pub(crate) struct Messages {
    bytes: Bytes,
    held: Option<Held>,
    buffered: Buffered,
}

impl Messages {
    pub(crate) fn new(bytes: Bytes, held: Held, buffered: Buffered) -> Self {
        Self { bytes, held: Some(held), buffered }
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // It is flushed no sooner than it is in the buffer, which follows at once.
        let Some(held) = self.held.take() else { return Poll::Ready(None) };
        self.buffered.push(held);
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// A connection's socket. It fails if its client takes nothing for long.
pub(crate) struct Socket {
    io: TokioIo<TcpStream>,
    buffered: Buffered,
    /// Longest time for which a client may take nothing.
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, buffered: Buffered, patience: Duration) -> Self {
        Self { io: TokioIo::new(stream), buffered, patience, stalled: None }
    }

    /// What became of a write.
    fn written(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.buffered.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.written(cx, written)
    }
}
