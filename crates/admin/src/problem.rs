//! Refusals as `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstem_queue::Refusal;
use serde_json::{Map, Value, json};

/// Time after which a client may try again, seconds.
const RETRY_AFTER_S: u16 = 1;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    status: StatusCode,
    /// Last part of its type.
    kind: &'static str,
    detail: String,
    /// What became of each part of the request, if it had several.
    results: Option<Value>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), results: None }
    }

    /// The request cannot be read.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// The request can be read and asks for what there is not.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// The body is none of the kinds that are taken here.
    pub(crate) fn media_type() -> Self {
        let detail = "the body must be JSON, with content-type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail)
    }

    /// The body is larger than `most` bytes.
    pub(crate) fn body_too_large(most: usize) -> Self {
        let detail = format!("the request's body is larger than {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    }

    /// The client was too slow.
    pub(crate) fn too_slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", "the request's body did not come in time")
    }

    /// A web page of somebody else has sent it.
    pub(crate) fn cross_site() -> Self {
        let detail = "requests of web pages, which have a header Origin, are refused";
        Self::new(StatusCode::FORBIDDEN, "cross-site", detail)
    }

    /// Nothing is found there.
    pub(crate) fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-route", "there is nothing at this path; see /openapi.json")
    }

    /// There is no binding of this name.
    pub(crate) fn no_binding() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-binding", "there is no such binding")
    }

    /// Something is found there, and does not take this method.
    pub(crate) fn method() -> Self {
        let detail = "this path does not take this method; see the header Allow";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail)
    }

    /// The broker has not answered, and may have done it or not.
    pub(crate) fn unanswered() -> Self {
        let detail = "the broker has not answered; what was asked for may have been done or not";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unanswered", detail)
    }

    /// The broker has too much to do.
    pub(crate) fn busy() -> Self {
        Self::from(&Refusal::Busy)
    }

    /// There are as many connections as there may be.
    pub(crate) fn crowded() -> Self {
        let detail = "there are as many connections as there may be";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "connections", detail)
    }

    /// Puts what became of each part beside it.
    pub(crate) fn with_results(self, results: Value) -> Self {
        Self { results: Some(results), ..self }
    }

    /// As it stands in a body.
    pub(crate) fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("type".into(), json!(format!("urn:mainstem:problem:{}", self.kind)));
        object.insert("title".into(), json!(self.status.canonical_reason().unwrap_or("Error")));
        object.insert("status".into(), json!(self.status.as_u16()));
        object.insert("detail".into(), json!(self.detail));
        if let Some(results) = &self.results {
            object.insert("results".into(), results.clone());
        }
        Value::Object(object)
    }
}

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let (status, kind) = match refusal {
            Refusal::UnknownQueue => (StatusCode::NOT_FOUND, "unknown-queue"),
            Refusal::UnknownGroup => (StatusCode::NOT_FOUND, "unknown-group"),
            Refusal::NotAQueue => (StatusCode::CONFLICT, "not-a-queue"),
            Refusal::Exists => (StatusCode::CONFLICT, "exists"),
            Refusal::Stale => (StatusCode::CONFLICT, "stale"),
            Refusal::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            Refusal::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            Refusal::Full => (StatusCode::TOO_MANY_REQUESTS, "full"),
            Refusal::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too-many"),
            Refusal::Storage => (StatusCode::SERVICE_UNAVAILABLE, "storage"),
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        };
        Self::new(status, kind, refusal.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = self.json().to_string();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}
