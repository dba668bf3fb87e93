//! Changes as keyed records of the security log (docs/formats/security.md).
//!
//! The log is compacted: the newest record of a key counts, and a deletion is a tombstone. The key therefore names what
//! the change replaces: a user, a rule's number, an entity, the subject of a ban. Decoding is strict. A record that
//! cannot be read stops the start, because a rule that is skipped would allow what was denied.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_quota::{Entity, Name, QuotaKey, Quotas};
use serde::{Deserialize, Serialize};

use crate::api_key::ApiKeyId;
use crate::api_key_record::{API_KEY, decode_api_key, encode_api_key, record_key as api_key_key};
use crate::ban::{Ban, BanSubject};
use crate::error::SecurityError;
use crate::password::PasswordHash;
use crate::record_version::{VERSION, check_version, invalid};
use crate::rule::{Pattern, Resource, Rule, RuleId};
use crate::scram::{ScramAlgorithm, ScramKeys};
use crate::state::{Change, SecurityState};
use crate::user::User;

const USER: &str = "user/";
const RULE: &str = "rule/";
/// Key of the highest identifier that a deleted rule has had.
const LAST_RULE: &str = "last-rule";
const QUOTA: &str = "quota/";
const BAN_USER: &str = "ban/user/";
const BAN_CLIENT_ID: &str = "ban/client-id/";
const BAN_NETWORK: &str = "ban/network/";

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

/// The entity of quotas, in the key of their record. A part that is null is the default.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::option_option, reason = "a part may be absent, or null")]
struct EntityRecord {
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    user: Option<Option<String>>,
    #[serde(
        default,
        rename = "client-id",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    client_id: Option<Option<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    ip: Option<Option<IpAddr>>,
}

/// A field that is there, perhaps null.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

#[derive(Serialize, Deserialize)]
struct QuotaRecord {
    v: u8,
    quotas: BTreeMap<String, f64>,
}

#[derive(Serialize, Deserialize)]
struct BanRecord {
    v: u8,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    since_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    until_ms: Option<u64>,
}

