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
    let host = host(&app)?;
    let change = {
        let app = app.clone();
        async move {
            let taken = tokio::task::spawn_blocking(move || host.take()).await;
            let snapshot = taken.map_err(|_| Problem::unanswered())?.map_err(Problem::snapshot)?;
            caller.note(&app, "take-snapshot", "snapshot", None, None);
            Ok(json_response(StatusCode::CREATED, &snapshot))
        }
    };
    app.carry_out(change).await
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(id): PathParams<String>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let change = {
        let app = app.clone();
        async move {
            let removed = tokio::task::spawn_blocking(move || host.remove(&id)).await;
            if !removed.map_err(|_| Problem::unanswered())?.map_err(Problem::snapshot)? {
                return Err(Problem::no_snapshot());
            }
            caller.note(&app, "remove-snapshot", "snapshot", None, None);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    };
    app.carry_out(change).await
}

fn host(app: &App) -> Result<Arc<dyn SnapshotHost>, Problem> {
    app.broker().snapshots().ok_or_else(Problem::no_route)
}
