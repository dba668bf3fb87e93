//! `/v1/bans`: lists, adds and deletes bans.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_security::{Ban, BanSubject, SecurityState, add_ban, delete_ban};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::clock::unix_ms;
use crate::input::{JsonBody, QueryParams};
use crate::problem::Problem;
use crate::response::json_response;
use crate::users::{change, host};

/// Who is banned: one of these.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubjectQuery {
    user: Option<String>,
    client_id: Option<String>,
    network: Option<String>,
}

/// A new ban.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BanBody {
    user: Option<String>,
    client_id: Option<String>,
    network: Option<String>,
    #[serde(default)]
    reason: String,
    /// Seconds; absent for a ban without an end.
    duration_s: Option<u32>,
}

pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let state = host(&app)?.published().state();
    let now_ms = unix_ms();
    let active = state.bans().iter().filter(|(_, ban)| ban.is_active(now_ms));
    let bans: Vec<Value> = active.map(|(subject, ban)| show(subject, ban)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "bans": bans })))
}

pub(crate) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<BanBody>,
) -> Result<Response, Problem> {
    let BanBody { user, client_id, network, reason, duration_s } = body;
    let subject = SubjectQuery { user, client_id, network }.subject()?;
    let since_ms = unix_ms();
    let until_ms = duration_s.map(|seconds| since_ms + u64::from(seconds) * 1000);
    let ban = Ban { reason: reason.into(), since_ms, until_ms };
    let shown = show(&subject, &ban);
    let edit = move |state: &SecurityState| Ok(add_ban(state, subject, ban));
    change(&host(&app)?, &caller, Box::new(edit)).await?;
    Ok(json_response(StatusCode::CREATED, &shown))
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    QueryParams(query): QueryParams<SubjectQuery>,
) -> Result<Response, Problem> {
    let subject = query.subject()?;
    change(&host(&app)?, &caller, Box::new(move |state| delete_ban(state, subject))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl SubjectQuery {
    fn subject(self) -> Result<BanSubject, Problem> {
        match (self.user, self.client_id, self.network) {
            (Some(user), None, None) => Ok(BanSubject::User(user.into())),
            (None, Some(client_id), None) => Ok(BanSubject::ClientId(client_id.into())),
            (None, None, Some(network)) => {
                let network = network.parse();
                network
                    .map(BanSubject::Network)
                    .map_err(|error: mainstem_security::SecurityError| Problem::invalid(error.to_string()))
            }
            _ => Err(Problem::invalid("a ban is of one of user, client_id and network")),
        }
    }
}

fn show(subject: &BanSubject, ban: &Ban) -> Value {
    let (kind, name) = match subject {
        BanSubject::User(name) => ("user", name.to_string()),
        BanSubject::ClientId(name) => ("client_id", name.to_string()),
        BanSubject::Network(network) => ("network", network.to_string()),
    };
    let Ban { reason, since_ms, until_ms } = ban;
    json!({ kind: name, "reason": **reason, "since_ms": since_ms, "until_ms": until_ms })
}
