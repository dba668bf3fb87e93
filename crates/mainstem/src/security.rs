//! The `[security]` section of the configuration, and the users and rules of the data directory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_auth::{ConfiguredUsers, Host, Limits, LogInService, Providers};
use mainstem_backup::RESTORE_MARKER;
use mainstem_disk::{Committer, RealFs, SegmentStore};
use mainstem_kafka_server::{BoundTopic, check_topic};
use mainstem_mqtt_server::config_value::{ConfigValue, Kind};
use mainstem_mqtt_server::settings;
use mainstem_quota::{BucketSettings, QuotaKey};
use mainstem_runtime::{AddressGate, Refusal};
use mainstem_security::{
    Actor, Anonymous, BannedClient, SecurityAdmin, SecurityHost, SecurityState, Settings, User,
    check_user_name, create_user, read_password_file,
};
use serde::Deserializer;
use serde::de::{Error, Visitor};

use crate::jwt::JwtConfig;
use crate::listener_section::ListenerSection;

/// Directory of the log in the data directory.
pub(crate) const STORE: &str = "security";
/// File in the data directory with the secret of the salts of unknown users.
pub(crate) const SECRET: &str = "unknown-user-secret";
/// Files that the store has open at most.
const OPEN_FILES: usize = 4;
/// Memory for the newest entries of the log, bytes. It is read at start only.
const CACHE_BYTES: usize = 256 * 1024;

settings! {
    /// Users and rules. See security.md.
    pub struct SecurityConfig {
        /// Whether clients without a user are served: `true`; `false`; `"auto"`, as long as there is no user and all
        /// listeners are on loopback.
        allow_anonymous: AllowAnonymous = AllowAnonymous::Auto, one of "true, false, auto";
        /// Password file as `mosquitto_passwd` writes it, read at start and by a reload; empty for none. Its users can
        /// log in like those that are added at run time.
        password_file: String = "", [reloadable];
        /// Names of users that may do everything, whatever the rules are (super.users).
        super_users: Vec<String> = Vec::new(), [reloadable];
        /// Number of threads that verify passwords. Each needs a core for tens of milliseconds per log-in, and up to 19
        /// MiB of memory.
        log_in_threads: u16 = 2_u16, in 1 ..= 64;
        /// Maximum number of log-ins that wait for a thread. Further ones are refused.
        max_waiting_log_ins: u32 = 1_000_u32, in 1 ..= 1_000_000;
        /// Failed log-ins of one client address per minute, after which its log-ins are refused until the minute has
        /// passed; 0 for no limit. IPv6 addresses count by their /64 prefix.
        max_failed_log_ins_per_address: u32 = 20_u32, in 0 ..= 1_000_000, [reloadable];
        /// The same for one user, from all addresses.
        max_failed_log_ins_per_user: u32 = 20_u32, in 0 ..= 1_000_000, [reloadable];
        /// Seconds whose quota a Kafka client may use at once after it was idle (quota.window.num times
        /// quota.window.size.seconds).
        kafka_quota_window_s: u16 = 10_u16, in 1 ..= 3600;
        /// The same for MQTT publishes and HTTP requests.
        quota_burst_s: u16 = 1_u16, in 1 ..= 3600;
        /// File to which log-ins, denials and changes of users and rules are appended, as lines of JSON; empty for
        /// none.
        audit_log: String = "";
        /// Topic to which the same events are appended, one record each; empty for none. It is created at start, with
        /// one partition. No client may produce to it; reading it needs the right to consume, as for any topic.
        audit_topic: String = "";
    }
}

/// Whether clients without a user are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowAnonymous {
    /// Always.
    True,
    /// Never.
    False,
    /// As long as there is no user and all listeners are on loopback.
    Auto,
}

impl ConfigValue for AllowAnonymous {
    const KIND: Kind = Kind::Choice;

    fn literal(&self) -> String {
        let text = match self {
            Self::True => "true",
            Self::False => "false",
            Self::Auto => "\"auto\"",
        };
        text.into()
    }

    fn deserialize<'de, D: Deserializer<'de>>(_: &'static str, deserializer: D) -> Result<Self, D::Error> {
        struct Value;

        impl Visitor<'_> for Value {
            type Value = AllowAnonymous;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false or \"auto\"")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<AllowAnonymous, E> {
                Ok(if value { AllowAnonymous::True } else { AllowAnonymous::False })
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<AllowAnonymous, E> {
                let is_auto = value == "auto";
                if is_auto {
                    Ok(AllowAnonymous::Auto)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(value), &self))
                }
            }
        }

        deserializer.deserialize_any(Value)
    }
}

impl SecurityConfig {
    /// Checks what the bounds leave open.
    pub(crate) fn check_more(&self) -> Result<(), (&'static str, String)> {
        let invalid = self.super_users.iter().find_map(|name| {
            check_user_name(name).err().map(|error| ("super_users", format!("{name:?}: {error}")))
        });
        invalid.map_or(Ok(()), Err)?;
        let topic = |name| BoundTopic { name, partitions: 1, config: BTreeMap::new() };
        let checked = self.audit_topic().map_or(Ok(()), |name| check_topic(&topic(name)));
        checked.map_err(|error| ("audit_topic", error))
    }

