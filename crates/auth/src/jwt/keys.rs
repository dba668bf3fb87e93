//! The keys that verify tokens: of a secret, of PEM files, of JSON Web Key sets (RFC 7517).
//!
//! Each key verifies the algorithms of its kind only, so that nobody can present a public key as a secret.

use std::fmt;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Most keys of one source.
const KEYS_MAX: usize = 100;
/// Shortest secret, bytes: the length of the shortest hash (RFC 7518, section 3.2).
const SECRET_BYTES_MIN: usize = 32;

const HMAC: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// A key.
#[derive(Clone)]
pub(super) struct Key {
    /// Its identifier (`kid`), if it has one.
    pub(super) id: Option<String>,
    /// What it verifies.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) verifier: DecodingKey,
}

/// Shows no key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .field("algorithms", &self.algorithms)
            .finish_non_exhaustive()
    }
}

/// The key of a shared secret. A line end behind it does not belong to it.
///
/// # Errors
/// It is too short.
pub(super) fn of_secret(secret: &[u8]) -> Result<Vec<Key>, String> {
    let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    if secret.len() < SECRET_BYTES_MIN {
        return Err(format!("the secret has {} bytes, fewer than {SECRET_BYTES_MIN}", secret.len()));
    }
    Ok(vec![Key { id: None, algorithms: HMAC.to_vec(), verifier: DecodingKey::from_secret(secret) }])
}

/// The public keys of a PEM file.
///
/// # Errors
/// There is none, or one is of an unknown kind.
pub(super) fn of_pem(pem: &[u8]) -> Result<Vec<Key>, String> {
    let items = SubjectPublicKeyInfoDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let items = items.map_err(|error| error.to_string())?;
    if items.is_empty() {
        return Err("contains no public key in PEM format (BEGIN PUBLIC KEY)".to_owned());
    }
    items.iter().take(KEYS_MAX).map(|item| of_public_key(item.as_ref())).collect()
}

fn of_public_key(der: &[u8]) -> Result<Key, String> {
    const UNKNOWN: &str = "contains a key that is neither RSA, P-256, P-384 nor Ed25519";
    let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|error| error.to_string())?;
    let parsed = info.parsed().map_err(|error| error.to_string())?;
    let (algorithms, verifier) = match parsed {
        PublicKey::RSA(rsa) => {
            let plain = |bytes: &[u8]| {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                bytes[zeros..].to_vec()
            };
            let key = DecodingKey::from_rsa_raw_components(&plain(rsa.modulus), &plain(rsa.exponent));
            (RSA.to_vec(), key)
        }
        PublicKey::EC(point) => match point.key_size() {
            256 => (vec![Algorithm::ES256], DecodingKey::from_ec_der(point.data())),
            384 => (vec![Algorithm::ES384], DecodingKey::from_ec_der(point.data())),
            _ => return Err(UNKNOWN.to_owned()),
        },
        // RFC 8410.
        PublicKey::Unknown(bytes) if info.algorithm.algorithm.to_id_string() == "1.3.101.112" => {
            (vec![Algorithm::EdDSA], DecodingKey::from_ed_der(bytes))
        }
        _ => return Err(UNKNOWN.to_owned()),
    };
    Ok(Key { id: None, algorithms, verifier })
}

/// The keys of a JSON Web Key set. Keys of unknown kinds, and those for other purposes, are skipped; so are secrets,
/// which have no place in a document that is published.
///
/// # Errors
/// It is no such set, or has no key that verifies tokens.
pub(super) fn of_jwks(text: &[u8]) -> Result<Vec<Key>, String> {
    let set: Value = serde_json::from_slice(text).map_err(|error| format!("is no JSON: {error}"))?;
    let items = set["keys"].as_array().ok_or("is no JSON Web Key set: it has no array `keys`")?;
    let parse = |item: &Value| serde_json::from_value::<Jwk>(item.clone()).ok();
    let keys: Vec<Key> =
        items.iter().filter_map(parse).filter_map(|jwk| of_jwk(&jwk)).take(KEYS_MAX).collect();
    if keys.is_empty() {
        return Err("has no RSA, P-256, P-384 or Ed25519 key for signatures".to_owned());
    }
    Ok(keys)
}

fn of_jwk(jwk: &Jwk) -> Option<Key> {
    let common = &jwk.common;
    let is_for_signatures =
        common.public_key_use.as_ref().is_none_or(|used| *used == PublicKeyUse::Signature)
            && common
                .key_operations
                .as_ref()
                .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        _ => return None,
    };
    if let Some(only) = common.key_algorithm {
        let only = only.to_string().parse::<Algorithm>().ok();
        algorithms.retain(|algorithm| Some(*algorithm) == only);
    }
    let verifier = DecodingKey::from_jwk(jwk).ok()?;
    (is_for_signatures && !algorithms.is_empty()).then(|| Key {
        id: common.key_id.clone(),
        algorithms,
        verifier,
    })
}
