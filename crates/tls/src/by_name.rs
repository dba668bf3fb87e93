//! The choice of a certificate by the name that the client asks for (SNI, RFC 6066).

use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Certificates in order of preference. The first that is valid for the name and has a key that the client can verify
/// is chosen; without one, the first that the client can verify.
#[derive(Debug)]
pub(crate) struct CertificatesByName(pub(crate) Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let verifiable =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let named =
            name.and_then(|name| self.0.iter().filter(verifiable).find(|key| is_valid_for(key, &name)));
        named.or_else(|| self.0.iter().find(verifiable)).cloned()
    }
}

fn is_valid_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = key.end_entity_cert().and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
