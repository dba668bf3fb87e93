//! `/v1/log` and `/v1/config/reload`: the level of the log, and reloads of the configuration.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainstem_security::ChangedSettings;
use serde::Deserialize;
use serde_json::Value;

use crate::access::Caller;
use crate::app::App;
use crate::broker::ConfigHost;
use crate::input::JsonBody;
use crate::problem::Problem;
use crate::response::json_response;

/// A change of the log.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogBody {
    level: String,
}

pub(crate) async fn show_log(State(app): State<App>) -> Result<Response, Problem> {
    Ok(json_response(StatusCode::OK, &host(&app)?.log()))
}

pub(crate) async fn set_log(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(LogBody { level }): JsonBody<LogBody>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let before = level_of(&host.log());
    host.set_log_level(&level).map_err(|error| Problem::invalid(format!("level: {error}")))?;
    let log = host.log();
    caller.note(&app, "set-log-level", "log", Some(before), Some(level_of(&log)));
    Ok(json_response(StatusCode::OK, &log))
}

fn level_of(log: &Value) -> ChangedSettings {
    [("level".to_owned(), log["level"].as_str().unwrap_or_default().to_owned())].into_iter().collect()
}

/// Reading files blocks, and a reload that has begun ends although its client has gone.
pub(crate) async fn reload(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Problem> {
    let (host, audited) = (host(&app)?, app.clone());
    let reload = move || {
        let report = host.reload().map_err(Problem::invalid)?;
        caller.note(&audited, "reload-config", "config", None, None);
        Ok(json_response(StatusCode::OK, &report))
    };
    app.carry_out_blocking(reload).await
}

fn host(app: &App) -> Result<Arc<dyn ConfigHost>, Problem> {
    app.broker().config().ok_or_else(Problem::no_route)
}
