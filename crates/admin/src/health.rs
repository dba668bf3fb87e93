//! `/v1/health`: whether the process lives, and whether it does its work.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::routes::answer;

pub(crate) async fn live() -> Response {
    answer(StatusCode::OK, &json!({ "status": "live" }))
}

pub(crate) async fn ready(State(app): State<App>) -> Response {
    if app.is_draining() {
        return answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "draining" }));
    }
    let faults = app.broker().faults();
    if faults.is_empty() {
        return answer(StatusCode::OK, &json!({ "status": "ready" }));
    }
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "failing", "faults": faults }))
}
