//! The hook: an HTTP service that decides the log-ins of users that the user store does not have.
//!
//! The service may be slow or away, and must then cost nobody else anything. It has threads of its own, so that only so
//! many requests are under way, and a bounded number wait. Each takes a bounded time. After several failures in a row
//! it is not asked for a while. Whoever no answer allows is refused: no failure lets anybody in.
//!
//! Devices reconnect all at once after an outage. What was allowed a short time ago is therefore allowed again without
//! a request, if everything that the service is told is the same.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstem_security::{LogIn, MAX_ROLES, Proof, ScramAlgorithm, check_name};
use serde_json::{Map, Value, json};

use crate::clock::unix_ms;
use crate::http_client::HttpClient;
use crate::verifier::{Job, Pool};

/// Log-ins that wait for a thread.
const WAITING_MAX: usize = 1_000;
/// Answers that are kept.
const KEPT_MAX: usize = 10_000;

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
    /// Requests at the same time.
    pub threads: usize,
    /// How long an allowed log-in is allowed again without a request; zero for never.
    pub keep: Duration,
    /// Failures in a row after which the service is not asked.
    pub failures_max: u32,
    /// How long it is not asked then.
    pub pause: Duration,
}

/// The service, and what is known of it.
pub struct Hook {
    client: HttpClient,
    settings: HookSettings,
    pool: Pool,
    /// Key of the hashes under which answers are kept, so that no password is.
    secret: [u8; 32],
    kept: Mutex<BTreeMap<Vec<u8>, Kept>>,
    health: Mutex<Health>,
}

/// An answer that is kept.
struct Kept {
    until: Instant,
    proof: Arc<Proof>,
}

#[derive(Default)]
struct Health {
    /// Failures since the last answer.
    failures: u32,
    paused_until: Option<Instant>,
}

/// What becomes of a log-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The client is the user that it says.
    Allowed(Arc<Proof>),
    Denied,
    /// There is no answer.
    Unavailable,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook").field("url", &self.client.url()).finish_non_exhaustive()
    }
}

/// Ignores poisoning: no panic leaves the data behind these locks inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hook {
    /// Starts the threads. The service is not asked before the first log-in.
    ///
    /// # Errors
    /// A message for the user: the URL or the file of authorities is invalid, or a thread does not start.
    pub fn open(settings: HookSettings) -> Result<Self, String> {
        let client = HttpClient::new(&settings.url, settings.ca_file.as_deref(), settings.timeout)
            .map_err(|error| format!("log_in_hook.url: {error}"))?;
        let pool =
            Pool::start("log-in-hook", settings.threads, WAITING_MAX).map_err(|error| error.to_string())?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        Ok(Self { client, settings, pool, secret, kept: Mutex::default(), health: Mutex::default() })
    }

    /// Runs a job on a thread. Returns it if too many wait.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Job> {
        self.pool.submit(job)
    }

    /// Asks the service, and waits for the answer.
    pub(crate) fn ask(&self, log_in: &LogIn) -> Answer {
        let Ok(password) = std::str::from_utf8(&log_in.password) else { return Answer::Denied };
        if check_name(&log_in.user).is_err() {
            return Answer::Denied;
        }
        let request = request(log_in, password);
        let key = ScramAlgorithm::Sha256.hmac(&self.secret, request.as_bytes());
        if let Some(proof) = self.kept(&key) {
            return Answer::Allowed(proof);
        }
        if self.is_paused() {
            return Answer::Unavailable;
        }
        let response = self.client.post(&request, self.settings.authorization.as_deref());
        match response.and_then(|(status, body)| answer(status, &body)) {
            Ok(answer) => {
                self.note_answer();
                if let Answer::Allowed(proof) = &answer {
                    self.keep(key.clone(), proof);
                }
                answer
            }
            Err(error) => {
                self.note_failure(&error);
                Answer::Unavailable
            }
        }
    }

    fn kept(&self, key: &[u8]) -> Option<Arc<Proof>> {
        let kept = lock(&self.kept);
        let Kept { until, proof } = kept.get(key)?;
        let is_over = proof.expires_ms.is_some_and(|end_ms| end_ms <= unix_ms());
        (Instant::now() < *until && !is_over).then(|| Arc::clone(proof))
    }

    fn keep(&self, key: Vec<u8>, proof: &Arc<Proof>) {
        let now = Instant::now();
        if self.settings.keep.is_zero() {
            return;
        }
        let mut kept = lock(&self.kept);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, known| now < known.until);
        }
        if kept.len() < KEPT_MAX {
            kept.insert(key, Kept { until: now + self.settings.keep, proof: Arc::clone(proof) });
        }
    }

    fn is_paused(&self) -> bool {
        lock(&self.health).paused_until.is_some_and(|until| Instant::now() < until)
    }

    fn note_answer(&self) {
        let was_paused = {
            let mut health = lock(&self.health);
            health.failures = 0;
            health.paused_until.take().is_some()
        };
        if was_paused {
            log::info!("the log-in hook {} answers again", self.client.url());
        }
    }

    fn note_failure(&self, error: &str) {
        let HookSettings { failures_max, pause, .. } = self.settings;
        let (is_first, begins_pause) = {
            let mut health = lock(&self.health);
            health.failures = health.failures.saturating_add(1);
            let now = Instant::now();
            let begins_pause =
                health.failures >= failures_max && health.paused_until.is_none_or(|until| until <= now);
            if begins_pause {
                health.paused_until = Some(now + pause);
            }
            (health.failures == 1, begins_pause && health.failures == failures_max)
        };
        if is_first || begins_pause {
            let then = if begins_pause {
                format!("; it is not asked for {} ms", pause.as_millis())
            } else {
                String::new()
            };
            log::warn!("the log-in hook {} fails: {error}{then}", self.client.url());
        }
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
