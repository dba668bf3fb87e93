//! Certificates in a temporary folder, and clients of rustls that talk to a layer in memory.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mainstem_runtime::{StreamState, TransportLayer};
use mainstem_tls::{CertificateFiles, Settings};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

/// A folder that is removed at the end of its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mainstem-tls-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for these names and its key, in PEM.
    pub(crate) fn issue(&self, names: &[&str], serial: u64) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Writes a certificate and its key to a folder.
    pub(crate) fn issue_to(&self, folder: &Folder, file: &str, names: &[&str]) -> CertificateFiles {
        let (certificate, key) = self.issue(names, 1);
        CertificateFiles {
            certificate: folder.write(&format!("{file}.crt"), &certificate),
            key: folder.write(&format!("{file}.key"), &key),
        }
    }
}

/// Settings with one certificate for `localhost`.
pub(crate) fn settings(folder: &Folder, authority: &Authority) -> Settings {
    Settings {
        certificates: vec![authority.issue_to(folder, "server", &["localhost"])],
        ..Settings::default()
    }
}

/// A client certificate and its key, in PEM.
pub(crate) type Identity<'a> = Option<(&'a str, &'a str)>;

/// Versions, identity and ALPN names of clients that trust `authority`. Clients that share it resume sessions.
pub(crate) fn client_config(
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    identity: Identity<'_>,
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A client that connects to `name`.
pub(crate) fn client(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

/// A client and the layer of its connection.
pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) layer: Box<dyn TransportLayer>,
    /// What the service has received.
    pub(crate) input: Vec<u8>,
    /// Bytes on the way to the client.
    pub(crate) to_client: Vec<u8>,
    pub(crate) state: StreamState,
    /// Most bytes given to the layer at once.
    pub(crate) step: usize,
}

impl Pair {
    pub(crate) fn new(client: ClientConnection, layer: Box<dyn TransportLayer>) -> Self {
        Self {
            client,
            layer,
            input: Vec::new(),
            to_client: Vec::new(),
            state: StreamState::Open,
            step: usize::MAX,
        }
    }

    /// Exchanges bytes until both sides wait.
    ///
    /// # Errors
    /// What the client or the layer complains about.
    pub(crate) fn exchange(&mut self) -> Result<(), String> {
        loop {
            let mut sent = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut sent).unwrap();
            }
            for part in sent.chunks(self.step) {
                let received = self.layer.receive(part, &mut self.input, &mut self.to_client);
                self.state = match received {
                    Ok(state) => state,
                    Err(error) => {
                        let from_layer = std::mem::take(&mut self.to_client);
                        let alert = feed(&mut self.client, &from_layer);
                        return Err(format!("{error}; client: {}", alert.err().unwrap_or_default()));
                    }
                };
            }
            let from_layer = std::mem::take(&mut self.to_client);
            feed(&mut self.client, &from_layer)?;
            if sent.is_empty() && from_layer.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends from client to service.
    pub(crate) fn client_writes(&mut self, bytes: &[u8]) -> Result<(), String> {
        for part in bytes.chunks(16 * 1024) {
            self.client.writer().write_all(part).unwrap();
            self.exchange()?;
        }
        Ok(())
    }

    /// Sends from service to client, and returns what the client has received.
    pub(crate) fn service_writes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut sent = 0;
        let mut read = Vec::new();
        while sent < bytes.len() {
            let end = bytes.len().min(sent + 16 * 1024);
            let count = self.layer.send(&bytes[sent..end], &mut self.to_client);
            assert_ne!(count, 0, "the handshake is complete");
            sent += count;
            self.exchange().unwrap();
            let mut part = vec![0; 64 * 1024];
            while let Ok(count @ 1..) = self.client.reader().read(&mut part) {
                read.extend_from_slice(&part[..count]);
            }
        }
        read
    }

    /// The server's certificate as the client has received it.
    pub(crate) fn server_certificate(&self) -> Vec<u8> {
        self.client.peer_certificates().unwrap()[0].to_vec()
    }
}

fn feed(client: &mut ClientConnection, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).map_err(|error| error.to_string())?;
        client.process_new_packets().map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The certificate in a PEM file.
pub(crate) fn der(path: &Path) -> Vec<u8> {
    CertificateDer::from_pem_file(path).unwrap().to_vec()
}
