//! What a connection says about its client before any packet: listener, address and certificate.

use std::net::IpAddr;
use std::sync::Arc;

use mainstem_runtime::{ConnId, Io};
use mainstem_security::{CertificateOutcome, PeerCertificate};

use crate::access::Security;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer<'a> {
    listener: u16,
    address: Option<IpAddr>,
    certificate: Option<PeerCertificate<'a>>,
}

impl<'a> Peer<'a> {
    /// The peer of a connection that came by this listener. What a proxy says of its client counts where the connection
    /// itself has no certificate.
    pub(crate) fn of<M>(io: &'a Io<'_, M>, conn: ConnId, listener: u16) -> Self {
        let proxied = || io.proxied_client(conn)?.common_name.as_deref();
        let certificate = io.peer_certificate(conn).map(PeerCertificate::Der);
        let certificate = certificate.or_else(|| proxied().map(PeerCertificate::CommonName));
        Self { listener, address: io.peer_address(conn), certificate }
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// What the certificate decides, beside a password or a proof like one.
    pub(super) fn check_certificate(&self, security: &Security, has_password: bool) -> CertificateOutcome {
        security.check_certificate(self.listener, self.certificate, has_password, self.address)
    }

    /// Where the client is: the name of its listener, and its address.
    pub(super) fn place(&self, security: &Security) -> (Option<Arc<str>>, Option<IpAddr>) {
        (security.listener(self.listener).cloned(), self.address)
    }
}

#[cfg(test)]
impl Peer<'static> {
    /// A peer with this certificate, in DER.
    pub(super) fn with_certificate(der: &'static [u8]) -> Self {
        Self { certificate: Some(PeerCertificate::Der(der)), ..Self::default() }
    }
}
