//! TLS of the tools' connections: trust, the client's certificate, and the stream above a socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::failure::{Failure, io_message};
use crate::cli::TlsArgs;

/// The client's side of TLS.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the files that the flags name. `alpn` is the application protocol to offer, if there is one.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub(super) fn load(args: &TlsArgs, alpn: Option<&str>) -> Result<Self, Failure> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let unusable = |error: rustls::Error| Failure::new(format!("TLS: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = if args.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider)))
        } else {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(authorities(args)?);
            builder.with_root_certificates(roots)
        };
        let mut config = match &args.cert {
            None if args.key.is_some() => return Err(Failure::new("--tls-key requires --cert")),
            None => builder.with_no_client_auth(),
            Some(cert) => {
                let chain = certificates("--cert", cert)?;
                let file = args.key.as_ref().unwrap_or(cert);
                let key = PrivateKeyDer::from_pem_file(file);
                let key =
                    key.map_err(|error| Failure::new(format!("--tls-key {}: {error}", file.display())))?;
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Self(Arc::new(config)))
    }

    /// A configuration with which every handshake is a whole one: a load stands for clients that share nothing.
    pub(super) fn without_tickets(&self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::clone(&self.0);
        config.resumption = Resumption::disabled();
        Arc::new(config)
    }

    /// Performs the handshake on a socket, which blocks afterwards. `host` is the name that the certificate must have.
    ///
    /// # Errors
    /// The handshake fails, or is not complete at `deadline`.
    pub(super) fn connect(&self, mut socket: TcpStream, host: &str, deadline: Instant) -> io::Result<Stream> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut connection = ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)?;
        socket.set_nonblocking(false)?;
        while connection.is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            socket.set_read_timeout(Some(left))?;
            socket.set_write_timeout(Some(left))?;
            connection.complete_io(&mut socket).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
                _ => error,
            })?;
        }
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, socket))))
    }
}

/// The configuration of HTTP requests, with the same trust and certificate.
///
/// # Errors
/// A file cannot be read or used.
pub(super) fn http_config(args: &TlsArgs) -> Result<TlsConfig, Failure> {
    // Checks the files, with errors that name them.
    Tls::load(args, None)?;
    let read = |file: &Path| std::fs::read(file).map_err(|error| Failure::new(io_message(&error)));
    let mut client = None;
    if let Some(cert) = &args.cert {
        let chain: Vec<_> = certificates("--cert", cert)?.iter().map(owned_certificate).collect();
        let key = PrivateKey::from_pem(&read(args.key.as_ref().unwrap_or(cert))?);
        client =
            Some(ClientCert::new_with_certs(&chain, key.map_err(|error| Failure::new(error.to_string()))?));
    }
    let roots: Vec<_> =
        if args.insecure { Vec::new() } else { authorities(args)? }.iter().map(owned_certificate).collect();
    let config = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(client)
        .disable_verification(args.insecure)
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()));
    Ok(config.build())
}

fn owned_certificate(der: &CertificateDer<'static>) -> Certificate<'static> {
    Certificate::from_der(der).to_owned()
}

/// The authorities to trust.
fn authorities(args: &TlsArgs) -> Result<Vec<CertificateDer<'static>>, Failure> {
    if let Some(file) = &args.cafile {
        return certificates("--cafile", file);
    }
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let reason = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
        return Err(Failure::new(format!(
            "the system trusts no authorities{reason}; name one with --cafile"
        )));
    }
    Ok(found.certs)
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let failed = |what: &dyn fmt::Display| Failure::new(format!("{flag} {}: {what}", file.display()));
    let items = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match items {
        Ok(items) if items.is_empty() => Err(failed(&"contains no certificate in PEM format")),
        Ok(items) => Ok(items),
        Err(error) => Err(failed(&error)),
    }
}

/// A socket, or TLS above it.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket().fmt(f)
    }
}

impl Stream {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// Whether a read may leave input behind although the socket has none: TLS decrypts more than is asked for.
    pub(super) fn buffers_input(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Ends the output.
    pub(super) fn end_output(&mut self) {
        if let Self::Tls(stream) = self {
            stream.conn.send_close_notify();
        }
        // The broker may have closed already.
        self.flush().ok();
        self.socket().shutdown(Shutdown::Write).ok();
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Accepts every certificate whose key the broker has.
#[derive(Debug)]
struct AcceptAny(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
