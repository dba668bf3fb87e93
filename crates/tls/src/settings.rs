//! Settings of TLS on one listener.

use std::path::PathBuf;

/// Settings of TLS on one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Certificates, at least one. The first is used for clients that send no server name, or an unknown one.
    pub certificates: Vec<CertificateFiles>,
    /// Whether clients present certificates.
    pub client_certificates: ClientCertificates,
    /// PEM file with the authorities of client certificates. Required unless those are not requested.
    pub client_ca: Option<PathBuf>,
    /// PEM file with revocation lists for client certificates. With it, each certificate of a client's chain must be
    /// covered by a list that has not expired.
    pub client_crl: Option<PathBuf>,
    /// Lowest version that is accepted.
    pub min_version: MinVersion,
    /// Names of application protocols (ALPN), preferred first. A client that offers none of them is refused; one that
    /// does not use the extension is accepted. Empty for no ALPN.
    pub alpn: Vec<String>,
}

/// A certificate and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM file with the chain, the server's certificate first.
    pub certificate: PathBuf,
    /// PEM file with the private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Whether clients present certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// None is requested.
    #[default]
    Off,
    /// A client may have none. One that is presented must be valid.
    Optional,
    /// The handshake fails without a valid one.
    Required,
}

/// Lowest version that is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2, RFC 5246.
    #[default]
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}
