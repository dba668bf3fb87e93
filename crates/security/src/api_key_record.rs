//! API keys as records of the security log, and when they were last used (docs/formats/security.md).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::api_key::{ApiKey, ApiKeyId};
use crate::error::SecurityError;
use crate::record_version::{VERSION, check_version, invalid};

/// Beginning of the record key of an API key.
pub(crate) const API_KEY: &str = "api-key/";
/// Beginning of the record key of the last use of an API key.
const LAST_USE: &str = "api-key-use/";

#[derive(Serialize, Deserialize)]
struct ApiKeyRecord {
    v: u8,
    user: String,
    hash: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    description: String,
    created_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct LastUseRecord {
    v: u8,
    at_ms: u64,
}

pub(crate) fn record_key(id: ApiKeyId) -> Vec<u8> {
    format!("{API_KEY}{id}").into_bytes()
}

pub(crate) fn encode_api_key(key: &ApiKey) -> Vec<u8> {
    let record = ApiKeyRecord {
        v: VERSION,
        user: key.user.to_string(),
        hash: STANDARD.encode(key.hash),
        roles: key.roles.iter().map(ToString::to_string).collect(),
        description: key.description.to_string(),
        created_ms: key.created_ms,
        expires_ms: key.expires_ms,
    };
    serde_json::to_vec(&record).expect("plain data")
}

pub(crate) fn decode_api_key(value: &[u8]) -> Result<ApiKey, SecurityError> {
    let record: ApiKeyRecord = serde_json::from_slice(value).map_err(|error| invalid("an API key", error))?;
    check_version(record.v)?;
    let hash = STANDARD.decode(&record.hash).ok().and_then(|hash| hash.try_into().ok());
    let key = ApiKey {
        user: record.user.into(),
        hash: hash.ok_or_else(|| invalid("an API key", "its hash has not 32 bytes"))?,
        roles: record.roles.into_iter().map(Into::into).collect(),
        description: record.description.into(),
        created_ms: record.created_ms,
        expires_ms: record.expires_ms,
    };
    key.check()?;
    Ok(key)
}

/// The record of the last use of an API key, Unix time in ms; `None` is its tombstone. It is no [`Change`] of the
/// state: whoever uses a key changes nobody's rights.
///
/// [`Change`]: crate::Change
pub fn encode_last_use(id: ApiKeyId, at_ms: Option<u64>) -> (Vec<u8>, Option<Vec<u8>>) {
    let encode = |at_ms| serde_json::to_vec(&LastUseRecord { v: VERSION, at_ms }).expect("plain data");
    (format!("{LAST_USE}{id}").into_bytes(), at_ms.map(encode))
}

/// Decodes the record of a last use; `None` if it is a record of something else.
///
/// # Errors
/// It is malformed.
pub fn decode_last_use(
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<Option<(ApiKeyId, Option<u64>)>, SecurityError> {
    let Some(id) = key.strip_prefix(LAST_USE.as_bytes()) else { return Ok(None) };
    let id = std::str::from_utf8(id).map_err(|error| invalid("a key", error))?.parse()?;
    let Some(value) = value else { return Ok(Some((id, None))) };
    let record: LastUseRecord =
        serde_json::from_slice(value).map_err(|error| invalid("the last use of an API key", error))?;
    check_version(record.v)?;
    Ok(Some((id, Some(record.at_ms))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_is_written_and_read() {
        let id = ApiKeyId(0xab);
        let (key, value) = encode_last_use(id, Some(7));
        assert_eq!(
            (&*key, value.as_deref()),
            (&b"api-key-use/00000000000000ab"[..], Some(&br#"{"v":1,"at_ms":7}"#[..]))
        );
        assert_eq!(decode_last_use(&key, value.as_deref()), Ok(Some((id, Some(7)))));
        assert_eq!(decode_last_use(&key, None), Ok(Some((id, None))));
        assert_eq!(decode_last_use(b"user/alice", None), Ok(None));
        assert!(decode_last_use(&key, Some(b"{}")).is_err());
        assert!(decode_last_use(b"api-key-use/x", None).is_err());
    }
}
