//! `/v1/keys`: lists, adds and deletes API keys.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_security::{
    API_KEY_SECRET_BYTES, ApiKey, ApiKeyId, ChangeError, PresentedApiKey, Published, SecurityState,
    add_api_key, delete_api_key,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::clock::unix_ms;
use crate::input::{JsonBody, PathParams, QueryParams};
use crate::problem::Problem;
use crate::response::json_response;
use crate::users::{change, host};

/// Whose keys are listed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeysQuery {
    user: Option<String>,
}

/// A new key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    user: String,
    #[serde(default)]
    roles: Vec<String>,
    #[serde(default)]
    description: String,
    /// Seconds; absent for a key without an end.
    expires_in_s: Option<u32>,
}

pub(crate) async fn list(
    State(app): State<App>,
    QueryParams(query): QueryParams<KeysQuery>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let published = host.published();
    let state = published.state();
    let keys = state.api_keys();
    let keys: Vec<Value> = match &query.user {
        Some(user) => keys.of_user(user).map(|(id, key)| show(published, id, key)).collect(),
        None => keys.iter().map(|(id, key)| show(published, id, key)).collect(),
    };
    Ok(json_response(StatusCode::OK, &json!({ "keys": keys })))
}

/// The response is the only one that ever has the secret.
pub(crate) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<KeyBody>,
) -> Result<Response, Problem> {
    if body.expires_in_s == Some(0) {
        return Err(Problem::invalid("expires_in_s: must be at least 1"));
    }
    let host = host(&app)?;
    let presented = random_key()?;
    let created_ms = unix_ms();
    let key = ApiKey {
        user: body.user.into(),
        hash: presented.hash(),
        roles: body.roles.into_iter().map(Into::into).collect(),
        description: body.description.into(),
        created_ms,
        expires_ms: body.expires_in_s.map(|seconds| created_ms + u64::from(seconds) * 1000),
    };
    let mut shown = show(host.published(), presented.id, &key);
    let id = presented.id;
    let edit = move |state: &SecurityState| add_api_key(state, id, key);
    change(&host, &caller, Box::new(edit)).await?;
    shown["key"] = presented.expose().into();
    Ok(json_response(StatusCode::CREATED, &shown))
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(id): PathParams<String>,
) -> Result<Response, Problem> {
    let id: ApiKeyId =
        id.parse().map_err(|error: mainstem_security::SecurityError| Problem::invalid(error.to_string()))?;
    change(&host(&app)?, &caller, Box::new(move |state| delete_api_key(state, id))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn random_key() -> Result<PresentedApiKey, Problem> {
    let (mut id, mut secret) = ([0; 8], [0; API_KEY_SECRET_BYTES]);
    let filled = getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret));
    filled.map_err(|error| Problem::from(&ChangeError::Log(error.to_string())))?;
    Ok(PresentedApiKey::new(ApiKeyId(u64::from_be_bytes(id)), secret))
}

/// A key without its secret.
fn show(published: &Published, id: ApiKeyId, key: &ApiKey) -> Value {
    json!({
        "id": id.to_string(),
        "user": *key.user,
        "roles": key.roles.iter().map(|role| &**role).collect::<Vec<_>>(),
        "description": *key.description,
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "last_used_ms": published.api_key_uses().last(id),
    })
}
