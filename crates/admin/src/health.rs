//! `/v1/health`: liveness and readiness.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::response::json_response;

pub(crate) async fn live() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "live" }))
}

pub(crate) async fn ready(State(app): State<App>) -> Response {
    if app.is_draining() {
        return json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }));
    }
    let errors = app.broker().errors();
    if errors.is_empty() {
        return json_response(StatusCode::OK, &json!({ "status": "ready" }));
    }
    json_response(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "failing", "errors": errors }))
}
