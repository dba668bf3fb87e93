//! Lines of the audit log about changes: who, from where, and the object before and after, without secrets.

use mainstem_quota::{Entity, Quotas};
use mainstem_security::{
    Actor, ApiKey, ApiKeyId, Ban, BanSubject, Change, Rule, RuleId, SecurityState, User,
};
use serde_json::{Map, Value};

use crate::audit::cut;

type Fields = Map<String, Value>;

/// A line about a change: who made it, and the object before and after.
pub(crate) fn changed(
    by: &Actor,
    change: &str,
    object: Value,
    (before, after): (Option<Fields>, Option<Fields>),
) -> Fields {
    let mut fields = Map::new();
    fields.insert("user".into(), by.principal.user().map(|name| &**name).into());
    fields.insert("address".into(), by.address.map(|address| address.to_string()).into());
    fields.insert("protocol".into(), by.protocol.into());
    fields.insert("change".into(), change.into());
    fields.insert("object".into(), object);
    fields.insert("before".into(), before.map_or(Value::Null, Value::Object));
    fields.insert("after".into(), after.map_or(Value::Null, Value::Object));
    fields
}

/// A line about a change of users and rules, which `state` does not have yet.
pub(crate) fn security_changed(by: &Actor, state: &SecurityState, change: &Change) -> Fields {
    let rule = |rule: &Rule| Map::from_iter([("rule".to_owned(), rule.to_string().into())]);
    let known_rule = |id: RuleId| state.rule(id).map(|known| rule(known));
    match change {
        Change::PutUser(user) => {
            let known = state.user(&user.name);
            let mut after = shown_user(user);
            // That a password has changed is worth a line; what it was and is must not be in it.
            if known.is_some_and(|known| !known.has_same_verifiers(user)) {
                after.insert("verifiers_changed".into(), true.into());
            }
            let states = (known.map(|known| shown_user(known)), Some(after));
            changed(by, "put-user", (*user.name).into(), states)
        }
        Change::DeleteUser(name) => {
            let before = state.user(name).map(|known| shown_user(known));
            changed(by, "delete-user", (**name).into(), (before, None))
        }
        Change::PutRule(id, put) => changed(by, "put-rule", id.0.into(), (known_rule(*id), Some(rule(put)))),
        Change::DeleteRule(id) => changed(by, "delete-rule", id.0.into(), (known_rule(*id), None)),
        Change::PutQuotas(entity, quotas) => {
            let states = (known_quotas(state, entity), Some(shown_quotas(quotas)));
            changed(by, "put-quotas", entity.to_string().into(), states)
        }
        Change::DeleteQuotas(entity) => {
            changed(by, "delete-quotas", entity.to_string().into(), (known_quotas(state, entity), None))
        }
        Change::PutBan(subject, ban) => {
            let states = (known_ban(state, subject), Some(shown_ban(ban)));
            changed(by, "put-ban", cut(&subject.to_string()).into(), states)
        }
        Change::PutApiKey(id, key) => {
            let states = (known_api_key(state, *id), Some(shown_api_key(key)));
            changed(by, "put-api-key", id.to_string().into(), states)
        }
        Change::DeleteApiKey(id) => {
            changed(by, "delete-api-key", id.to_string().into(), (known_api_key(state, *id), None))
        }
        Change::DeleteBan(subject) => {
            changed(by, "delete-ban", cut(&subject.to_string()).into(), (known_ban(state, subject), None))
        }
    }
}

fn known_quotas(state: &SecurityState, entity: &Entity) -> Option<Fields> {
    state.quotas().get(entity).map(shown_quotas)
}

fn shown_quotas(quotas: &Quotas) -> Fields {
    quotas.iter().map(|(key, value)| (key.name().to_owned(), value.into())).collect()
}

fn known_ban(state: &SecurityState, subject: &BanSubject) -> Option<Fields> {
    state.bans().get(subject).map(|known| shown_ban(known))
}

fn shown_ban(ban: &Ban) -> Fields {
    Map::from_iter([
        ("reason".to_owned(), (*ban.reason).into()),
        ("until_ms".to_owned(), ban.until_ms.into()),
    ])
}

fn known_api_key(state: &SecurityState, id: ApiKeyId) -> Option<Fields> {
    state.api_keys().get(id).map(|known| shown_api_key(known))
}

/// An API key without its hash.
fn shown_api_key(key: &ApiKey) -> Fields {
    Map::from_iter([
        ("user".to_owned(), (*key.user).into()),
        ("roles".to_owned(), key.roles.iter().map(|role| Value::from(&**role)).collect()),
        ("description".to_owned(), (*key.description).into()),
        ("expires_ms".to_owned(), key.expires_ms.into()),
    ])
}

/// A user without its verifiers.
fn shown_user(user: &User) -> Fields {
    let names = [
        ("password", user.password.is_some()),
        ("scram-sha-256", user.scram_sha_256.is_some()),
        ("scram-sha-512", user.scram_sha_512.is_some()),
    ];
    let verifiers: Vec<&str> = names.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    Map::from_iter([
        ("roles".to_owned(), user.roles.iter().map(|role| Value::from(&**role)).collect()),
        ("disabled".to_owned(), user.disabled.into()),
        ("verifiers".to_owned(), verifiers.into()),
    ])
}
