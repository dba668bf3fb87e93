//! `ApiVersions`, versions 0 to 4: returns the served APIs and features. Also records the name and version of the
//! client library (KIP-511).

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::api_versions::{
    ApiVersion, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey,
};
use mainstem_runtime::Io;

use crate::handlers::{SERVED, ServedApi};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Supported features by name and level (KIP-584).
const FEATURES: [(&str, i16); 2] = [("group.version", 1), ("transaction.version", 2)];

/// The syntax of names and versions of client libraries (KIP-511).
fn is_software(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() && bytes.iter().copied().all(is_inner)
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ApiVersionsRequest,
) {
    let ApiVersionsRequest { client_software_name: name, client_software_version: version } = request;
    let mut response = response(ErrorCode::None);
    if call.version >= 3 {
        if is_software(&name) && is_software(&version) {
            if let Some(conn) = shard.conns.get_mut(call.caller.conn) {
                conn.software = Some((name, version));
            }
        } else {
            response = ApiVersionsResponse {
                error_code: ErrorCode::InvalidRequest as i16,
                ..ApiVersionsResponse::default()
            };
        }
    }
    shard.reply::<ApiVersionsRequest>(io, &call, &response);
}

/// The response with all served APIs.
pub(crate) fn response(error: ErrorCode) -> ApiVersionsResponse {
    let version = |ServedApi { api, .. }: &ServedApi| ApiVersion {
        api_key: api.key,
        min_version: api.announced_from,
        max_version: *api.versions.end(),
    };
    let supported = FEATURES.map(|(name, level)| SupportedFeatureKey {
        name: name.into(),
        min_version: 0,
        max_version: level,
    });
    let finalized = FEATURES.map(|(name, level)| FinalizedFeatureKey {
        name: name.into(),
        max_version_level: level,
        min_version_level: level,
    });
    ApiVersionsResponse {
        error_code: error as i16,
        api_keys: SERVED.iter().map(version).collect(),
        supported_features: supported.into(),
        finalized_features_epoch: 0,
        finalized_features: finalized.into(),
        ..ApiVersionsResponse::default()
    }
}
