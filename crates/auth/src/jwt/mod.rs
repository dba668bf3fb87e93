//! Tokens (JWT): who verifies them, with which keys, and how the keys change.
//!
//! Keys come from files and from a URL. The thread "token-keys" reads them again at an interval, and when a token names
//! a key that is not known, but not more often than a bound says. Log-ins with such a token wait on that thread; those
//! with known keys never wait for a server of keys.

mod keys;
mod token;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use self::keys::{Key, of_jwks, of_pem, of_secret};
pub use self::token::TokenRules;
pub(crate) use self::token::{Refusal, TokenUser, is_token};
use crate::http_client::HttpClient;
use crate::verifier::Job;

/// Log-ins that wait for a key.
const WAITING_MAX: usize = 1000;
/// Largest file of keys, bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Characters of the reason in a log line about a refused token.
const LOGGED_CHARS: usize = 200;
/// Shortest time between two log lines about refused tokens.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Where keys come from, and what tokens must have.
#[derive(Clone, Debug, Default)]
pub struct TokenSettings {
    /// What tokens must have, and what their claims mean.
    pub rules: TokenRules,
    /// A secret.
    pub secret: Option<String>,
    /// File with a secret.
    pub secret_file: Option<PathBuf>,
    /// PEM file with public keys.
    pub public_key_file: Option<PathBuf>,
    /// File with a JSON Web Key set.
    pub jwks_file: Option<PathBuf>,
    /// URL of a JSON Web Key set.
    pub jwks_url: Option<String>,
    /// PEM file with the authorities that are trusted for the URL; `None` for those of the system.
    pub jwks_ca_file: Option<PathBuf>,
    /// How often keys are read.
    pub refresh: Duration,
    /// How soon they are read again for a token with an unknown key.
    pub refresh_min: Duration,
    /// Longest time for the URL to answer.
    pub timeout: Duration,
}

/// Verifies tokens.
pub struct Tokens {
    shared: Arc<Shared>,
    /// Log-ins whose key is not known.
    waiting: SyncSender<Job>,
}

struct Shared {
    settings: TokenSettings,
    fetcher: Option<HttpClient>,
    /// The keys of each source; those of a source that fails stay.
    keys: RwLock<Arc<Sources>>,
    logged: Mutex<Option<Instant>>,
}

/// Parses the content of a file.
type Parse = fn(&[u8]) -> Result<Vec<Key>, String>;

#[derive(Clone, Debug, Default)]
struct Sources {
    by_source: Vec<(String, Vec<Key>)>,
    all: Vec<Key>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the keys of files, and starts the thread. A URL that does not answer is asked again later.
    ///
    /// # Errors
    /// A message for the user: a file is invalid, or the thread does not start.
    pub fn open(settings: TokenSettings) -> Result<Self, String> {
        let fetcher = settings.jwks_url.as_deref().map(|url| {
            HttpClient::new(url, settings.jwks_ca_file.as_deref(), settings.timeout)
                .map_err(|error| format!("jwt.jwks_url: {error}"))
        });
        let (fetcher, logged) = (fetcher.transpose()?, Mutex::default());
        let shared = Arc::new(Shared { settings, fetcher, keys: RwLock::default(), logged });
        let mut sources = Sources::default();
        for (source, keys) in shared.read_files() {
            sources.by_source.push((source.clone(), keys.map_err(|error| format!("{source}: {error}"))?));
        }
        shared.replace(sources);
        let (waiting, jobs) = sync_channel(WAITING_MAX);
        let run = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("token-keys".into());
        thread.spawn(move || run.run(&jobs)).map_err(|error| error.to_string())?;
        Ok(Self { shared, waiting })
    }

    /// Verifies a token with the keys that are known.
    ///
    /// # Errors
    /// It is not valid now.
    pub(crate) fn verify(&self, token: &[u8]) -> Result<TokenUser, Refusal> {
        self.shared.verify(token)
    }

