//! API keys: long random secrets that log programs in as a user.
//!
//! A key is `mainstem_`, its identifier and its secret: `mainstem_0123456789abcdef_` and 43 characters of base64url.
//! The identifier is public and finds the key; the prefix lets scanners find keys that were published by mistake. The
//! secret has 256 random bits, which nobody guesses, so a plain SHA-256 hash protects it as well as a slow one would,
//! and costs microseconds per log-in. Passwords are chosen by people, and need the slow one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::SecurityError;
use crate::user::{MAX_ROLES, check_name, check_user_name};

/// Most API keys.
pub const MAX_API_KEYS: usize = 100_000;
/// Most API keys of one user.
pub const MAX_API_KEYS_PER_USER: usize = 100;
/// Longest description, bytes.
pub(crate) const MAX_DESCRIPTION_BYTES: usize = 255;
/// Random bytes of a secret.
pub const API_KEY_SECRET_BYTES: usize = 32;

const PREFIX: &str = "mainstem_";
/// Hexadecimal digits of an identifier.
const ID_DIGITS: usize = 16;

/// The public identifier of an API key. It is random, so that none is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyId(pub u64);

/// What the broker knows of an API key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The user that it logs in as.
    pub user: Arc<str>,
    /// SHA-256 of the secret.
    pub hash: [u8; 32],
    /// The only roles whose rules allow anything; without any, the key has the rights of its user.
    pub roles: Vec<Arc<str>>,
    /// What administrators read; may be empty.
    pub description: Arc<str>,
    /// When it was added, Unix time, ms.
    pub created_ms: u64,
    /// When it ends, Unix time, ms; `None` if it does not.
    pub expires_ms: Option<u64>,
}

/// An API key as a client presents it.
#[derive(Clone, PartialEq, Eq)]
pub struct PresentedApiKey {
    /// The identifier.
    pub id: ApiKeyId,
    secret: [u8; API_KEY_SECRET_BYTES],
}

/// All API keys.
#[derive(Clone, Debug, Default)]
pub struct ApiKeys {
    by_id: BTreeMap<ApiKeyId, Arc<ApiKey>>,
    by_user: BTreeMap<Arc<str>, BTreeSet<ApiKeyId>>,
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for ApiKeyId {
    type Err = SecurityError;

    fn from_str(text: &str) -> Result<Self, SecurityError> {
        let is_id = text.len() == ID_DIGITS
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        let id = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or(SecurityError::ApiKey("its identifier has 16 hexadecimal digits"))
    }
}

/// Shows no hash.
impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("user", &self.user)
            .field("roles", &self.roles)
            .field("expires_ms", &self.expires_ms)
            .finish_non_exhaustive()
    }
}

/// Shows no secret.
impl fmt::Debug for PresentedApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresentedApiKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl PresentedApiKey {
    /// A new key; `secret` must be random.
    pub fn new(id: ApiKeyId, secret: [u8; API_KEY_SECRET_BYTES]) -> Self {
        Self { id, secret }
    }

    /// The key that a password is; `None` if it has not the form of one.
    pub fn parse(password: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(password).ok()?.strip_prefix(PREFIX)?;
        let (id, secret) = text.split_once('_')?;
        let secret = URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?;
        Some(Self { id: id.parse().ok()?, secret })
    }

    /// What the client has to present.
    pub fn expose(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, URL_SAFE_NO_PAD.encode(self.secret))
    }

    /// SHA-256 of the secret.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.secret).into()
    }
}

impl ApiKey {
    /// Whether this is the key that a client presents. The comparison takes constant time.
    pub fn verifies(&self, presented: &PresentedApiKey) -> bool {
        presented.hash().ct_eq(&self.hash).into()
    }

    /// Whether it has ended.
    pub fn is_expired(&self, unix_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| unix_ms >= expires_ms)
    }

    /// Checks the fields.
    ///
    /// # Errors
    /// A name or the description is invalid, or there are too many roles.
    pub fn check(&self) -> Result<(), SecurityError> {
        check_user_name(&self.user)?;
        if self.roles.len() > MAX_ROLES {
            return Err(SecurityError::Limit("an API key has at most 64 roles"));
        }
        if self.description.len() > MAX_DESCRIPTION_BYTES || self.description.chars().any(char::is_control) {
            return Err(SecurityError::ApiKey(
                "its description has at most 255 bytes and no control characters",
            ));
        }
        self.roles.iter().try_for_each(|role| check_name(role))
    }
}

impl ApiKeys {
    /// Number of keys, including those that have expired.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All keys, by identifier.
    pub fn iter(&self) -> impl Iterator<Item = (ApiKeyId, &Arc<ApiKey>)> {
        self.by_id.iter().map(|(id, key)| (*id, key))
    }

    /// A key.
    pub fn get(&self, id: ApiKeyId) -> Option<&Arc<ApiKey>> {
        self.by_id.get(&id)
    }

