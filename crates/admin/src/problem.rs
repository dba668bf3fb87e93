//! Error responses: `application/problem+json` (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstem_queue_core::QueueError;
use mainstem_security::ChangeError;
use serde_json::{Map, Value, json};

/// Delay after which a client may retry, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    status: StatusCode,
    /// Last segment of the problem type.
    kind: &'static str,
    detail: String,
    /// Result of each item of a batch request.
    results: Option<Value>,
    /// When to try again, seconds.
    retry_after_s: u64,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), results: None, retry_after_s: RETRY_AFTER_S }
    }

    /// The request cannot be parsed.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", detail)
    }

    /// The request is well-formed and has invalid values.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    pub(crate) fn media_type() -> Self {
        let detail = "the request body must be JSON with content-type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media-type", detail)
    }

    pub(crate) fn body_too_large(max_bytes: usize) -> Self {
        let detail = format!("the request body is larger than {max_bytes} bytes (http.max_body_bytes)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    }

    pub(crate) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "too-slow",
            "the request body did not arrive in time (http.request_timeout_ms)",
        )
    }

    pub(crate) fn slow_head() -> Self {
        let detail = "the request head did not arrive in time (http.request_timeout_ms)";
        Self::new(StatusCode::REQUEST_TIMEOUT, "too-slow", detail)
    }

    /// The head of the request is too large: its first line, or the head as a whole.
    pub(crate) fn head_too_large(has_request_line: bool, max_bytes: usize) -> Self {
        if has_request_line {
            let detail = format!("the request head is larger than {max_bytes} bytes");
            return Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large", detail);
        }
        let detail = format!("the request line is longer than {max_bytes} bytes");
        Self::new(StatusCode::URI_TOO_LONG, "head-too-large", detail)
    }

    pub(crate) fn too_many_headers(max: usize) -> Self {
        let detail = format!("the request has more than {max} headers");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large", detail)
    }

    pub(crate) fn version() -> Self {
        let detail = "this server speaks HTTP/1.1 and HTTP/1.0";
        Self::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "version", detail)
    }

    pub(crate) fn transfer_encoding() -> Self {
        let detail = "the only transfer encoding of a request is chunked";
        Self::new(StatusCode::NOT_IMPLEMENTED, "transfer-encoding", detail)
    }

    /// The request names the server by a name that is not allowed.
    pub(crate) fn host(name: &str) -> Self {
        let detail = format!(
            "requests must name this server by an IP address, localhost, or a name of http.allowed_hosts, which does \
             not have {name:?}"
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, "host", detail)
    }

    /// A web page of an origin that is not allowed sent the request.
    pub(crate) fn cross_site(origin: &str) -> Self {
        let detail = format!(
            "web pages of the origin {origin:?} may not use the API: http.allowed_origins does not have it"
        );
        Self::new(StatusCode::FORBIDDEN, "cross-site", detail)
    }

    /// The request has no valid user name and password, API key or token. Nothing tells what is wrong with them.
    pub(crate) fn log_in() -> Self {
        let detail = "this request needs the name and the password of a user (basic authentication), or an API key or a token (bearer)";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    pub(crate) fn log_in_limited() -> Self {
        let detail = "too many log-ins are waiting or have failed (security.max_waiting_log_ins, \
                      security.max_failed_log_ins_per_address, security.max_failed_log_ins_per_user)";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "log-ins", detail)
    }

    /// The service that decides log-ins does not answer.
    pub(crate) fn log_in_unavailable() -> Self {
        let detail = "the service that decides log-ins does not answer (log_in_hook.url)";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "log-in-unavailable", detail)
    }

    /// The user has sent too many requests.
    pub(crate) fn over_quota(wait_ms: u64) -> Self {
        let detail =
            format!("the quota http_request_rate of the user is exceeded: try again in {wait_ms} ms");
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "quota", detail);
        Self { retry_after_s: wait_ms.div_ceil(1000).max(1), ..problem }
    }

    pub(crate) fn banned() -> Self {
        Self::new(StatusCode::FORBIDDEN, "banned", "the user or the address is banned (mainstem ban)")
    }

    pub(crate) fn first_user() -> Self {
        let detail = "while there are no users, only clients on this machine may change users and rules";
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn forbidden(action: &str, kind: &str, name: &str) -> Self {
        let object = if name.is_empty() { kind.to_owned() } else { format!("{kind}:{name}") };
        Self::new(StatusCode::FORBIDDEN, "forbidden", format!("no rule allows the user {action} on {object}"))
    }

    pub(crate) fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no-route", "unknown path; see /openapi.json")
    }

    pub(crate) fn no_binding() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-binding", "there is no such binding")
    }

    pub(crate) fn no_snapshot() -> Self {
        Self::new(StatusCode::NOT_FOUND, "unknown-snapshot", "there is no such snapshot")
    }

    /// A snapshot cannot be taken or removed now.
    pub(crate) fn snapshot(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "snapshot", detail)
    }

    pub(crate) fn method() -> Self {
        let detail = "this path does not support this method; see the Allow header";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method", detail)
    }

    /// The broker did not reply; the request may or may not have taken effect.
    pub(crate) fn unanswered() -> Self {
        let detail = "the broker did not reply; the request may or may not have taken effect";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unanswered", detail)
    }

    pub(crate) fn busy() -> Self {
        Self::from(&QueueError::Busy)
    }

    pub(crate) fn too_many_connections() -> Self {
        let detail = "all connections have a request under way (http.max_connections); only health and metrics are served";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "connections", detail)
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn with_results(self, results: Value) -> Self {
        Self { results: Some(results), ..self }
    }

    /// Returns a complete response that ends the connection.
    pub(crate) fn last_response(&self) -> String {
        let body = self.json().to_string();
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.status,
            body.len()
        )
    }

    /// Returns the response body.
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

impl From<&QueueError> for Problem {
    fn from(error: &QueueError) -> Self {
        let (status, kind) = match error {
            QueueError::UnknownQueue => (StatusCode::NOT_FOUND, "unknown-queue"),
            QueueError::UnknownGroup => (StatusCode::NOT_FOUND, "unknown-group"),
            QueueError::NotAQueue => (StatusCode::CONFLICT, "not-a-queue"),
            QueueError::Exists => (StatusCode::CONFLICT, "exists"),
            QueueError::Stale => (StatusCode::CONFLICT, "stale"),
            QueueError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            QueueError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            QueueError::Full => (StatusCode::TOO_MANY_REQUESTS, "full"),
            QueueError::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too-many"),
            QueueError::Storage => (StatusCode::SERVICE_UNAVAILABLE, "storage"),
            QueueError::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        };
        Self::new(status, kind, error.to_string())
    }
}

impl From<&ChangeError> for Problem {
    fn from(error: &ChangeError) -> Self {
        let (status, kind) = match error {
            ChangeError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            ChangeError::NotFound(_) => (StatusCode::NOT_FOUND, "not-found"),
            ChangeError::Exists(_) => (StatusCode::CONFLICT, "exists"),
            ChangeError::Log(_) => (StatusCode::SERVICE_UNAVAILABLE, "storage"),
            ChangeError::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        };
        Self::new(status, kind, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = self.json().to_string();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Basic realm=\"mainstem\", charset=\"UTF-8\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s));
        }
        response
    }
}
