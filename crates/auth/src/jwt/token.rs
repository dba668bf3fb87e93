//! Verifying one token (RFC 7515, RFC 7519), and what its claims say.
//!
//! A token is as good as the key that has signed it: the algorithm must be one that the key is for, whatever the
//! token's header says, or a public key could be used as a secret. Issuer, audience and expiry are checked before a
//! claim becomes a user or a role.

use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Validation, decode, decode_header};
use mainstem_security::{MAX_ROLES, Proof, check_name};
use serde_json::{Map, Value};

use super::keys::Key;

/// Longest token, bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Keys that are tried on a token that names none.
const TRIES_MAX: usize = 16;

/// What tokens must have, and what their claims mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRules {
    /// Accepted issuers (`iss`); empty for any.
    pub issuers: Vec<String>,
    /// Accepted audiences (`aud`); empty for any.
    pub audiences: Vec<String>,
    /// Tolerated difference of clocks, seconds.
    pub leeway_s: u64,
    /// The claim that is the user.
    pub user_claim: String,
    /// The claim that is the roles; empty for none.
    pub roles_claim: String,
}

/// The user of a token that has been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenUser {
    pub(crate) user: Arc<str>,
    pub(crate) proof: Proof,
}

/// Why a token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It names a key that is not known, but may be published already.
    UnknownKey,
    /// It is invalid: why.
    Invalid(String),
}

/// Whether a password has the form of a token: three parts, of which the first is encoded JSON.
pub(crate) fn is_token(password: &[u8]) -> bool {
    password.starts_with(b"eyJ") && password.split(|byte| *byte == b'.').count() == 3
}

/// Verifies a token.
///
/// # Errors
/// It is not valid now.
pub(super) fn verify(token: &[u8], keys: &[Key], rules: &TokenRules) -> Result<TokenUser, Refusal> {
    let invalid = |what: &str| Refusal::Invalid(what.to_owned());
    if token.len() > TOKEN_BYTES_MAX {
        return Err(invalid("it is longer than 16 KiB"));
    }
    let header = decode_header(token).map_err(|error| Refusal::Invalid(format!("its header: {error}")))?;
    if header.crit.is_some() {
        return Err(invalid("it has critical extensions"));
    }
    // A key without an identifier may be meant by any; the identifier itself is only compared.
    let is_named = |key: &&Key| key.id.is_some() && key.id == header.kid;
    let named = keys.iter().filter(is_named);
    let unnamed = keys.iter().filter(|key| key.id.is_none() || header.kid.is_none());
    let has_named = keys.iter().any(|key| is_named(&key));
    let mut failure = None;
    for key in named.chain(unnamed).filter(|key| key.algorithms.contains(&header.alg)).take(TRIES_MAX) {
        match decode::<Map<String, Value>>(token, &key.verifier, &validation(key, rules)) {
            Ok(data) => return user(&data.claims, rules),
            Err(error) => failure = Some(error.to_string()),
        }
    }
    match failure {
        _ if header.kid.is_some() && !has_named => Err(Refusal::UnknownKey),
        Some(failure) => Err(Refusal::Invalid(failure)),
        None => Err(invalid("there is no key for its algorithm")),
    }
}

fn validation(key: &Key, rules: &TokenRules) -> Validation {
    let mut validation = Validation::new(key.algorithms[0]);
    validation.algorithms.clone_from(&key.algorithms);
    validation.leeway = rules.leeway_s;
    validation.validate_nbf = true;
    let mut required = vec!["exp"];
    if rules.issuers.is_empty() {
        validation.iss = None;
    } else {
        validation.set_issuer(&rules.issuers);
        required.push("iss");
    }
    if rules.audiences.is_empty() {
        validation.validate_aud = false;
    } else {
        validation.set_audience(&rules.audiences);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

/// The user of valid claims.
///
/// # Errors
/// The claims name no user, or invalid roles: a role that is left out could be one that rules deny something.
pub(crate) fn user(claims: &Map<String, Value>, rules: &TokenRules) -> Result<TokenUser, Refusal> {
    let invalid = |what: String| Refusal::Invalid(what);
    let claim = &rules.user_claim;
    let user = claim_of(claims, claim).and_then(Value::as_str);
    let user =
        user.ok_or_else(|| invalid(format!("it has no text in the claim {claim:?} (jwt.user_claim)")))?;
    check_name(user).map_err(|error| invalid(format!("its user: {error}")))?;
    // A fraction of a second is allowed.
    let end = claims.get("exp").and_then(Value::as_f64).and_then(|end| Duration::try_from_secs_f64(end).ok());
    let end = end.ok_or_else(|| invalid("it has no valid exp".to_owned()))?;
    let end_ms = end.as_secs().saturating_add(rules.leeway_s).saturating_mul(1000);
    let proof = Proof {
        api_key: None,
        is_external: true,
        common_name: None,
        roles: roles(claims, rules)?,
        expires_ms: Some(end_ms),
    };
    Ok(TokenUser { user: user.into(), proof })
}

/// The roles: an array of texts, or one text with spaces between roles.
fn roles(claims: &Map<String, Value>, rules: &TokenRules) -> Result<Vec<Arc<str>>, Refusal> {
    let claim = &rules.roles_claim;
    let malformed = || Refusal::Invalid(format!("its claim {claim:?} has no roles (jwt.roles_claim)"));
    let names: Vec<&str> = match claim_of(claims, claim) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.split(' ').filter(|name| !name.is_empty()).collect(),
        Some(Value::Array(names)) => {
            names.iter().map(Value::as_str).collect::<Option<_>>().ok_or_else(malformed)?
        }
        Some(_) => return Err(malformed()),
    };
    if names.len() > MAX_ROLES || names.iter().any(|name| check_name(name).is_err()) {
        return Err(malformed());
    }
    Ok(names.into_iter().map(Into::into).collect())
}

/// A claim, by its name, or by a path with dots such as `realm_access.roles`.
fn claim_of<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if name.is_empty() {
        return None;
    }
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        claim_of(claims.get(first)?.as_object()?, rest)
    })
}