    /// The keys of a user.
    pub fn of_user(&self, user: &str) -> impl Iterator<Item = (ApiKeyId, &Arc<ApiKey>)> {
        self.by_user.get(user).into_iter().flatten().map(|id| (*id, &self.by_id[id]))
    }

    /// Adds or replaces a key. Returns whether anything is different now.
    pub(crate) fn put(&mut self, id: ApiKeyId, key: &Arc<ApiKey>) -> bool {
        if self.by_id.get(&id) == Some(key) {
            return false;
        }
        self.remove(id);
        self.by_user.entry(Arc::clone(&key.user)).or_default().insert(id);
        self.by_id.insert(id, Arc::clone(key));
        true
    }

    /// Deletes a key. Returns whether there was one.
    pub(crate) fn remove(&mut self, id: ApiKeyId) -> bool {
        let Some(key) = self.by_id.remove(&id) else { return false };
        if let Some(ids) = self.by_user.get_mut(&key.user) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_user.remove(&key.user);
            }
        }
        true
    }

    /// Checks a key that is to be put.
    ///
    /// # Errors
    /// It is invalid, or there would be too many.
    pub(crate) fn check(&self, id: ApiKeyId, key: &ApiKey) -> Result<(), SecurityError> {
        key.check()?;
        if self.by_id.contains_key(&id) {
            return Ok(());
        }
        if self.len() >= MAX_API_KEYS {
            return Err(SecurityError::Limit("there are 100000 API keys, which is the limit"));
        }
        if self.of_user(&key.user).count() >= MAX_API_KEYS_PER_USER {
            return Err(SecurityError::Limit("the user has 100 API keys, which is the limit"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &str, presented: &PresentedApiKey) -> ApiKey {
        ApiKey {
            user: user.into(),
            hash: presented.hash(),
            roles: Vec::new(),
            description: "".into(),
            created_ms: 1,
            expires_ms: Some(10),
        }
    }

    #[test]
    fn a_key_is_parsed_as_it_is_shown_and_verified_by_its_secret() {
        let presented = PresentedApiKey::new(ApiKeyId(0xab), [7; 32]);
        let text = presented.expose();
        assert_eq!(text, format!("mainstem_00000000000000ab_{}", "BwcH".repeat(10) + "Bwc"));
        assert_eq!(PresentedApiKey::parse(text.as_bytes()), Some(presented.clone()));
        let known = key("alice", &presented);
        assert!(known.verifies(&presented));
        for at in 0..API_KEY_SECRET_BYTES {
            let mut secret = [7; 32];
            secret[at] ^= 1;
            assert!(!known.verifies(&PresentedApiKey::new(ApiKeyId(0xab), secret)));
        }
        assert!(!known.is_expired(9) && known.is_expired(10));
        assert!(!ApiKey { expires_ms: None, ..known }.is_expired(u64::MAX));
        let shown = format!("{presented:?} {:?}", key("alice", &presented));
        assert!(!shown.contains("7, 7") && !shown.contains("Bwc"), "{shown}");
    }

    #[test]
    fn other_passwords_are_no_keys() {
        let text = PresentedApiKey::new(ApiKeyId(0xab), [7; 32]).expose();
        for other in [
            String::new(),
            "mainstem_".to_owned(),
            text[1..].to_owned(),
            text[..text.len() - 1].to_owned(),
            format!("{text}A"),
            format!("{text}="),
            format!("{text}\n"),
            text.replace("ab_", "AB_"),
            text.replace("mainstem_0", "mainstem_+"),
            text.replacen("_0", "_", 1),
        ] {
            assert_eq!(PresentedApiKey::parse(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(PresentedApiKey::parse(b"mainstem_\xFF"), None);
    }

    #[test]
    fn the_keys_of_a_user_are_bounded_and_found() {
        let mut keys = ApiKeys::default();
        let of = |user: &str, number: usize| {
            let id = ApiKeyId(number as u64);
            (id, Arc::new(key(user, &PresentedApiKey::new(id, [number as u8; 32]))))
        };
        for number in 0..MAX_API_KEYS_PER_USER {
            let (id, key) = of("alice", number);
            keys.check(id, &key).unwrap();
            assert!(keys.put(id, &key) && !keys.put(id, &key));
        }
        let (id, more) = of("alice", 1000);
        assert!(matches!(keys.check(id, &more), Err(SecurityError::Limit(_))));
        let (known, replaced) = of("bob", 3);
        keys.check(known, &replaced).unwrap();
        assert!(keys.put(known, &replaced));
        assert_eq!(keys.of_user("bob").map(|(id, _)| id).collect::<Vec<_>>(), [known]);
        assert_eq!(keys.of_user("alice").count(), MAX_API_KEYS_PER_USER - 1);
        assert!(keys.remove(known) && !keys.remove(known));
        assert!(!keys.by_user.contains_key("bob") && keys.get(known).is_none());
        let long =
            ApiKey { description: "x".repeat(MAX_DESCRIPTION_BYTES + 1).into(), ..ApiKey::clone(&more) };
        assert!(long.check().is_err());
    }
}
