//! Users, rules, quotas and bans: who is a client, and what may it do. MQTT, Kafka and HTTP translate to this model.
//!
//! # What this crate must never know
//! Protocols, connections, files, logs, threads, clocks. Randomness is a parameter. [`Published`] has a lock, which
//! readers take after a change only; [`AuditEvents`] has one per event.
//!
//! # Entry points
//! - [`SecurityState`]: users, rules, quotas and bans. [`SecurityState::apply`] takes a [`Change`], which [`encode`]
//!   and [`decode`] turn into a record and back. [`Published`] shows the newest state to all threads.
//! - [`Grants::compile`]: the rules of one connection. [`Grants::allows`] and [`Grants::subscribe`] are the checks.
//! - [`SecurityState::explain`]: the same decision with its reason, rule by rule.
//! - [`Authenticator`] and [`SecurityAdmin`]: how protocols have log-ins verified and users changed by a host.
//!
//! # Invariants
//! - Deny wins. As soon as one rule exists, what no rule allows is denied; without rules everything is allowed.
//! - [`Grants`] and [`SecurityState::explain`] decide the same; property tests compare both with a third evaluator.
//! - Text of a client never changes which topics a rule means: `${clientid}` stands for one plain level.
//! - A certificate or a token may name any user but those that the user store has disabled.
//! - Verifiers do not show in debug output, and are compared in constant time.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `user.rs` | users and names |
//! | `password.rs`, `password_file.rs` | password hashes, and the files of mosquitto |
//! | `scram.rs`, `scram_shape.rs` | stored keys of SCRAM; what a client sees of them |
//! | `identity.rs` | who a connection is, and what has proven it |
//! | `name_rules.rs` | rules that make user names of names in certificates |
//! | `rule.rs` | rules, principals, and where connections come from |
//! | `network.rs` | networks in CIDR notation |
//! | `filter.rs` | whether topic filters cover each other or intersect |
//! | `api_key.rs`, `api_key_record.rs`, `api_key_uses.rs` | API keys; as records of a log; when they were last used |
//! | `ban.rs` | bans of users, client ids and networks |
//! | `state.rs` | the state machine of users and rules |
//! | `explain.rs` | decisions with their reasons |
//! | `grants.rs` | the compiled rules of a connection |
//! | `published.rs` | the newest state, shared by all threads |
//! | `record.rs`, `record_version.rs` | changes as records of a log; their version |
//! | `audit_events.rs` | events of the audit log on their way into a topic |
//! | `authenticator.rs` | the interface of the host |
//! | `edit.rs` | changes that administrators ask for |
//! | `error.rs` | errors |

mod api_key;
mod api_key_record;
mod api_key_uses;
mod audit_events;
mod authenticator;
mod ban;
mod edit;
mod error;
mod explain;
mod filter;
mod grants;
mod identity;
mod name_rules;
mod network;
mod password;
mod password_file;
mod published;
mod record;
mod record_version;
mod rule;
mod scram;
mod scram_shape;
mod state;
mod user;

pub use api_key::{
    API_KEY_SECRET_BYTES, ApiKey, ApiKeyId, ApiKeys, MAX_API_KEYS, MAX_API_KEYS_PER_USER, PresentedApiKey,
};
pub use api_key_record::{decode_last_use, encode_last_use};
pub use api_key_uses::ApiKeyUses;
pub use audit_events::{AUDIT_EVENT_BYTES_MAX, AUDIT_EVENTS_MAX, AddedEvent, AuditEvents};
pub use authenticator::{
    Actor, AdminChange, Attempt, Authenticator, BannedClient, ChangeError, ChangedSettings, Denial, Edit,
    LogIn, LogInResult, Reply, SecurityAdmin, SecurityHost,
};
pub use ban::{Ban, BanSubject, Bans, MAX_BANS, MAX_REASON_BYTES};
pub use edit::{
    add_api_key, add_ban, add_rules, alter_quotas, change_user, create_user, delete_api_key, delete_ban,
    delete_rule, delete_user, left_api_keys,
};
pub use error::SecurityError;
pub use explain::{Explanation, Reason};
pub use filter::{covers, intersects};
pub use grants::{Grants, SubscribeDecision};
pub use identity::{CertificateOutcome, Certified, Identity, PeerCertificate, Presented, Principal, Proof};
pub use name_rules::NameRules;
pub use network::Network;
pub use password::{MAX_PASSWORD_BYTES, PasswordHash, SALT_BYTES};
pub use password_file::read_password_file;
pub use published::Published;
pub use record::{apply_record, decode, encode, encode_last_rule};
pub use rule::{
    Action, CLIENT_ID_VARIABLE, COMMON_NAME_VARIABLE, Effect, MAX_RESOURCE_BYTES, Origin, Pattern, Resource,
    ResourceKind, Rule, RuleId, Subject, USER_VARIABLE,
};
pub use scram::{SCRAM_ITERATIONS, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN, ScramAlgorithm, ScramKeys};
pub use scram_shape::ScramShape;
pub use state::{Anonymous, Change, MAX_RULES, MAX_USERS, SecurityState, Settings};
pub use user::{MAX_NAME_BYTES, MAX_ROLES, Salts, User, check_name, check_user_name};