    /// Runs a job when the keys have been read again, if that is due. Returns it if too many wait.
    pub(crate) fn after_refresh(&self, job: Job) -> Result<(), Job> {
        self.waiting.try_send(job).map_err(|error| match error {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }

    /// Logs why a token is refused, at intervals: it may be in anybody's hands, so it is not shown.
    pub(crate) fn log_refusal(&self, refusal: &Refusal) {
        let mut logged = self.shared.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            *logged = Some(Instant::now());
            match refusal {
                Refusal::UnknownKey => log::info!("a token is refused: it names a key that is not known"),
                Refusal::Invalid(what) => {
                    // It may quote what a stranger has sent.
                    let what: String = what.chars().take(LOGGED_CHARS).flat_map(char::escape_debug).collect();
                    log::info!("a token is refused: {what}");
                }
            }
        }
    }
}

impl Shared {
    fn verify(&self, token: &[u8]) -> Result<TokenUser, Refusal> {
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        token::verify(token, &keys.all, &self.settings.rules)
    }

    fn replace(&self, mut sources: Sources) {
        sources.all = sources.by_source.iter().flat_map(|(_, keys)| keys.iter().cloned()).collect();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(sources);
    }

    /// The keys of the secret and of each file.
    fn read_files(&self) -> Vec<(String, Result<Vec<Key>, String>)> {
        let TokenSettings { secret, secret_file, public_key_file, jwks_file, .. } = &self.settings;
        let files: [(&str, &Option<PathBuf>, Parse); 3] = [
            ("jwt.secret_file", secret_file, of_secret),
            ("jwt.public_key_file", public_key_file, of_pem),
            ("jwt.jwks_file", jwks_file, of_jwks),
        ];
        let read = |(key, file, parse): (&str, &Option<PathBuf>, Parse)| {
            let file = file.as_ref()?;
            let keys = read_file(file).map_err(|error| error.to_string()).and_then(|bytes| parse(&bytes));
            Some((format!("{key}: {}", file.display()), keys))
        };
        let secret = secret.as_ref().map(|secret| ("jwt.secret".to_owned(), of_secret(secret.as_bytes())));
        secret.into_iter().chain(files.into_iter().filter_map(read)).collect()
    }

    fn run(&self, jobs: &Receiver<Job>) {
        let TokenSettings { refresh, refresh_min, .. } = self.settings;
        let mut failures: Vec<(String, String)> = Vec::new();
        // Files have been read; a URL has not.
        let mut read_at = self.fetcher.is_none().then(Instant::now);
        loop {
            if read_at.is_none_or(|at| at.elapsed() >= refresh) {
                self.refresh(&mut failures);
                read_at = Some(Instant::now());
            }
            let due = read_at.map_or(refresh, |at| refresh.saturating_sub(at.elapsed()));
            let mut ready = match jobs.recv_timeout(due) {
                Ok(job) => vec![job],
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            ready.extend(jobs.try_iter());
            if read_at.is_none_or(|at| at.elapsed() >= refresh_min) {
                self.refresh(&mut failures);
                read_at = Some(Instant::now());
            }
            for job in ready {
                job();
            }
        }
    }

    /// Reads all keys again. The keys of a source that fails stay; each new failure is logged once.
    fn refresh(&self, failures: &mut Vec<(String, String)>) {
        let mut read = self.read_files();
        if let Some(fetcher) = &self.fetcher {
            let keys = fetcher.get().and_then(|text| of_jwks(&text));
            read.push((format!("jwt.jwks_url: {}", fetcher.url()), keys));
        }
        let known = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        let mut sources = Sources::default();
        for (source, keys) in read {
            let before = known.by_source.iter().find(|(name, _)| *name == source);
            let failed_before = failures.iter().position(|(name, _)| *name == source);
            let failed_before = failed_before.map(|at| failures.swap_remove(at).1);
            let keys = match keys {
                Ok(keys) => keys,
                Err(error) => {
                    if failed_before.as_ref() != Some(&error) {
                        log::error!("{source}: {error}; the keys that are known stay");
                    }
                    failures.push((source.clone(), error));
                    before.map(|(_, keys)| keys.clone()).unwrap_or_default()
                }
            };
            sources.by_source.push((source, keys));
        }
        self.replace(sources);
    }
}

fn read_file(file: &Path) -> io::Result<Vec<u8>> {
    let bytes = std::fs::metadata(file)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("has {bytes} bytes, more than {FILE_BYTES_MAX}")));
    }
    std::fs::read(file)
}

#[cfg(test)]
mod tests;
