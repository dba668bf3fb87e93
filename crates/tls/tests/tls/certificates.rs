//! Certificates: server names, client certificates, revocation, reload, and errors in files.

use std::path::PathBuf;

use crate::kit::{Authority, Folder, Identity, Pair, client, client_config, der, settings};
use mainstem_tls::{Acceptor, CertificateEnd, CertificateFiles, ClientCertificates, Reloaded, Settings};
use rcgen::{
    CertificateParams, CertificateRevocationListParams, KeyIdMethod, KeyPair, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// Completes a handshake and sends a byte: with TLS 1.3, a client learns only then that its certificate was refused.
fn connect(
    authority: &Authority,
    acceptor: &Acceptor,
    name: &str,
    identity: Identity<'_>,
) -> Result<Vec<u8>, String> {
    let mut pair = Pair::new(client(&client_config(authority, BOTH, identity, &[]), name), acceptor.layer());
    pair.exchange()?;
    pair.client_writes(b"x")?;
    Ok(pair.server_certificate())
}

#[test]
fn the_certificate_is_chosen_by_server_name() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let of = |file: &str, names: &[&str]| authority.issue_to(&folder, file, names);
    let certificates = vec![
        of("first", &["a.example", "c.example"]),
        of("second", &["b.example"]),
        of("wild", &["*.wild.example"]),
    ];
    let acceptor =
        Acceptor::load(Settings { certificates: certificates.clone(), ..Settings::default() }).unwrap();
    for (name, at) in [("a.example", 0), ("b.example", 1), ("c.example", 0), ("x.wild.example", 2)] {
        let served = connect(&authority, &acceptor, name, None).unwrap();
        assert_eq!(served, der(&certificates[at].certificate), "{name}");
    }
    // Without a match, the first certificate is sent, and the client decides.
    let error = connect(&authority, &acceptor, "other.example", None).unwrap_err();
    assert!(error.contains("not valid for name"), "{error}");
}

/// An acceptor that requests client certificates of the second authority.
fn with_clients(clients: ClientCertificates) -> (Folder, Authority, Authority, Settings) {
    let (folder, authority, others) = (Folder::new(), Authority::new("servers"), Authority::new("clients"));
    let settings = Settings {
        client_certificates: clients,
        client_ca: Some(folder.write("clients.pem", &others.pem)),
        ..settings(&folder, &authority)
    };
    (folder, authority, others, settings)
}

#[test]
fn client_certificates_are_required_optional_or_off() {
    use ClientCertificates::{Off, Optional, Required};
    for clients in [Off, Optional, Required] {
        let (_folder, authority, others, settings) = with_clients(clients);
        let acceptor = Acceptor::load(settings).unwrap();
        let (valid, valid_key) = others.issue(&["device-7"], 7);
        let (foreign, foreign_key) = Authority::new("clients").issue(&["device-7"], 7);
        let connects = |identity| connect(&authority, &acceptor, "localhost", identity);
        assert!(connects(Some((&valid, &valid_key))).is_ok(), "{clients:?}");
        assert_eq!(connects(None).is_ok(), clients != Required, "{clients:?}");
        assert_eq!(connects(Some((&foreign, &foreign_key))).is_ok(), clients == Off, "{clients:?}");
    }
}

fn revocation_list(authority: &Authority, revoked: &[u64]) -> String {
    let revoked_certs = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2124, 1, 1),
        crl_number: SerialNumber::from(1),
        issuing_distribution_point: None,
        revoked_certs: revoked_certs.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&authority.issuer).unwrap().pem().unwrap()
}