/// Encodes a change as the key and the value of a record; without a value it is a tombstone.
pub fn encode(change: &Change) -> (Vec<u8>, Option<Vec<u8>>) {
    match change {
        Change::PutUser(user) => (user_key(&user.name), Some(encode_user(user))),
        Change::DeleteUser(name) => (user_key(name), None),
        Change::PutRule(id, rule) => (rule_key(*id), Some(encode_rule(rule))),
        Change::DeleteRule(id) => (rule_key(*id), None),
        Change::PutQuotas(entity, quotas) => (quota_key(entity), Some(encode_quotas(quotas))),
        Change::DeleteQuotas(entity) => (quota_key(entity), None),
        Change::PutBan(subject, ban) => (ban_key(subject), Some(encode_ban(ban))),
        Change::DeleteBan(subject) => (ban_key(subject), None),
        Change::PutApiKey(id, key) => (api_key_key(*id), Some(encode_api_key(key))),
        Change::DeleteApiKey(id) => (api_key_key(*id), None),
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
    if let Some(id) = key.strip_prefix(API_KEY) {
        let id: ApiKeyId = id.parse()?;
        return Ok(match value {
            Some(value) => Change::PutApiKey(id, Arc::new(decode_api_key(value)?)),
            None => Change::DeleteApiKey(id),
        });
    }
    if let Some(entity) = key.strip_prefix(QUOTA) {
        let entity = decode_entity(entity)?;
        return Ok(match value {
            Some(value) => Change::PutQuotas(entity.clone(), decode_quotas(&entity, value)?),
            None => Change::DeleteQuotas(entity),
        });
    }
    if let Some(subject) = decode_subject(key)? {
        return Ok(match value {
            Some(value) => Change::PutBan(subject.clone(), Arc::new(decode_ban(&subject, value)?)),
            None => Change::DeleteBan(subject),
        });
    }
    let id = key.strip_prefix(RULE).and_then(|id| id.parse().ok());
    let id = RuleId(id.ok_or_else(|| SecurityError::Record(format!("the key `{key}` is unknown")))?);
    Ok(match value {
        Some(value) => Change::PutRule(id, Arc::new(decode_rule(value)?)),
        None => Change::DeleteRule(id),
    })
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

fn quota_key(entity: &Entity) -> Vec<u8> {
    let part = |name: &Name| name.exact().map(ToString::to_string);
    let record = EntityRecord {
        user: entity.user().map(part),
        client_id: entity.client_id().map(part),
        ip: entity.address(),
    };
    format!("{QUOTA}{}", serde_json::to_string(&record).expect("plain data")).into_bytes()
}

fn decode_entity(text: &str) -> Result<Entity, SecurityError> {
    let record: EntityRecord =
        serde_json::from_str(text).map_err(|error| invalid("a quota entity", error))?;
    let part = |name: Option<Option<String>>| name.map(|name| Name::from_option(name.as_deref()));
    let entity = Entity::from_parts(part(record.user), part(record.client_id), record.ip);
    entity.map_err(|error| invalid("a quota entity", error))
}

fn encode_quotas(quotas: &Quotas) -> Vec<u8> {
    let quotas = quotas.iter().map(|(key, value)| (key.name().to_owned(), value)).collect();
    serde_json::to_vec(&QuotaRecord { v: VERSION, quotas }).expect("plain data")
}

fn decode_quotas(entity: &Entity, value: &[u8]) -> Result<Quotas, SecurityError> {
    let record: QuotaRecord = serde_json::from_slice(value).map_err(|error| invalid("quotas", error))?;
    check_version(record.v)?;
    let mut quotas = Quotas::default();
    for (name, value) in record.quotas {
        let key: QuotaKey = name.parse().map_err(|error| invalid("quotas", error))?;
        quotas.set(key, Some(value));
    }
    quotas.check(entity).map_err(|error| invalid("quotas", error))?;
    Ok(quotas)
}

fn ban_key(subject: &BanSubject) -> Vec<u8> {
    let key = match subject {
        BanSubject::User(name) => format!("{BAN_USER}{name}"),
        BanSubject::ClientId(name) => format!("{BAN_CLIENT_ID}{name}"),
        BanSubject::Network(network) => format!("{BAN_NETWORK}{network}"),
    };
    key.into_bytes()
}

/// The subject of a ban; `None` if the key is of something else.
fn decode_subject(key: &str) -> Result<Option<BanSubject>, SecurityError> {
    if let Some(name) = key.strip_prefix(BAN_USER) {
        return Ok(Some(BanSubject::User(name.into())));
    }
    if let Some(name) = key.strip_prefix(BAN_CLIENT_ID) {
        return Ok(Some(BanSubject::ClientId(name.into())));
    }
    let network = key.strip_prefix(BAN_NETWORK).map(str::parse).transpose()?;
    Ok(network.map(BanSubject::Network))
}

fn encode_ban(ban: &Ban) -> Vec<u8> {
    let Ban { reason, since_ms, until_ms } = ban;
    let record =
        BanRecord { v: VERSION, reason: reason.to_string(), since_ms: *since_ms, until_ms: *until_ms };
    serde_json::to_vec(&record).expect("plain data")
}

fn decode_ban(subject: &BanSubject, value: &[u8]) -> Result<Ban, SecurityError> {
    let record: BanRecord = serde_json::from_slice(value).map_err(|error| invalid("a ban", error))?;
    check_version(record.v)?;
    let ban = Ban { reason: record.reason.into(), since_ms: record.since_ms, until_ms: record.until_ms };
    ban.check(subject)?;
    Ok(ban)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_key::ApiKey;
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
            Change::PutQuotas(
                Entity::UserClientId(Name::Exact("al \"ice".into()), Name::Default),
                quotas(&[(QuotaKey::ProducerByteRate, 1_048_576.0), (QuotaKey::PublishRate, 0.5)]),
            ),
            Change::PutQuotas(Entity::User(Name::Default), quotas(&[(QuotaKey::RequestPercentage, 12.5)])),
            Change::PutQuotas(Entity::Address(None), quotas(&[(QuotaKey::ConnectionCreationRate, 10.0)])),
            Change::DeleteQuotas(Entity::Address(Some("192.0.2.1".parse().unwrap()))),
            Change::DeleteQuotas(Entity::ClientId(Name::Exact("app".into()))),
            ban(BanSubject::User("eve".into()), "guesses passwords", Some(2_000)),
            ban(BanSubject::ClientId("a/b c".into()), "", None),
            Change::DeleteBan(BanSubject::Network("192.0.2.0/24".parse().unwrap())),
            Change::PutApiKey(
                ApiKeyId(0xab),
                Arc::new(ApiKey {
                    user: "alice".into(),
                    hash: [7; 32],
                    roles: vec!["ops".into()],
                    description: "backup".into(),
                    created_ms: 1_000,
                    expires_ms: Some(2_000),
                }),
            ),
            Change::DeleteApiKey(ApiKeyId(u64::MAX)),
        ]
    }

    fn quotas(values: &[(QuotaKey, f64)]) -> Quotas {
        let mut quotas = Quotas::default();
        for (key, value) in values {
            quotas.set(*key, Some(*value));
        }
        quotas
    }

    fn ban(subject: BanSubject, reason: &str, until_ms: Option<u64>) -> Change {
        Change::PutBan(subject, Arc::new(Ban { reason: reason.into(), since_ms: 1_000, until_ms }))
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
            ("quota/{}", r#"{"v":1,"quotas":{"publish_rate":1.0}}"#),
            (r#"quota/{"user":"a","ip":null}"#, r#"{"v":1,"quotas":{"publish_rate":1.0}}"#),
            (r#"quota/{"user":"a","role":"b"}"#, r#"{"v":1,"quotas":{"publish_rate":1.0}}"#),
            (r#"quota/{"user":"a"}"#, r#"{"v":1,"quotas":{"publish_rate":-1.0}}"#),
            (r#"quota/{"user":"a"}"#, r#"{"v":1,"quotas":{"flying_rate":1.0}}"#),
            (r#"quota/{"user":"a"}"#, r#"{"v":1,"quotas":{"connection_creation_rate":1.0}}"#),
            ("ban/network/x", r#"{"v":1,"since_ms":1}"#),
            ("ban/user/", r#"{"v":1,"since_ms":1}"#),
            ("ban/user/eve", r#"{"v":1}"#),
            ("api-key/xyz", r#"{"v":1,"user":"a","hash":"","created_ms":1}"#),
            ("api-key/00000000000000ab", r#"{"v":1,"user":"a","hash":"BwcH","created_ms":1}"#),
        ] {
            assert!(decode(key.as_bytes(), Some(value.as_bytes())).is_err(), "{key} {value}");
        }
    }
}
