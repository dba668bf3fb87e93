//! `mainstem cert`: an authority and certificates that it signs, for teams without an authority of their own.
//!
//! Existing files are not replaced unless the user says so, and the authority never, because every client trusts it.
//! Keys are readable by their owner only.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use super::failure::Failure;
use super::table::print;
use crate::cli::CertArgs;

/// Validity of the authority, days.
const AUTHORITY_DAYS: u32 = 3_650;
/// Longest common name, characters (RFC 5280, appendix A.1).
const COMMON_NAME_MAX: usize = 64;
/// Certificates are valid from an hour ago on, for peers whose clocks are behind.
const CLOCK_SKEW_S: u64 = 3_600;
const DAY_S: u64 = 86_400;
/// Names of files that are not a client's.
const RESERVED: [&str; 2] = ["ca", "server"];

/// Runs the subcommand.
///
/// # Errors
/// A name is invalid, or a file exists or cannot be written.
pub(super) fn run(args: &CertArgs) -> Result<(), Failure> {
    for client in &args.clients {
        check_client(client)?;
    }
    std::fs::create_dir_all(&args.directory).map_err(|error| failure(&args.directory, &error))?;
    let files = Files { directory: &args.directory, replaces: args.force };
    let authority = authority(&files)?;
    if let Some(first) = args.hosts.first() {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        issue(
            &files,
            &authority,
            "server",
            &Subject { name: first, hosts: &args.hosts, usage, days: args.days },
        )?;
    }
    for client in &args.clients {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        issue(&files, &authority, client, &Subject { name: client, hosts: &[], usage, days: args.days })?;
    }
    Ok(())
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

/// A client's name becomes a file name and a common name.
fn check_client(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    if name.is_empty() || name.starts_with('.') || name.len() > COMMON_NAME_MAX || !name.chars().all(is_plain)
    {
        let expected =
            format!("1 to {COMMON_NAME_MAX} letters, digits, '.', '_', '-' or '@', and no '.' first");
        return Err(Failure::new(format!("--client {name:?}: expected {expected}")));
    }
    if RESERVED.contains(&name) {
        return Err(Failure::new(format!("--client {name:?}: that name is reserved")));
    }
    Ok(())
}

/// The directory of the certificates.
struct Files<'a> {
    directory: &'a Path,
    replaces: bool,
}

impl Files<'_> {
    fn path(&self, name: &str, extension: &str) -> PathBuf {
        self.directory.join(format!("{name}.{extension}"))
    }

    fn check(&self, name: &str) -> Result<(), Failure> {
        let existing =
            ["crt", "key"].map(|extension| self.path(name, extension)).into_iter().find(|path| path.exists());
        match existing.filter(|_| !self.replaces) {
            Some(path) => Err(Failure::new(format!("{} exists; --force replaces it", path.display()))),
            None => Ok(()),
        }
    }

    fn write(&self, name: &str, certificate: &str, key: &KeyPair) -> Result<(), Failure> {
        for (extension, contents, mode) in
            [("key", key.serialize_pem().as_str(), 0o600), ("crt", certificate, 0o644)]
        {
            let path = self.path(name, extension);
            let temporary = self.path(name, &format!("{extension}.new"));
            let written = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(mode)
                .open(&temporary)
                .and_then(|mut file| file.write_all(contents.as_bytes()).and_then(|()| file.sync_all()))
                .and_then(|()| std::fs::rename(&temporary, &path));
            written.map_err(|error| failure(&path, &error))?;
        }
        print(&format!("{}\n", self.path(name, "crt").display()))
    }
}

/// The authority in the directory. It is made if there is none.
fn authority(files: &Files<'_>) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (certificate, key) = (files.path("ca", "crt"), files.path("ca", "key"));
    if !certificate.exists() && !key.exists() {
        return make_authority(files);
    }
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| failure(path, &error));
    let key_pair = KeyPair::from_pem(&read(&key)?).map_err(|error| failure(&key, &error))?;
    Issuer::from_ca_cert_pem(&read(&certificate)?, key_pair).map_err(|error| failure(&certificate, &error))
}

fn make_authority(files: &Files<'_>) -> Result<Issuer<'static, KeyPair>, Failure> {
    let mut params = params("Mainstem authority", &[], AUTHORITY_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(|error| Failure::new(error.to_string()))?;
    let certificate = params.self_signed(&key).map_err(|error| Failure::new(error.to_string()))?;
    files.write("ca", &certificate.pem(), &key)?;
    Ok(Issuer::new(params, key))
}

/// What a certificate says.
struct Subject<'a> {
    name: &'a str,
    hosts: &'a [String],
    usage: ExtendedKeyUsagePurpose,
    days: u32,
}

fn issue(
    files: &Files<'_>,
    authority: &Issuer<'_, KeyPair>,
    file: &str,
    subject: &Subject<'_>,
) -> Result<(), Failure> {
    files.check(file)?;
    let mut params = params(subject.name, subject.hosts, subject.days)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![subject.usage.clone()];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(|error| Failure::new(error.to_string()))?;
    let certificate = params.signed_by(&key, authority).map_err(|error| Failure::new(error.to_string()))?;
    files.write(file, &certificate.pem(), &key)
}

fn params(name: &str, hosts: &[String], days: u32) -> Result<CertificateParams, Failure> {
    let mut params = CertificateParams::new(hosts)
        .map_err(|error| Failure::new(format!("--host {}: {error}", hosts.join(", "))))?;
    params.distinguished_name = DistinguishedName::new();
    let common_name: String = name.chars().take(COMMON_NAME_MAX).collect();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = SystemTime::now();
    params.not_before = (now - Duration::from_secs(CLOCK_SKEW_S)).into();
    params.not_after = (now + Duration::from_secs(u64::from(days) * DAY_S)).into();
    Ok(params)
}
