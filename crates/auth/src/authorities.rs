//! The authorities that certificates of services must come from.

use std::path::Path;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The certificates of a PEM file; `None` for those that the system trusts.
///
/// # Errors
/// A message for the user: the file cannot be read, or has no certificates.
pub(crate) fn read_authorities(ca_file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(file) = ca_file else {
        return Ok(rustls_native_certs::load_native_certs().certs);
    };
    let explain = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| explain(&error))?;
    if certificates.is_empty() {
        return Err(explain(&"contains no certificate in PEM format"));
    }
    Ok(certificates)
}