    /// The topic of the audit log, if there is one.
    pub(crate) fn audit_topic(&self) -> Option<Arc<str>> {
        (!self.audit_topic.is_empty()).then(|| self.audit_topic.as_str().into())
    }

    /// The settings, with the users of the password file.
    fn settings(&self, is_on_loopback: bool) -> Result<Settings, String> {
        let anonymous = match self.allow_anonymous {
            AllowAnonymous::True => Anonymous::Allowed,
            AllowAnonymous::Auto if is_on_loopback => Anonymous::UntilUsers,
            AllowAnonymous::False | AllowAnonymous::Auto => Anonymous::Refused,
        };
        let ConfiguredUsers { file_users, super_users } = self.configured_users()?;
        Ok(Settings { anonymous, super_users, file_users, ..Settings::default() })
    }

    /// The users that the configuration names.
    ///
    /// # Errors
    /// The password file cannot be read or is invalid.
    pub(crate) fn configured_users(&self) -> Result<ConfiguredUsers, String> {
        let super_users = self.super_users.iter().map(|name| name.as_str().into()).collect();
        Ok(ConfiguredUsers { file_users: self.file_users()?, super_users })
    }

    /// The users of the password file.
    fn file_users(&self) -> Result<BTreeMap<Arc<str>, Arc<User>>, String> {
        if self.password_file.is_empty() {
            return Ok(BTreeMap::new());
        }
        let explain = |error: &dyn std::fmt::Display| {
            format!("security.password_file: {}: {error}", self.password_file)
        };
        let text = std::fs::read_to_string(&self.password_file).map_err(|error| explain(&error))?;
        read_password_file(&text).map_err(|error| explain(&error))
    }

    fn limits(&self) -> Limits {
        Limits {
            threads: self.log_in_threads.into(),
            waiting_max: self.max_waiting_log_ins as usize,
            failures_per_address_max: self.max_failed_log_ins_per_address,
            failures_per_user_max: self.max_failed_log_ins_per_user,
            audit_log: Some(&self.audit_log).filter(|path| !path.is_empty()).map(PathBuf::from),
            has_audit_topic: self.audit_topic().is_some(),
        }
    }
}

/// Where users come from besides the user store.
///
/// # Errors
/// A message for the user: a listener or a key of tokens is invalid.
pub(crate) fn providers(
    listeners: &[ListenerSection],
    jwt: &JwtConfig,
    service: Option<LogInService>,
) -> Result<Providers, String> {
    let mut certificates = BTreeMap::new();
    for section in listeners {
        if let Some(users) = section.certificate_users()? {
            certificates.insert(section.name.clone(), users);
        }
    }
    let tokens = jwt.open()?;
    Ok(Providers { certificates, tokens: tokens.map(Arc::new), service: service.map(Arc::new) })
}

/// Opens users and rules. `listeners` are the addresses to be served, by name, `kafka` those of Kafka among them.
///
/// # Errors
/// A message for the user: a file that cannot be read, or listeners that everyone on the network could use.
pub(crate) fn open(
    data: &Path,
    config: &SecurityConfig,
    shards: usize,
    listeners: &[(String, SocketAddr)],
    kafka: &[(String, SocketAddr)],
    providers: Providers,
) -> Result<Arc<Host>, String> {
    let outside: Vec<String> = listeners
        .iter()
        .filter(|(_, address)| !is_loopback(address.ip()))
        .map(|(name, address)| format!("{name} on {address}"))
        .collect();
    let host = open_store(data, config.settings(outside.is_empty())?, &config.limits(), providers)?;
    host.published().buckets().configure(BucketSettings {
        shards,
        kafka_window_s: config.kafka_quota_window_s.into(),
        burst_s: config.quota_burst_s.into(),
    });
    let is_open = config.allow_anonymous == AllowAnonymous::True;
    if !is_open && let Some((name, address)) = kafka.iter().find(|(_, address)| !is_loopback(address.ip())) {
        return Err(format!(
            "{name} on {address} can be reached from other machines, and its clients cannot log in: set kafka.sasl, or \
             sasl or user_name_from of the [[listener]], for example sasl to [\"SCRAM-SHA-256\"]; listen on 127.0.0.1; or set \
             security.allow_anonymous = true if everyone may do everything"
        ));
    }
    let state = host.published().state();
    if !outside.is_empty() && !state.has_log_ins() && !is_open {
        return Err(format!(
            "{} can be reached from other machines, and there are no users: everyone could do everything. Add a user \
             with `mainstem user add NAME --data {}`, name a security.password_file, or set \
             security.allow_anonymous = true if everyone may do everything",
            outside.join(", "),
            data.display()
        ));
    }
    Ok(Arc::new(host))
}

