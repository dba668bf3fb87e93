//! The addresses that the server listens on, and the streams of their connections: plain, or with TLS.
//!
//! All listeners share the limits of connections. The TLS handshake belongs to the task of its connection, which has a
//! place among the idle ones and their deadline before the handshake begins: it never keeps other clients out.

use std::fmt;
use std::io;
use std::net::{self, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::access::Peer;

/// Returns the TLS configuration for the next connection.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A bound listener that is not served yet.
pub struct Bound {
    name: String,
    listener: net::TcpListener,
    tls: Option<TlsSource>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound")
            .field("name", &self.name)
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl Bound {
    /// Binds `address`. Connections use TLS if there is a configuration of it.
    ///
    /// # Errors
    /// If the operating system cannot bind it.
    pub fn bind(name: &str, address: SocketAddr, tls: Option<TlsSource>) -> io::Result<Self> {
        let listener = net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self { name: name.to_owned(), listener, tls })
    }

    /// Returns the listener's name and its bound address.
    ///
    /// # Errors
    /// If the operating system cannot tell the address.
    pub fn name_and_address(&self) -> io::Result<(String, SocketAddr)> {
        Ok((self.name.clone(), self.listener.local_addr()?))
    }
}

/// The listeners of a running server.
pub(crate) struct Listeners {
    all: Vec<(Arc<str>, TcpListener, Option<TlsSource>)>,
    /// The one that is asked first, so that none starves.
    next: usize,
}

impl Listeners {
    /// Registers the listeners with the runtime, in which this must be called.
    pub(crate) fn new(bound: Vec<Bound>) -> io::Result<Self> {
        let register =
            |bound: Bound| Ok((bound.name.into(), TcpListener::from_std(bound.listener)?, bound.tls));
        Ok(Self { all: bound.into_iter().map(register).collect::<io::Result<_>>()?, next: 0 })
    }

    /// Waits for a connection.
    pub(crate) async fn accept(&mut self) -> io::Result<(Incoming, SocketAddr)> {
        std::future::poll_fn(|cx| self.poll_accept(cx)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Incoming, SocketAddr)>> {
        for _ in 0..self.all.len() {
            let (name, listener, tls) = &self.all[self.next];
            self.next = (self.next + 1) % self.all.len();
            if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                let incoming = |(stream, peer)| {
                    let (listener, tls) = (Arc::clone(name), tls.as_ref().map(|tls| tls()));
                    (Incoming { stream, listener, tls }, peer)
                };
                return Poll::Ready(accepted.map(incoming));
            }
        }
        Poll::Pending
    }
}

/// An accepted connection, before the TLS handshake.
pub(crate) struct Incoming {
    stream: TcpStream,
    listener: Arc<str>,
    tls: Option<Arc<ServerConfig>>,
}

impl Incoming {
    /// Where the connection comes from.
    pub(crate) fn peer(&self) -> Peer {
        let address = self.stream.peer_addr().ok().map(|peer| peer.ip());
        Peer { address, listener: Arc::clone(&self.listener), certificate: None }
    }

    /// Performs the TLS handshake, if the listener uses TLS.
    pub(crate) async fn handshake(self) -> io::Result<Stream> {
        // Each response is written at once, so Nagle's algorithm only delays it.
        self.stream.set_nodelay(true)?;
        match self.tls {
            None => Ok(Stream::Plain(self.stream)),
            Some(config) => {
                let stream = TlsAcceptor::from(config).accept(self.stream).await?;
                Ok(Stream::Tls(Box::new(stream)))
            }
        }
    }
}

/// The stream of a connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The certificate that the client has presented, in DER. TLS has verified it.
    pub(crate) fn certificate(&self) -> Option<Arc<[u8]>> {
        let Self::Tls(stream) = self else { return None };
        let certificates = stream.get_ref().1.peer_certificates()?;
        certificates.first().map(|certificate| certificate.as_ref().into())
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
