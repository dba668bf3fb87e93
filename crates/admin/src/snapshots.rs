//! `/v1/snapshots`: takes, lists and removes snapshots of the data directory.
//!
//! A snapshot links and removes files, which blocks, and it must not end with the connection of its client.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::access::Caller;
use crate::app::App;
use crate::broker::SnapshotHost;
use crate::input::PathParams;
use crate::problem::Problem;
use crate::response::json_response;

pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    Ok(json_response(StatusCode::OK, &json!({ "snapshots": host(&app)?.list() })))
}

pub(crate) async fn take(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let (host, audited) = (host(&app)?, app.clone());
    let take = move || {
        let snapshot = host.take().map_err(Problem::snapshot)?;
        caller.note(&audited, "take-snapshot", "snapshot", None, None);
        Ok(json_response(StatusCode::CREATED, &snapshot))
    };
    app.carry_out_blocking(take).await
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(id): PathParams<String>,
) -> Result<Response, Problem> {
    let (host, audited) = (host(&app)?, app.clone());
    let remove = move || {
        if !host.remove(&id).map_err(Problem::snapshot)? {
            return Err(Problem::no_snapshot());
        }
        caller.note(&audited, "remove-snapshot", "snapshot", None, None);
        Ok(StatusCode::NO_CONTENT.into_response())
    };
    app.carry_out_blocking(remove).await
}

fn host(app: &App) -> Result<Arc<dyn SnapshotHost>, Problem> {
    app.broker().snapshots().ok_or_else(Problem::no_route)
}
