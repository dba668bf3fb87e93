//! Responses with a JSON body.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    with_json(status, value.to_string().into())
}

pub(crate) fn with_json(status: StatusCode, body: Body) -> Response {
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
