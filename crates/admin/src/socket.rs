//! A connection's socket, and the leases of messages whose response is on its way to the client.
//!
//! A client owns its leased messages once the kernel has the whole response. Until then [`UnsentLeases`] owns them:
//! held by the request while it waits, then by the response body, then by the connection while the response is in its
//! write buffer. If any of these is dropped early, because the client disconnected or stopped reading, the leases are
//! released and other consumers get the messages.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use mainstem_queue_core::{Disposition, GroupName, Receipt, Request, Settlement};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::broker::Broker;
use crate::connections::Connection;
use crate::gate::RequestGate;
use crate::listeners::Stream;

/// Leases of messages that the client may not have received. Dropping this releases them.
pub(crate) struct UnsentLeases {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) queue: Arc<str>,
    pub(crate) group: GroupName,
    pub(crate) receipts: Vec<Receipt>,
}

impl UnsentLeases {
    /// The client has the messages: its leases stay.
    fn disarm(mut self) {
        self.receipts.clear();
    }
}

impl Drop for UnsentLeases {
    fn drop(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        log::debug!(
            "http: queue {}: released {} messages of a client that disconnected",
            self.queue,
            self.receipts.len()
        );
        let release = |receipt| Settlement { receipt, disposition: Disposition::Release };
        let settlements = std::mem::take(&mut self.receipts).into_iter().map(release).collect();
        let request = Request::Settle { group: Arc::clone(&self.group), settlements };
        // If the release fails, the messages return when their leases end.
        self.broker.submit(&self.queue, request, Box::new(drop));
    }
}

/// Leases of the responses in a connection's write buffer.
#[derive(Clone, Default)]
pub(crate) struct BufferedLeases(Arc<Mutex<Vec<UnsentLeases>>>);

impl BufferedLeases {
    fn push(&self, leases: UnsentLeases) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(leases);
    }

    /// The kernel has everything that was in the buffer.
    fn flushed(&self) {
        let all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().for_each(UnsentLeases::disarm);
    }
}

/// A response body with leased messages.
pub(crate) struct MessagesBody {
    bytes: Bytes,
    leases: Option<UnsentLeases>,
    buffered: BufferedLeases,
}

impl MessagesBody {
    pub(crate) fn new(bytes: Bytes, leases: UnsentLeases, buffered: BufferedLeases) -> Self {
        Self { bytes, leases: Some(leases), buffered }
    }
}

impl Body for MessagesBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // hyper copies the frame to its write buffer before it flushes, so `flushed` cannot come too early.
        let Some(leases) = self.leases.take() else { return Poll::Ready(None) };
        self.buffered.push(leases);
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.leases.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// Bytes to read at once.
const READ_BYTES_MAX: usize = 16 * 1024;
/// Bytes to discard behind the last response.
const DISCARDED_BYTES_MAX: usize = 256 * 1024;
/// Longest time to discard them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// What closing a connection does with unread input. It resets the connection, and the client may lose the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadInput {
    /// The client may lose the response.
    Reset,
    /// Input is read and discarded first, within bounds.
    Discard,
}

/// A connection's socket. Writes fail if the client reads nothing for `write_timeout`. What is read has passed the
/// gate for requests.
pub(crate) struct Socket {
    io: TokioIo<Stream>,
    connection: Connection,
    unread: UnreadInput,
    gate: RequestGate,
    /// Bytes that have passed the gate, of which the first `read` are read.
    passed: Vec<u8>,
    read: usize,
    discarded: usize,
    is_shut_down: bool,
    buffered: BufferedLeases,
    write_timeout: Duration,
    /// Runs while a write is blocked.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Socket {
    pub(crate) fn new(
        stream: Stream,
        gate: RequestGate,
        connection: Connection,
        buffered: BufferedLeases,
        write_timeout: Duration,
        unread: UnreadInput,
    ) -> Self {
        Self {
            io: TokioIo::new(stream),
            connection,
            unread,
            gate,
            passed: Vec::new(),
            read: 0,
            discarded: 0,
            is_shut_down: false,
            buffered,
            write_timeout,
            deadline: None,
        }
    }

    pub(crate) fn into_stream(self) -> Stream {
        self.io.into_inner()
    }

    /// Reads from the socket into the gate. Returns the number of bytes, which is 0 at the end of the input.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::uninit(); READ_BYTES_MAX];
        let mut input = ReadBuf::uninit(&mut space);
        ready!(Pin::new(self.io.inner_mut()).poll_read(cx, &mut input))?;
        if !input.filled().is_empty() {
            self.gate.feed(input.filled(), &mut self.passed);
            self.connection.received();
        }
        Poll::Ready(Ok(input.filled().len()))
    }

    /// Reads and discards input.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(DISCARD_TIMEOUT)));
        if deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        while self.discarded < DISCARDED_BYTES_MAX {
            self.passed.clear();
            match ready!(self.poll_input(cx)) {
                Ok(0) | Err(_) => break,
                Ok(len) => self.discarded += len,
            }
        }
        Poll::Ready(())
    }

    /// Starts or stops the deadline after an attempt to write, or to flush what TLS has encrypted.
    fn check_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.deadline = None;
            return result;
        }
        let timeout = self.write_timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        while self.read == self.passed.len() {
            self.read = 0;
            self.passed.clear();
            if self.gate.is_rejected() {
                // hyper closes the connection after the response. The end of the input would cancel a request before.
                return Poll::Pending;
            }
            if self.gate.is_broken() || ready!(self.poll_input(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let end = self.passed.len().min(self.read + into.remaining());
        into.put_slice(&self.passed[self.read..end]);
        self.read = end;
        if end == self.passed.len() {
            // An idle connection has no buffer.
            self.passed = Vec::new();
            self.read = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.check_deadline(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.check_deadline(cx, result))?;
        self.buffered.flushed();
        self.connection.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut_down {
            let result = Pin::new(&mut self.io).poll_shutdown(cx);
            ready!(self.check_deadline(cx, result))?;
            self.is_shut_down = true;
        }
        if self.unread == UnreadInput::Discard || self.gate.is_rejected() || self.gate.is_broken() {
            ready!(self.poll_discard(cx));
        }
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bytes);
        self.check_deadline(cx, result)
    }
}
