//! Reads PEM files, and builds the configuration of a listener of them.
//!
//! All files are read first, then the configuration is built of their contents. So one that is replaced while it is
//! read cannot mix with the others unnoticed: the next check finds contents that differ and builds again, and what does
//! not fit together, such as a key of another certificate, is an error that leaves the former configuration in use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SignatureAlgorithm, SupportedProtocolVersion};

use crate::by_name::CertificatesByName;
use crate::settings::{CertificateFiles, ClientCertificates, MinVersion, Settings};

/// Largest file that is read, bytes. Bundles of authorities have about 250 KiB, revocation lists a few MiB.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why TLS cannot be configured.
#[derive(Debug)]
pub struct LoadError {
    /// The file at fault, unless the settings are.
    pub file: Option<PathBuf>,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}: {}", file.display(), self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for LoadError {}

fn error_of(file: &Path) -> impl Fn(&dyn fmt::Display) -> LoadError {
    move |reason| LoadError { file: Some(file.to_owned()), reason: reason.to_string() }
}

fn error(reason: &dyn fmt::Display) -> LoadError {
    LoadError { file: None, reason: reason.to_string() }
}

/// The contents of all files of the settings, in order. They tell whether anything has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files(Vec<Vec<u8>>);

impl Files {
    /// Reads all files.
    ///
    /// # Errors
    /// A file is missing or too large.
    pub(crate) fn read(settings: &Settings) -> Result<Self, LoadError> {
        let certificates = settings.certificates.iter().flat_map(|files| [&files.certificate, &files.key]);
        let clients = settings.client_ca.iter().chain(&settings.client_crl);
        certificates.chain(clients).map(|file| read(file)).collect::<Result<_, _>>().map(Self)
    }

    /// The files with certificates of the listener, with their contents.
    pub(crate) fn certificates<'a>(
        &'a self,
        settings: &'a Settings,
    ) -> impl Iterator<Item = (&'a PathBuf, &'a [u8])> {
        // Each is followed by its key.
        let chains = self.0.chunks(2).map(|pair| pair[0].as_slice());
        settings.certificates.iter().map(|files| &files.certificate).zip(chains)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    let error = error_of(file);
    let bytes = std::fs::metadata(file).map_err(|failure| error(&failure))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(error(&format!("has {bytes} bytes, more than {FILE_BYTES_MAX}")));
    }
    std::fs::read(file).map_err(|failure| error(&failure))
}

/// A configuration, and the cost of a handshake, in units of the work budget.
pub(crate) struct ConfigAndCost {
    pub(crate) config: ServerConfig,
    pub(crate) handshake_units: u32,
}

/// Cost of a key exchange, a signature on an elliptic curve, and parsing, units.
const HANDSHAKE_UNITS: u32 = 1500;
/// Additional cost of a signature with RSA.
const RSA_UNITS: u32 = 6500;
/// Additional cost of verifying the certificate of a client.
const VERIFY_UNITS: u32 = 1500;

/// Cost of a handshake with the most expensive of these keys.
fn handshake_units(keys: &[Arc<CertifiedKey>], clients: ClientCertificates) -> u32 {
    let has_rsa = keys.iter().any(|key| key.key.algorithm() == SignatureAlgorithm::RSA);
    let verifies = clients != ClientCertificates::Off;
    HANDSHAKE_UNITS + if has_rsa { RSA_UNITS } else { 0 } + if verifies { VERIFY_UNITS } else { 0 }
}

/// Builds a configuration of the settings and the contents of their files.
///
/// # Errors
/// A file or a combination of settings is invalid.
pub(crate) fn server_config(settings: &Settings, files: &Files) -> Result<ConfigAndCost, LoadError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut contents = files.0.iter().map(Vec::as_slice);
    let mut keys = Vec::new();
    for names in &settings.certificates {
        let (Some(chain), Some(key)) = (contents.next(), contents.next()) else { break };
        keys.push(Arc::new(certified_key(names, chain, key, &provider)?));
    }
    if keys.is_empty() {
        return Err(error(&"no certificate is configured"));
    }
    let clients = client_verifier(settings, contents.next(), contents.next(), &provider)?;
    let versions: &[&SupportedProtocolVersion] = match settings.min_version {
        MinVersion::Tls12 => &[&TLS13, &TLS12],
        MinVersion::Tls13 => &[&TLS13],
    };
    let handshake_units = handshake_units(&keys, settings.client_certificates);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|failure| error(&failure))?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(CertificatesByName(keys)));
    config.alpn_protocols = settings.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Tickets hold the state of a session at its client, so that the broker holds none.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|failure| error(&failure))?;
    Ok(ConfigAndCost { config, handshake_units })
}

fn certified_key(
    files: &CertificateFiles,
    chain: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, LoadError> {
    let chain = parse::<CertificateDer<'static>>(&files.certificate, chain, "certificate")?;
    let error = error_of(&files.key);
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|failure| match failure {
        pem::Error::NoItemsFound => error(&"contains no private key in PEM format"),
        failure => error(&failure),
    })?;
    CertifiedKey::from_der(chain, key, provider).map_err(|failure| match failure {
        rustls::Error::InconsistentKeys(_) => {
            error(&format!("is not the key of {}", files.certificate.display()))
        }
        failure => error(&failure),
    })
}

/// Parses all items of one kind, at least one.
fn parse<T: PemObject>(file: &Path, contents: &[u8], what: &str) -> Result<Vec<T>, LoadError> {
    let error = error_of(file);
    let items = T::pem_slice_iter(contents).collect::<Result<Vec<_>, _>>();
    let items = items.map_err(|failure| error(&failure))?;
    if items.is_empty() {
        return Err(error(&format!("contains no {what} in PEM format")));
    }
    Ok(items)
}

fn client_verifier(
    settings: &Settings,
    authorities: Option<&[u8]>,
    revoked: Option<&[u8]>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, LoadError> {
    if settings.client_certificates == ClientCertificates::Off {
        return Ok(WebPkiClientVerifier::no_client_auth());
    }
    let (Some(file), Some(authorities)) = (&settings.client_ca, authorities) else {
        return Err(error(&"client certificates are requested, but client_ca is not set"));
    };
    let mut roots = RootCertStore::empty();
    for certificate in parse::<CertificateDer<'static>>(file, authorities, "certificate")? {
        roots.add(certificate).map_err(|failure| error_of(file)(&failure))?;
    }
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let (Some(file), Some(revoked)) = (&settings.client_crl, revoked) {
        let lists = parse::<CertificateRevocationListDer<'static>>(file, revoked, "revocation list")?;
        verifier = verifier.with_crls(lists).enforce_revocation_expiration();
    }
    if settings.client_certificates == ClientCertificates::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map_err(|failure| error(&failure))
}
