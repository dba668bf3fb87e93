//! What the services have in common that decide log-ins outside the broker: an HTTP service, a directory.
//!
//! A service may be slow or away, and must then cost nobody else anything. It has threads of its own, so that only so
//! many requests are under way, and a bounded number wait. After several failures in a row it is not asked for a while.
//! Whoever no answer allows is refused: no failure lets anybody in.
//!
//! Devices reconnect all at once after an outage. What was allowed a short time ago is therefore allowed again without
//! a request, if everything that the service is told is the same.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstem_security::{Proof, ScramAlgorithm};

use crate::clock::unix_ms;
use crate::verifier::{Job, Pool};

/// Log-ins that wait for a thread.
const WAITING_MAX: usize = 1_000;
/// Answers that are kept.
const KEPT_MAX: usize = 10_000;

/// How much a service is asked, and when it is not.
#[derive(Clone, Copy, Debug)]
pub struct ServiceLimits {
    /// Requests at the same time.
    pub threads: usize,
    /// How long an allowed log-in is allowed again without a request; zero for never.
    pub keep: Duration,
    /// Failures in a row after which the service is not asked.
    pub failures_max: u32,
    /// How long it is not asked then.
    pub pause: Duration,
}

/// A service, and what is known of it.
pub(crate) struct Service {
    /// What it is and its URL, for the log.
    name: String,
    limits: ServiceLimits,
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

/// Ignores poisoning: no panic leaves the data behind these locks inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    /// Starts the threads. `name` is what the log calls the service.
    ///
    /// # Errors
    /// A message for the user: a thread does not start.
    pub(crate) fn start(name: String, thread: &str, limits: ServiceLimits) -> Result<Self, String> {
        let pool = Pool::start(thread, limits.threads, WAITING_MAX).map_err(|error| error.to_string())?;
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        Ok(Self { name, limits, pool, secret, kept: Mutex::default(), health: Mutex::default() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a job on a thread. Returns it if too many wait.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Job> {
        self.pool.submit(job)
    }

    /// The answer that is kept for `request`, which is all that the service is told, or the one that `ask` gets. Its
    /// error is a failure of the service.
    pub(crate) fn answer(&self, request: &[u8], ask: impl FnOnce() -> Result<Answer, String>) -> Answer {
        let key = ScramAlgorithm::Sha256.hmac(&self.secret, request);
        if let Some(proof) = self.kept(&key) {
            return Answer::Allowed(proof);
        }
        if self.is_paused() {
            return Answer::Unavailable;
        }
        match ask() {
            Ok(answer) => {
                self.note_answer();
                if let Answer::Allowed(proof) = &answer {
                    self.keep(key, proof);
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
        if self.limits.keep.is_zero() {
            return;
        }
        let mut kept = lock(&self.kept);
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, known| now < known.until);
        }
        if kept.len() < KEPT_MAX {
            kept.insert(key, Kept { until: now + self.limits.keep, proof: Arc::clone(proof) });
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
            log::info!("the {} answers again", self.name);
        }
    }

    fn note_failure(&self, error: &str) {
        let ServiceLimits { failures_max, pause, .. } = self.limits;
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
            log::warn!("the {} fails: {error}{then}", self.name);
        }
    }
}
