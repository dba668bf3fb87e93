//! Client of the broker's HTTP API.

use std::fmt::Write as _;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use ureq::http::{Method, Request};
use ureq::{Agent, Error};

use crate::cli::{HttpArgs, with_default_port};
use crate::tool::failure::{Failure, io_message};
use crate::tool::tls::http_config;

/// Largest response, in bytes.
const RESPONSE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Port of the HTTP API unless the flag names another, or is a URL.
const PORT: u16 = 8080;
const HTTP: &str = "http://";
const HTTPS: &str = "https://";

/// The HTTP API of a broker.
pub(super) struct Http {
    agent: Agent,
    /// Scheme, host and port.
    url: String,
    timeout: Duration,
    /// Value of the header `authorization`.
    authorization: Option<String>,
}

impl Http {
    /// Connects with the first request.
    ///
    /// # Errors
    /// A file of the TLS flags cannot be used.
    pub(super) fn new(args: &HttpArgs) -> Result<Self, Failure> {
        let url = base_url(&args.broker, args.tls.is_set())?;
        // Error statuses have a body with the reason, so they are not errors of the agent.
        let mut config = Agent::config_builder().http_status_as_error(false).proxy(None).max_redirects(0);
        if url.starts_with(HTTPS) {
            config = config.tls_config(http_config(&args.tls)?);
        }
        Ok(Self {
            agent: config.build().into(),
            url,
            timeout: args.request_timeout,
            authorization: authorization(args),
        })
    }

    /// Sends a request and returns the JSON of the response, or null if it has no body.
    ///
    /// # Errors
    /// If there is no response, or it is an error. Messages begin with `context`.
    pub(super) fn request(
        &self,
        context: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        self.request_with_wait(context, method, path, body, Duration::ZERO)
    }

    /// Sends a request that the broker may hold for `wait` before it responds.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub(super) fn request_with_wait(
        &self,
        context: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
        wait: Duration,
    ) -> Result<Value, Failure> {
        let transport_failure =
            |error: Error| Failure::transient(format!("{}: {}", self.url, error_message(error)));
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(body).map_err(|error| transport_failure(error.into()))?;
        let request = self.agent.configure_request(request);
        let request = request.timeout_global(Some(self.timeout + wait)).build();
        let mut response = self.agent.run(request).map_err(transport_failure)?;
        let text = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_string();
        let text = text.map_err(transport_failure)?;
        let value = if text.is_empty() { Ok(Value::Null) } else { serde_json::from_str(&text) };
        let Ok(value) = value else {
            return Err(Failure::new(format!("{}: the response is not JSON", self.url)));
        };
        if response.status().is_success() {
            return Ok(value);
        }
        let detail = value["detail"].as_str().map_or_else(|| response.status().to_string(), Into::into);
        Err(Failure::new(format!("{context}: {detail}")))
    }
}

/// The URL of an address, or of a URL without a path. `uses_tls` is what the other flags say.
fn base_url(broker: &str, uses_tls: bool) -> Result<String, Failure> {
    match broker.split_once("://") {
        None => {
            let scheme = if uses_tls { HTTPS } else { HTTP };
            Ok(format!("{scheme}{}", with_default_port(broker, PORT)))
        }
        Some(("http", _)) if uses_tls => {
            Err(Failure::new(format!("{broker:?}: with TLS, the URL begins with {HTTPS}")))
        }
        Some(("http" | "https", host)) if !host.trim_end_matches('/').is_empty() => {
            Ok(broker.trim_end_matches('/').to_owned())
        }
        Some(_) => Err(Failure::new(format!("{broker:?}: expected HOST[:PORT] or https://host[:port]"))),
    }
}

/// Basic authentication with the user of the flags, or of the environment.
fn authorization(args: &HttpArgs) -> Option<String> {
    let or_env = |flag: &Option<String>, name: &str| flag.clone().or_else(|| std::env::var(name).ok());
    let user = or_env(&args.username, "MAINSTEM_USERNAME")?;
    let password = or_env(&args.password, "MAINSTEM_PASSWORD").unwrap_or_default();
    Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

fn error_message(error: Error) -> String {
    match error {
        Error::Io(error) => io_message(&error),
        Error::Timeout(_) => "no response in time".into(),
        Error::ConnectionFailed => "connection failed".into(),
        Error::HostNotFound => "no such host".into(),
        error => error.to_string(),
    }
}

/// The path of a queue, followed by `rest`.
pub(super) fn path(queue: &str, rest: &str) -> String {
    format!("/v1/queues/{}{rest}", escape(queue))
}

/// Percent-encodes text for a path or a query.
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
    fn addresses_and_urls_are_completed() {
        for (broker, uses_tls, url) in [
            ("h", false, "http://h:8080"),
            ("h:1", true, "https://h:1"),
            ("::1", true, "https://[::1]:8080"),
            ("https://h", false, "https://h"),
            ("https://h:8443/", true, "https://h:8443"),
            ("http://h", false, "http://h"),
        ] {
            assert_eq!(base_url(broker, uses_tls), Ok(url.to_owned()));
        }
        for (broker, uses_tls) in [("http://h", true), ("ftp://h", false), ("https://", false)] {
            assert!(base_url(broker, uses_tls).is_err(), "{broker}");
        }
    }

    #[test]
    fn percent_encodes_reserved_characters() {
        assert_eq!(path("jobs.dead", "/peek"), "/v1/queues/jobs.dead/peek");
        assert_eq!(escape("a/b?é &"), "a%2Fb%3F%C3%A9%20%26");
    }
}
