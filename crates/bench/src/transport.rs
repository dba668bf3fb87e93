//! The stream of a connection: plain TCP, or TLS above it.
//!
//! TLS never blocks: [`Stream::write`] takes plaintext, and what did not fit into the socket waits for
//! [`Stream::flush`]. Before the handshake is over, rustls keeps the plaintext.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::error::BenchError;

/// A stream that does not block.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls { tcp: TcpStream, session: Box<ClientConnection> },
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tcp().fmt(f)
    }
}

impl Stream {
    /// The stream of a connection to `host`, with TLS if there is a configuration for it.
    ///
    /// # Errors
    /// If no certificate can be checked against `host`, or the configuration contradicts itself.
    pub(crate) fn new(
        tcp: TcpStream,
        tls: Option<&Arc<ClientConfig>>,
        host: &str,
    ) -> Result<Self, BenchError> {
        let Some(config) = tls else { return Ok(Self::Plain(tcp)) };
        let unusable = |error: &dyn fmt::Display| BenchError::Options(format!("TLS to {host}: {error}"));
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unusable(&error))?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(|error| unusable(&error))?;
        Ok(Self::Tls { tcp, session: Box::new(session) })
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) | Self::Tls { tcp, .. } => tcp,
        }
    }

    /// The socket, for its registration.
    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(tcp) | Self::Tls { tcp, .. } => tcp,
        }
    }

    /// Whether a read of fewer bytes than there was room for has emptied the socket (epoll(7)). A TLS record does not
    /// fill the room.
    #[inline]
    pub(crate) fn is_emptied_by_short_reads(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether there is output of TLS itself, such as the end of the handshake.
    #[inline]
    pub(crate) fn wants_flush(&self) -> bool {
        matches!(self, Self::Tls { session, .. } if session.wants_write())
    }

    /// Ends both directions.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(crate) fn shutdown(&self) -> io::Result<()> {
        self.tcp().shutdown(Shutdown::Both)
    }
}

impl Read for Stream {
    /// Reads plaintext; 0 bytes are the end.
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (tcp, session) = match self {
            Self::Plain(tcp) => return tcp.read(buffer),
            Self::Tls { tcp, session } => (tcp, session),
        };
        loop {
            match session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if session.read_tls(tcp)? == 0 {
                return Ok(0);
            }
            session.process_new_packets().map_err(|error| io::Error::other(format!("with TLS: {error}")))?;
        }
    }
}

impl Write for Stream {
    /// Takes some plaintext. With TLS, what was taken may not be in the socket yet.
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Tls { .. } => {
                self.flush()?;
                let Self::Tls { session, .. } = self else { unreachable!("the stream is the same") };
                match session.writer().write(bytes)? {
                    // The handshake is not over, and what may wait for it is full.
                    0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
                    taken => Ok(taken),
                }
            }
        }
    }

    /// Writes the records that TLS has made.
    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        if let Self::Tls { tcp, session } = self {
            while session.wants_write() {
                session.write_tls(tcp)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_no_name_is_refused() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("the provider has the usual versions");
        let config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
        let tls = Arc::new(config);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stream = |host| Stream::new(TcpStream::connect(address).expect("it listens"), Some(&tls), host);
        assert!(stream("localhost").is_ok());
        assert!(stream("127.0.0.1").is_ok());
        let error = stream("no name").expect_err("a space").to_string();
        assert!(error.contains("no name"), "{error}");
    }
}
