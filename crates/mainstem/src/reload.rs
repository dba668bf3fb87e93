//! Reloads of the configuration: on SIGHUP, and by the HTTP API.
//!
//! A reload is all or nothing. Everything that can fail comes first: the configuration is loaded and checked, and the
//! files that it names are read. Then only steps follow that cannot fail, but for one, which is the first of them. Keys
//! that the running broker cannot change keep their values; each reload reports them until a restart.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstem_admin::ConfigHost;
use mainstem_auth::{ConfiguredUsers, Host};
use mainstem_mqtt_server::config_value::text_literal;
use mainstem_security::SecurityHost;
use serde_json::{Value, json};

use crate::cli::ServeArgs;
use crate::config::{self, Change, Config, Entry};
use crate::listeners::Certificates;
use crate::logging::LogControl;

/// Reloads the configuration of the running broker.
pub(crate) struct Reloader {
    args: ServeArgs,
    /// The values that the broker uses.
    running: Mutex<Vec<Entry>>,
    parts: ReloadableParts,
}

/// The parts of the broker that can change while it runs.
pub(crate) struct ReloadableParts {
    pub(crate) log: Arc<LogControl>,
    pub(crate) certificates: Certificates,
    /// Takes the interval at which certificates are compared with their files.
    pub(crate) certificate_interval: Sender<Duration>,
    pub(crate) security: Arc<Host>,
}

/// What a reload has done.
#[derive(Debug)]
pub(crate) struct Report {
    /// Changes that are in use.
    applied: Vec<Change>,
    /// Changes that need a restart.
    restart: Vec<Change>,
    /// Files with new contents that are in use.
    files: Vec<String>,
}

impl Reloader {
    /// `entries` are the values that the broker was started with.
    pub(crate) fn new(args: ServeArgs, entries: Vec<Entry>, parts: ReloadableParts) -> Arc<Self> {
        Arc::new(Self { args, running: Mutex::new(entries), parts })
    }

    /// The certificates of the listeners.
    pub(crate) fn certificates(&self) -> &Certificates {
        &self.parts.certificates
    }

    /// Reads the configuration again, and applies what can change.
    ///
    /// # Errors
    /// What is wrong. Nothing has changed.
    pub(crate) fn reload(&self) -> Result<Report, String> {
        // Reloads take turns.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = config::load(&self.args).map_err(|problems| problems.to_string())?;
        let users = loaded.config.security.configured_users()?;
        let prepared = self.parts.certificates.read_again()?;
        self.note_log_level(&mut running);
        let entries = config::entries(&loaded);
        let (applied, restart) =
            config::changes(&running, &entries).into_iter().partition(Change::is_reloadable);

        let mut files = self.replace_users(users)?;
        files.extend(Certificates::replace(prepared));
        self.apply(&loaded.config)?;
        for entry in running.iter_mut().filter(|entry| entry.is_reloadable) {
            if let Some(new) = entries.iter().find(|new| new.path == entry.path) {
                *entry = new.clone();
            }
        }
        Ok(Report { applied, restart, files })
    }

    /// The level may have been set by the HTTP API.
    fn note_log_level(&self, running: &mut [Entry]) {
        let (level, _) = self.parts.log.level_and_format();
        if let Some(entry) = running.iter_mut().find(|entry| entry.path.to_string() == "log.level") {
            entry.value = text_literal(&level);
        }
    }

    /// Replaces the users of the configuration. Returns the password file, if its users have changed.
    fn replace_users(&self, users: ConfiguredUsers) -> Result<Vec<String>, String> {
        let has_changed = self.parts.security.published().state().settings().file_users != users.file_users;
        self.parts.security.replace_users(users).map_err(|error| format!("users: {error}"))?;
        Ok(if has_changed { vec!["security.password_file".to_owned()] } else { Vec::new() })
    }

    fn apply(&self, config: &Config) -> Result<(), String> {
        let Config { log, security, server, .. } = config;
        self.parts.security.set_failure_limits(
            security.max_failed_log_ins_per_address,
            security.max_failed_log_ins_per_user,
        );
        let interval = Duration::from_secs(server.certificate_check_interval_s.into());
        if self.parts.certificate_interval.send(interval).is_err() {
            log::debug!("no listener has certificates");
        }
        // The level was checked when the configuration was loaded.
        self.parts.log.set(&log.level, log.format)
    }
}

impl ConfigHost for Reloader {
    fn log(&self) -> Value {
        self.parts.log.show()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        let (_, format) = self.parts.log.level_and_format();
        self.parts.log.set(level, format)?;
        log::info!("log.level is {level} until the next reload, by the HTTP API");
        Ok(())
    }

    fn reload(&self) -> Result<Value, String> {
        let report = Self::reload(self)?;
        report.log();
        Ok(report.to_json())
    }
}

impl Report {
    /// Logs what has changed.
    pub(crate) fn log(&self) {
        for change in &self.applied {
            log::info!("reload: {} is {} now, was {}", change.path, after(change), before(change));
        }
        for file in &self.files {
            log::info!("reload: {file}: the new contents are used");
        }
        for change in &self.restart {
            log::warn!("reload: {} needs a restart to become {}", change.path, after(change));
        }
        if self.applied.is_empty() && self.files.is_empty() && self.restart.is_empty() {
            log::info!("reload: nothing has changed");
        }
    }

    fn to_json(&self) -> Value {
        let shown = |entry: &Option<Entry>| entry.as_ref().map(Entry::shown);
        let list = |changes: &[Change]| -> Vec<Value> {
            let change = |change: &Change| {
                json!({
                    "key": change.path.to_string(),
                    "before": shown(&change.before),
                    "after": shown(&change.after),
                })
            };
            changes.iter().map(change).collect()
        };
        json!({ "applied": list(&self.applied), "restart": list(&self.restart), "files": self.files })
    }
}

fn before(change: &Change) -> String {
    change.before.as_ref().map_or_else(|| "absent".to_owned(), Entry::shown)
}

fn after(change: &Change) -> String {
    change.after.as_ref().map_or_else(|| "absent".to_owned(), Entry::shown)
}
