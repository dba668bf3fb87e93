//! Changes as keyed records of the security log (docs/formats/security.md).

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::error::SecurityError;
use crate::password::PasswordHash;
use crate::rule::{Pattern, Resource, Rule, RuleId};
use crate::scram::{ScramAlgorithm, ScramKeys};
use crate::state::{Change, SecurityState};
use crate::user::User;

const USER: &str = "user/";
const RULE: &str = "rule/";
/// Key of the highest identifier that a deleted rule has had.
const LAST_RULE: &str = "last-rule";
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
struct UserRecord {
    v: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scram_sha_256: Option<ScramRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scram_sha_512: Option<ScramRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    #[serde(default)]
    disabled: bool,
}

#[derive(Serialize, Deserialize)]
struct ScramRecord {
    salt: String,
    iterations: u32,
    stored_key: String,
    server_key: String,
}

#[derive(Serialize, Deserialize)]
struct RuleRecord {
    v: u8,
    effect: String,
    subject: String,
    action: String,
    /// Absent for resources of every kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// `any`, `literal`, `prefix` or `filter`.
    pattern: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    listener: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct LastRuleRecord {
    v: u8,
    id: u64,
}

/// Encodes a change as the key and the value of a record; without a value it is a tombstone.
pub fn encode(change: &Change) -> (Vec<u8>, Option<Vec<u8>>) {
    match change {
        Change::PutUser(user) => (user_key(&user.name), Some(encode_user(user))),
        Change::DeleteUser(name) => (user_key(name), None),
        Change::PutRule(id, rule) => (rule_key(*id), Some(encode_rule(rule))),
        Change::DeleteRule(id) => (rule_key(*id), None),
    }
}

/// The record that keeps the identifiers of deleted rules from being used again. To be stored with each deletion of a
/// rule, because the tombstones go with the next compaction.
pub fn encode_last_rule(state: &SecurityState) -> (Vec<u8>, Option<Vec<u8>>) {
    let RuleId(next) = state.next_rule_id();
    let record = LastRuleRecord { v: VERSION, id: next.saturating_sub(1) };
    (LAST_RULE.into(), Some(serde_json::to_vec(&record).expect("plain data")))
}

/// Applies a record of the log.
///
/// # Errors
/// As [`decode`].
pub fn apply_record(
    state: &mut SecurityState,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<(), SecurityError> {
    if key == LAST_RULE.as_bytes() {
        let record = value.map(serde_json::from_slice::<LastRuleRecord>).transpose();
        if let Some(record) = record.map_err(|error| invalid("the last rule", error))? {
            check_version(record.v)?;
            state.note_rule_id(RuleId(record.id));
        }
        return Ok(());
    }
    state.apply(&decode(key, value)?);
    Ok(())
}

/// Decodes a record of a user or a rule.
///
/// # Errors
/// It is not such a record. A host must not skip it: a user or rule that is missing changes what is allowed.
pub fn decode(key: &[u8], value: Option<&[u8]>) -> Result<Change, SecurityError> {
    let key = std::str::from_utf8(key).map_err(|error| invalid("a key", error))?;
    if let Some(name) = key.strip_prefix(USER) {
        return Ok(match value {
            Some(value) => Change::PutUser(Arc::new(decode_user(name, value)?)),
            None => Change::DeleteUser(name.into()),
        });
    }
    let id = key.strip_prefix(RULE).and_then(|id| id.parse().ok());
    let id = RuleId(id.ok_or_else(|| SecurityError::Record(format!("the key `{key}` is unknown")))?);
    Ok(match value {
        Some(value) => Change::PutRule(id, Arc::new(decode_rule(value)?)),
        None => Change::DeleteRule(id),
    })
}

fn invalid(what: &str, error: impl std::fmt::Display) -> SecurityError {
    SecurityError::Record(format!("{what}: {error}"))
}

fn user_key(name: &str) -> Vec<u8> {
    format!("{USER}{name}").into_bytes()
}

fn rule_key(id: RuleId) -> Vec<u8> {
    format!("{RULE}{}", id.0).into_bytes()
}

fn encode_user(user: &User) -> Vec<u8> {
    let scram = |keys: &ScramKeys| ScramRecord {
        salt: STANDARD.encode(keys.salt()),
        iterations: keys.iterations(),
        stored_key: STANDARD.encode(keys.stored_key()),
        server_key: STANDARD.encode(keys.server_key()),
    };
    let record = UserRecord {
        v: VERSION,
        password: user.password.as_ref().map(ToString::to_string),
        scram_sha_256: user.scram_sha_256.as_ref().map(scram),
        scram_sha_512: user.scram_sha_512.as_ref().map(scram),
        roles: user.roles.iter().map(ToString::to_string).collect(),
        disabled: user.disabled,
    };
    serde_json::to_vec(&record).expect("plain data")
}

fn decode_user(name: &str, value: &[u8]) -> Result<User, SecurityError> {
    let record: UserRecord = serde_json::from_slice(value).map_err(|error| invalid("a user", error))?;
    check_version(record.v)?;
    let scram = |algorithm, record: Option<ScramRecord>| {
        record.map(|record| decode_scram(algorithm, &record)).transpose()
    };
    let mut user = User::new(name)?;
    user.password = record.password.as_deref().map(PasswordHash::parse).transpose()?;
    user.scram_sha_256 = scram(ScramAlgorithm::Sha256, record.scram_sha_256)?;
    user.scram_sha_512 = scram(ScramAlgorithm::Sha512, record.scram_sha_512)?;
    user.roles = record.roles.into_iter().map(Into::into).collect();
    user.disabled = record.disabled;
    user.check()?;
    Ok(user)
}

fn decode_scram(algorithm: ScramAlgorithm, record: &ScramRecord) -> Result<ScramKeys, SecurityError> {
    let decode = |text: &str| STANDARD.decode(text).map_err(|error| invalid("keys of SCRAM", error));
    let salt = decode(&record.salt)?;
    let (stored_key, server_key) = (decode(&record.stored_key)?, decode(&record.server_key)?);
    ScramKeys::from_keys(algorithm, &salt, record.iterations, stored_key, server_key)
}

fn check_version(version: u8) -> Result<(), SecurityError> {
    let unknown = || SecurityError::Record(format!("its version is {version}; known is {VERSION}"));
    if version == VERSION { Ok(()) } else { Err(unknown()) }
}

fn encode_rule(rule: &Rule) -> Vec<u8> {
    let (pattern, name) = match &rule.resource.pattern {
        Pattern::Any => ("any", ""),
        Pattern::Literal(name) => ("literal", &**name),
        Pattern::Prefix(name) => ("prefix", &**name),
        Pattern::Filter(name) => ("filter", &**name),
    };
    let record = RuleRecord {
        v: VERSION,
        effect: rule.effect.to_string(),
        subject: rule.subject.to_string(),
        action: rule.action.to_string(),
        kind: rule.resource.kind.map(|kind| kind.to_string()),
        pattern: pattern.to_owned(),
        name: name.to_owned(),
        listener: rule.listener.as_ref().map(ToString::to_string),
        network: rule.network.map(|network| network.to_string()),
    };
    serde_json::to_vec(&record).expect("plain data")
}

fn decode_rule(value: &[u8]) -> Result<Rule, SecurityError> {
    let record: RuleRecord = serde_json::from_slice(value).map_err(|error| invalid("a rule", error))?;
    check_version(record.v)?;
    let name = || record.name.as_str().into();
    let pattern = match record.pattern.as_str() {
        "any" => Pattern::Any,
        "literal" => Pattern::Literal(name()),
        "prefix" => Pattern::Prefix(name()),
        "filter" => Pattern::Filter(name()),
        other => return Err(invalid("the pattern of a rule", other)),
    };
    let rule = Rule {
        subject: record.subject.parse()?,
        effect: record.effect.parse()?,
        action: record.action.parse()?,
        resource: Resource { kind: record.kind.as_deref().map(str::parse).transpose()?, pattern },
        listener: record.listener.map(Into::into),
        network: record.network.as_deref().map(str::parse).transpose()?,
    };
    rule.check()?;
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Action, Effect, ResourceKind, Subject};
    use crate::user::Salts;

    /// Records of version 1: key, tab, value per line.
    const FIXTURE: &str = include_str!("../tests/fixtures/records-1.txt");

    fn changes() -> Vec<Change> {
        let mut alice = User::new("alice").unwrap();
        alice.set_password(b"secret", &Salts([[1; 16], [2; 16], [3; 16]])).unwrap();
        alice.roles = vec!["ops".into()];
        let mut bob = User::new("bob").unwrap();
        bob.disabled = true;
        let rule = |resource: Resource, action| Rule {
            subject: Subject::Role("ops".into()),
            effect: Effect::Allow,
            action,
            resource,
            listener: None,
            network: None,
        };
        let conditional = Rule {
            subject: Subject::User("alice".into()),
            effect: Effect::Deny,
            listener: Some("plant".into()),
            network: Some("192.0.2.0/24".parse().unwrap()),
            ..rule(Resource::literal(ResourceKind::Group, "g*"), Action::Group)
        };
        vec![
            Change::PutUser(Arc::new(alice)),
            Change::PutUser(Arc::new(bob)),
            Change::DeleteUser("carol".into()),
            Change::PutRule(RuleId(1), Arc::new(rule(Resource::filter("plant/${user}/#"), Action::Publish))),
            Change::PutRule(RuleId(2), Arc::new(rule(Resource::EVERYTHING, Action::Any))),
            Change::PutRule(
                RuleId(3),
                Arc::new(rule(Resource::prefix(ResourceKind::Topic, "a-"), Action::Consume)),
            ),
            Change::PutRule(RuleId(4), Arc::new(conditional)),
            Change::DeleteRule(RuleId(5)),
        ]
    }

    fn lines(changes: &[Change]) -> String {
        let line = |change| {
            let (key, value) = encode(change);
            let value = value.map_or_else(|| "-".to_owned(), |value| String::from_utf8(value).unwrap());
            format!("{}\t{value}\n", String::from_utf8(key).unwrap())
        };
        changes.iter().map(line).collect()
    }

    #[test]
    fn the_stored_records_are_read_and_written() {
        let changes = changes();
        assert_eq!(lines(&changes), FIXTURE);
        let read = FIXTURE.lines().map(|line| {
            let (key, value) = line.split_once('\t').unwrap();
            decode(key.as_bytes(), (value != "-").then_some(value.as_bytes())).unwrap()
        });
        assert_eq!(read.collect::<Vec<_>>(), changes);
    }

    #[test]
    fn the_last_identifier_of_a_rule_outlives_its_tombstone() {
        let mut state = SecurityState::default();
        let changes = changes();
        for change in &changes {
            state.apply(change);
        }
        state.apply(&Change::DeleteRule(RuleId(7)));
        let (key, value) = encode_last_rule(&state);
        let stored =
            (String::from_utf8(key.clone()).unwrap(), String::from_utf8(value.clone().unwrap()).unwrap());
        assert_eq!(stored, ("last-rule".into(), r#"{"v":1,"id":7}"#.into()));
        // After a compaction, without tombstones.
        let mut restored = SecurityState::default();
        for (key, value) in changes[..7].iter().map(encode).chain([(key.clone(), value)]) {
            apply_record(&mut restored, &key, value.as_deref()).unwrap();
        }
        assert_eq!(restored.next_rule_id(), RuleId(8));
        for bad in [&b"{}"[..], br#"{"v":2,"id":7}"#] {
            assert!(apply_record(&mut restored, &key, Some(bad)).is_err());
        }
    }

    #[test]
    fn what_is_not_a_record_is_rejected() {
        for (key, value) in [
            ("user/alice", "{}"),
            ("user/alice", r#"{"v":2}"#),
            ("user/alice", r#"{"v":1,"password":"secret"}"#),
            ("user/a:b", r#"{"v":1}"#),
            ("rule/x", "{}"),
            (
                "rule/1",
                r#"{"v":1,"effect":"allow","subject":"*","action":"publish","kind":"topic","pattern":"any"}"#,
            ),
            ("rule/1", r#"{"v":1,"effect":"allow","subject":"*","action":"fly","pattern":"any"}"#),
            ("other", "{}"),
        ] {
            assert!(decode(key.as_bytes(), Some(value.as_bytes())).is_err(), "{key} {value}");
        }
    }
}