/// Bans and quotas of addresses, for new connections.
pub(crate) struct Gate(pub(crate) Arc<dyn SecurityHost>);

impl AddressGate for Gate {
    fn is_banned(&self, address: IpAddr) -> bool {
        let state = self.0.published().state();
        !state.bans().is_empty() && state.bans().of_address(address, unix_ms()).is_some()
    }

    fn rate_max(&self, address: IpAddr) -> Option<u32> {
        self.0.published().state().quotas().connection_rate(address)
    }

    fn refused(&self, address: IpAddr, refusal: Refusal) {
        if refusal == Refusal::Banned {
            self.0.banned(&BannedClient { address: Some(address), ..BannedClient::default() });
        } else {
            self.0.published().buckets().note_refused(QuotaKey::ConnectionCreationRate);
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// The secret on which the salts of unknown users depend. It is made once and kept, so that these salts stay the same,
/// like those of users.
///
/// # Errors
/// A message for the user: the file cannot be read or written.
pub(crate) fn unknown_user_secret(data: &Path) -> Result<[u8; 32], String> {
    let path = data.join(SECRET);
    let explain = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    match std::fs::read(&path) {
        Ok(bytes) if bytes.len() == 32 => Ok(bytes.try_into().unwrap_or_default()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(explain(&error)),
        // A crash may have left a part of it.
        _ => {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret).map_err(|error| explain(&error))?;
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&path).map_err(|error| explain(&error))?;
            file.write_all(&secret).and_then(|()| file.sync_all()).map_err(|error| explain(&error))?;
            Ok(secret)
        }
    }
}

/// Opens the log in a data directory that the caller has locked.
pub(crate) fn open_store(
    data: &Path,
    settings: Settings,
    limits: &Limits,
    providers: Providers,
) -> Result<Host, String> {
    let directory = data.join(STORE);
    let explain = |error: &dyn std::fmt::Display| format!("data directory {}: {error}", directory.display());
    let store_settings = mainstem_disk::Settings {
        open_files: OPEN_FILES,
        cache_bytes: CACHE_BYTES,
        // A change syncs the log itself: there is nothing to gather.
        journal_bytes: 0,
        ..mainstem_disk::Settings::default()
    };
    let store = SegmentStore::open(Arc::new(RealFs), directory.clone(), store_settings, Committer::Inline);
    let store = store.map_err(|error| explain(&error))?;
    make_private(&directory).map_err(|error| explain(&error))?;
    Host::open(Box::new(store), settings, limits, providers).map_err(|error| explain(&error))
}

/// Makes a directory that other users of the machine cannot read: verifiers can be used to guess passwords.
fn make_private(directory: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Adds a user to the data directory of a broker that does not run.
///
/// # Errors
/// A message for the user: the directory is in use or cannot be written, or the user exists or is invalid.
pub(crate) fn add_user(data: &Path, name: &str, password: &str, roles: &[String]) -> Result<(), String> {
    create_private_files();
    let _lock = lock_data(data)?;
    let host = open_store(data, Settings::default(), &Limits::default(), Providers::default())?;
    let mut user = User::new(name).map_err(|error| error.to_string())?;
    user.roles = roles.iter().map(|role| role.as_str().into()).collect();
    let (sender, derived) = channel();
    host.derive(user, password.into(), Box::new(move |result| drop(sender.send(result))));
    let user = derived.recv().map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let (sender, changed) = channel();
    let edit = Box::new(move |state: &SecurityState| create_user(state, user));
    let by = Actor { protocol: "command-line", ..Actor::default() };
    host.change(edit, by, Box::new(move |result| drop(sender.send(result))));
    changed.recv().map_err(|error| error.to_string())?.map(drop).map_err(|error| error.to_string())
}

/// Keeps what this process creates from other users of the machine, whatever the umask was: messages and sessions are
/// in the data directory, and who may write to a socket may connect. Sockets get their configured mode afterwards.
pub(crate) fn create_private_files() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Refuses a data directory into which a restore is not complete: it has a part of the data, and looks sound.
pub(crate) fn refuse_incomplete(directory: &Path) -> Result<(), String> {
    if !directory.join(RESTORE_MARKER).exists() {
        return Ok(());
    }
    Err(format!(
        "data directory {}: a restore into it was interrupted; run it again, or remove the directory",
        directory.display()
    ))
}

/// Locks a data directory for this process. The lock ends when the file is dropped.
pub(crate) fn lock_data(directory: &Path) -> Result<File, String> {
    let explain = |error: std::io::Error| format!("data directory {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(explain)?;
    refuse_incomplete(directory)?;
    let lock = File::create(directory.join("lock")).map_err(explain)?;
    lock.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => {
            format!("data directory {}: another process is using it", directory.display())
        }
        std::fs::TryLockError::Error(error) => explain(error),
    })?;
    Ok(lock)
}
