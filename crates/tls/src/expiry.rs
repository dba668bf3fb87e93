//! When the certificates of a listener end.

use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::parse_x509_certificate;

use crate::load::Files;
use crate::settings::Settings;

/// The end of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEnd {
    /// Its file.
    pub file: PathBuf,
    /// The Unix time, in seconds, at which the first certificate of the file ends: clients refuse a chain with any that
    /// has ended.
    pub not_after_s: i64,
}

/// The ends of all certificates, in the order of the settings. One whose times cannot be read is left out.
pub(crate) fn certificate_ends(settings: &Settings, files: &Files) -> Vec<CertificateEnd> {
    let chains = files.certificates(settings);
    let end = |(file, chain): (&PathBuf, &[u8])| {
        let not_after_s =
            CertificateDer::pem_slice_iter(chain).flatten().filter_map(|der| not_after_s(&der)).min()?;
        Some(CertificateEnd { file: file.clone(), not_after_s })
    };
    chains.filter_map(end).collect()
}

fn not_after_s(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}
