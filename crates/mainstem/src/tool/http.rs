//! Requests to the operations door, and its answers.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request};
use ureq::{Agent, Error};

use crate::cli::HttpArgs;
use crate::tool::failure::{Failure, io_words};

/// Largest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// The operations door of a broker.
pub(super) struct Http {
    agent: Agent,
    address: String,
    patience: Duration,
}

impl Http {
    /// As the flags say. Connects with the first request.
    pub(super) fn new(args: &HttpArgs) -> Self {
        // Without a proxy, and every status is an answer.
        let config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        Self { agent: config.build().into(), address: args.http.clone(), patience: args.patience }
    }

    /// Asks for `path`, and takes the answer, which is nothing where there is none.
    ///
    /// # Errors
    /// If there is no answer, or a refusal, as `what` has it.
    pub(super) fn ask(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        self.ask_for(what, method, path, body, Duration::ZERO)
    }

    /// The same, with a request that waits for so long.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(super) fn ask_for(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
        waits: Duration,
    ) -> Result<Value, Failure> {
        let lost = |error: Error| Failure::lost(format!("{}: {}", self.address, words(error)));
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body).map_err(|error| lost(error.into()))?;
        let request = self.agent.configure_request(request);
        let request = request.timeout_global(Some(self.patience + waits)).build();
        let mut response = self.agent.run(request).map_err(lost)?;
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(lost)?;
        let value = if text.is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text) };
        let Ok(value) = value else {
            return Err(Failure::new(format!("{}: the answer is no JSON", self.address)));
        };
        if response.status().is_success() {
            return Ok(value);
        }
        let detail = value["detail"].as_str().map_or_else(|| response.status().to_string(), Into::into);
        Err(Failure::new(format!("{what}: {detail}")))
    }
}

/// An error as part of a sentence.
fn words(error: Error) -> String {
    match error {
        Error::Io(error) => io_words(&error),
        Error::Timeout(_) => "no answer in time".into(),
        Error::ConnectionFailed => "connection failed".into(),
        Error::HostNotFound => "no such host".into(),
        error => error.to_string(),
    }
}

/// The path of a queue, with what is behind it.
pub(super) fn path(queue: &str, rest: &str) -> String {
    format!("/v1/queues/{}{rest}", escape(queue))
}

/// Text as a part of a path or a query.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(byte.into());
        } else {
            write!(escaped, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_paths_is_escaped() {
        assert_eq!(path("jobs.dead", "/peek"), "/v1/queues/jobs.dead/peek");
        assert_eq!(escape("a/b?é &"), "a%2Fb%3F%C3%A9%20%26");
    }
}