#[test]
fn revocation_takes_effect_on_reload_also_for_resumed_sessions() {
    let (folder, authority, others, settings) = with_clients(ClientCertificates::Required);
    let list = folder.write("clients.crl", &revocation_list(&others, &[8]));
    let acceptor = Acceptor::load(Settings { client_crl: Some(list), ..settings }).unwrap();
    let (seventh, seventh_key) = others.issue(&["device-7"], 7);
    let (eighth, eighth_key) = others.issue(&["device-8"], 8);
    let config = client_config(&authority, BOTH, Some((&seventh, &seventh_key)), &[]);
    let mut pair = Pair::new(client(&config, "localhost"), acceptor.layer());
    pair.exchange().unwrap();
    assert!(connect(&authority, &acceptor, "localhost", Some((&eighth, &eighth_key))).is_err());
    folder.write("clients.crl", &revocation_list(&others, &[7]));
    assert_eq!(acceptor.reload().unwrap(), Reloaded::Changed);
    assert!(connect(&authority, &acceptor, "localhost", Some((&eighth, &eighth_key))).is_ok());
    // The open connection goes on; its client cannot resume the session.
    pair.client_writes(b"still here").unwrap();
    assert_eq!(pair.input, b"still here");
    assert!(connect(&authority, &acceptor, "localhost", Some((&seventh, &seventh_key))).is_err());
    let mut again = Pair::new(client(&config, "localhost"), acceptor.layer());
    let refused = again.exchange().and_then(|()| again.client_writes(b"x"));
    assert!(refused.unwrap_err().contains("Revoked"));
}

#[test]
fn reload_serves_new_files_and_keeps_the_old_ones_if_they_are_invalid() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let settings = settings(&folder, &authority);
    let file = settings.certificates[0].certificate.clone();
    let acceptor = Acceptor::load(settings).unwrap();
    let first = der(&file);
    assert_eq!(acceptor.reload().unwrap(), Reloaded::Unchanged);
    // A new certificate whose key is not there yet.
    let (certificate, key) = authority.issue(&["localhost"], 2);
    folder.write("server.crt", &certificate);
    let error = acceptor.reload().unwrap_err();
    assert!(error.to_string().contains("is not the key of"), "{error}");
    assert_eq!(connect(&authority, &acceptor, "localhost", None).unwrap(), first);
    folder.write("server.key", &key);
    assert_eq!(acceptor.reload().unwrap(), Reloaded::Changed);
    assert_eq!(connect(&authority, &acceptor, "localhost", None).unwrap(), der(&file));
}

#[test]
fn errors_name_the_file_and_the_reason() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let good = settings(&folder, &authority);
    let CertificateFiles { certificate, key } = good.certificates[0].clone();
    let text = folder.write("text.pem", "not a certificate");
    let with = |certificate: &PathBuf, key: &PathBuf| Settings {
        certificates: vec![CertificateFiles { certificate: certificate.clone(), key: key.clone() }],
        ..Settings::default()
    };
    let cases = [
        (with(&folder.path("none.crt"), &key), "none.crt: No such file"),
        (with(&text, &key), "text.pem: contains no certificate in PEM format"),
        (with(&certificate, &text), "text.pem: contains no private key in PEM format"),
        (with(&certificate, &certificate), "server.crt: contains no private key in PEM format"),
        (Settings::default(), "no certificate is configured"),
        (
            Settings { client_certificates: ClientCertificates::Required, ..good.clone() },
            "client certificates are requested, but client_ca is not set",
        ),
        (
            Settings {
                client_certificates: ClientCertificates::Optional,
                client_ca: Some(text.clone()),
                ..good
            },
            "text.pem: contains no certificate in PEM format",
        ),
    ];
    for (settings, expected) in cases {
        let error = Acceptor::load(settings).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} does not contain {expected:?}");
    }
}

#[test]
fn the_end_of_a_file_is_that_of_its_first_certificate_to_end_and_follows_a_reload() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let key = KeyPair::generate().unwrap();
    let until = |year| {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 2);
        params.signed_by(&key, &authority.issuer).unwrap().pem()
    };
    let files = CertificateFiles {
        certificate: folder.write("server.crt", &(until(2041) + &until(2040))),
        key: folder.write("server.key", &key.serialize_pem()),
    };
    let other = authority.issue_to(&folder, "other", &["other.example"]);
    let certificates = vec![files.clone(), other.clone()];
    let acceptor = Acceptor::load(Settings { certificates, ..Settings::default() }).unwrap();
    let end = |year| CertificateEnd {
        file: files.certificate.clone(),
        not_after_s: date_time_ymd(year, 1, 2).unix_timestamp(),
    };
    let ends = acceptor.certificate_ends();
    assert_eq!((&ends[0], ends.len()), (&end(2040), 2));
    assert_eq!(ends[1].file, other.certificate);
    folder.write("server.crt", &until(2042));
    assert_eq!(acceptor.certificate_ends()[0], end(2040), "it is the one in use");
    acceptor.reload().unwrap();
    assert_eq!(acceptor.certificate_ends()[0], end(2042));
}
