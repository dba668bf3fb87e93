//! The hook: an HTTP service that decides the log-ins of users that the user store does not have.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstem_security::{LogIn, MAX_ROLES, Proof, check_name};
use serde_json::{Map, Value, json};

use crate::clock::unix_ms;
use crate::http_client::HttpClient;
use crate::service::{Answer, Service, ServiceLimits};

/// Where the service is, and how long it may take.
#[derive(Clone, Debug)]
pub struct HookSettings {
    /// Its URL.
    pub url: String,
    /// PEM file with the authorities that are trusted for the URL; `None` for those of the system.
    pub ca_file: Option<PathBuf>,
    /// Value of the header `Authorization`.
    pub authorization: Option<String>,
    /// Longest time for an answer.
    pub timeout: Duration,
    /// How much it is asked.
    pub limits: ServiceLimits,
}

/// The service, and what is known of it.
pub struct Hook {
    client: HttpClient,
    authorization: Option<String>,
    service: Service,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("url", &self.client.url()).finish_non_exhaustive()
    }
}

impl Hook {
    /// Starts the threads. The service is not asked before the first log-in.
    ///
    /// # Errors
    /// A message for the user: the URL or the file of authorities is invalid, or a thread does not start.
    pub fn open(settings: HookSettings) -> Result<Self, String> {
        let client = HttpClient::new(&settings.url, settings.ca_file.as_deref(), settings.timeout)
            .map_err(|error| format!("log_in_hook.url: {error}"))?;
        let name = format!("log-in hook {}", settings.url);
        let service = Service::start(name, "log-in-hook", settings.limits)?;
        Ok(Self { client, authorization: settings.authorization, service })
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// Asks the service, and waits for the answer.
    pub(crate) fn ask(&self, log_in: &LogIn) -> Answer {
        let Ok(password) = std::str::from_utf8(&log_in.password) else { return Answer::Denied };
        if check_name(&log_in.user).is_err() {
            return Answer::Denied;
        }
        let request = request(log_in, password);
        self.service.answer(request.as_bytes(), || {
            let (status, body) = self.client.post(&request, self.authorization.as_deref())?;
            answer(status, &body)
        })
    }
}

/// The request, as `docs/security.md` describes it.
fn request(log_in: &LogIn, password: &str) -> String {
    json!({
        "user": *log_in.user,
        "password": password,
        "client_id": log_in.client_id.as_deref(),
        "address": log_in.address.map(|address| address.to_string()),
        "protocol": log_in.protocol,
        "common_name": log_in.certified.common_name.as_deref(),
    })
    .to_string()
}

/// Reads a response.
///
/// # Errors
/// It says neither that the client is allowed nor that it is not.
fn answer(status: u16, body: &[u8]) -> Result<Answer, String> {
    match status {
        204 => return Ok(Answer::Allowed(Arc::new(Proof { is_external: true, ..Proof::default() }))),
        401 | 403 => return Ok(Answer::Denied),
        200 => {}
        _ => return Err(format!("the answer has the status {status}")),
    }
    let answer: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON object: {error}"))?;
    match answer.get("result").and_then(Value::as_str) {
        Some("allow") => {}
        Some("deny") => return Ok(Answer::Denied),
        _ => return Err("the answer has neither allow nor deny as its result".into()),
    }
    // A role that is left out could be one that rules deny something.
    let roles: Option<Vec<&str>> = match answer.get("roles") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(roles) => roles.as_array().and_then(|roles| roles.iter().map(Value::as_str).collect()),
    };
    let roles =
        roles.filter(|roles| roles.len() <= MAX_ROLES && roles.iter().all(|role| check_name(role).is_ok()));
    let roles = roles.ok_or("the answer has invalid roles")?;
    let expires_ms = match answer.get("expires_at") {
        None | Some(Value::Null) => None,
        Some(end) => {
            let end_s =
                end.as_u64().ok_or("the answer has an invalid expires_at: it is a Unix time in seconds")?;
            Some(end_s.saturating_mul(1000))
        }
    };
    if expires_ms.is_some_and(|end_ms| end_ms <= unix_ms()) {
        return Ok(Answer::Denied);
    }
    let roles = roles.into_iter().map(Into::into).collect();
    Ok(Answer::Allowed(Arc::new(Proof { is_external: true, roles, expires_ms, ..Proof::default() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_so_allows() {
        let allowed = |roles: &[&str], expires_ms| {
            let roles = roles.iter().map(|role| (*role).into()).collect();
            Ok(Answer::Allowed(Arc::new(Proof { is_external: true, roles, expires_ms, ..Proof::default() })))
        };
        assert_eq!(answer(204, b""), allowed(&[], None));
        assert_eq!(answer(200, br#"{"result":"allow"}"#), allowed(&[], None));
        let whole = br#"{"result":"allow","roles":["a","b"],"expires_at":4102444800,"else":1}"#;
        assert_eq!(answer(200, whole), allowed(&["a", "b"], Some(4_102_444_800_000)));
        for (status, body) in [
            (401, ""),
            (403, "x"),
            (200, r#"{"result":"deny"}"#),
            (200, r#"{"result":"allow","expires_at":1}"#),
        ] {
            assert_eq!(answer(status, body.as_bytes()), Ok(Answer::Denied), "{status} {body}");
        }
        for (status, body) in [
            (200, ""),
            (200, "ok"),
            (200, "[]"),
            (200, "{}"),
            (200, r#"{"result":true}"#),
            (200, r#"{"result":"ignore"}"#),
            (200, r#"{"result":"allow","roles":"admin"}"#),
            (200, r#"{"result":"allow","roles":["admin",1]}"#),
            (200, r#"{"result":"allow","roles":[""]}"#),
            (200, r#"{"result":"allow","expires_at":"soon"}"#),
            (200, r#"{"result":"allow","expires_at":-1}"#),
            (201, r#"{"result":"allow"}"#),
            (302, ""),
            (404, ""),
            (500, r#"{"result":"allow"}"#),
        ] {
            assert!(answer(status, body.as_bytes()).is_err(), "{status} {body}");
        }
    }
}
