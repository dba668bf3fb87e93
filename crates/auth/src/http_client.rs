//! A client of one HTTP service: of one that publishes the keys of tokens, or of one that decides log-ins.
//!
//! Whoever can read or change what goes between would let anybody in, or learn passwords. So a URL is used only with
//! TLS or on this machine, redirects are not followed, the proxy of the environment is ignored, and what a response may
//! contain and how long it may take is bounded.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::authorities::read_authorities;

/// Largest response, bytes.
const RESPONSE_BYTES_MAX: u64 = 1024 * 1024;

/// An HTTP client for one URL.
#[derive(Debug)]
pub(crate) struct HttpClient {
    agent: Agent,
    url: String,
}

impl HttpClient {
    /// # Errors
    /// The URL is not safe, or the file of authorities is invalid.
    pub(crate) fn new(url: &str, ca_file: Option<&Path>, timeout: Duration) -> Result<Self, String> {
        if !is_safe(url) {
            return Err(
                "expected https:// without a user, or http:// on this machine: whoever is on the way could let anybody \
                 in"
                    .to_owned(),
            );
        }
        // Redirects could lead to a URL that is not safe.
        let mut config = Agent::config_builder()
            .proxy(None)
            .max_redirects(0)
            .http_status_as_error(false)
            .timeout_global(Some(timeout));
        if url.starts_with("https://") {
            config = config.tls_config(tls(ca_file)?);
        }
        Ok(Self { agent: config.build().into(), url: url.to_owned() })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// # Errors
    /// There is no response with status 200 in time.
    pub(crate) fn get(&self) -> Result<Vec<u8>, String> {
        let (status, body) = read(self.agent.get(&self.url).call())?;
        if status == 200 { Ok(body) } else { Err(format!("the answer has the status {status}")) }
    }

    /// Posts JSON. Returns the status of the response, and its body.
    ///
    /// # Errors
    /// There is no response in time.
    pub(crate) fn post(&self, json: &str, authorization: Option<&str>) -> Result<(u16, Vec<u8>), String> {
        let mut request = self.agent.post(&self.url).header("Content-Type", "application/json");
        if let Some(value) = authorization {
            request = request.header("Authorization", value);
        }
        read(request.send(json))
    }
}

fn read(response: Result<Response<Body>, ureq::Error>) -> Result<(u16, Vec<u8>), String> {
    let mut response = response.map_err(|error| error.to_string())?;
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
    Ok((status, body.read_to_vec().map_err(|error| error.to_string())?))
}

fn is_safe(url: &str) -> bool {
    let authority = |rest: &str| rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
    if let Some(rest) = url.strip_prefix("https://") {
        // The log names the URL, which must not have a password.
        return !authority(rest).contains('@');
    }
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let authority = authority(rest);
    let host = authority.rsplit_once(':').map_or(&*authority, |(host, _)| host);
    !authority.contains('@') && matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

fn tls(ca_file: Option<&Path>) -> Result<TlsConfig, String> {
    let roots = read_authorities(ca_file)?;
    let roots: Vec<_> = roots.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&roots));
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_fetched_over_tls_or_from_this_machine() {
        for (url, expected) in [
            ("https://id.example.com/keys", true),
            ("https://id.example.com/keys?by=a@b", true),
            ("https://user:secret@id.example.com/keys", false),
            ("http://127.0.0.1:8080/keys", true),
            ("http://localhost/keys", true),
            ("http://[::1]:80/keys", true),
            ("http://id.example.com/keys", false),
            ("http://localhost.example.com/", false),
            ("http://127.0.0.1@example.com/", false),
            ("http://127.0.0.1:80@example.com/", false),
            ("file:///etc/passwd", false),
            ("", false),
        ] {
            assert_eq!(is_safe(url), expected, "{url}");
        }
    }
}
