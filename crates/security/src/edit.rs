//! Edits: the changes that an administrator asks for, computed from the newest state.
//!
//! An edit is computed from the state that it changes, by the one thread that writes the log, so that two
//! administrators at once do not undo each other's work. It returns records for the log; nothing counts before they are
//! durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_quota::{Entity, QuotaKey, Quotas};

use crate::api_key::{ApiKey, ApiKeyId};
use crate::authenticator::ChangeError;
use crate::ban::{Ban, BanSubject};
use crate::error::SecurityError;
use crate::rule::{Rule, RuleId};
use crate::state::{Change, SecurityState};
use crate::user::User;

/// Most expired bans that are deleted with one change.
const EXPIRED_MAX: usize = 1000;

fn named(name: &str) -> String {
    format!("user {name:?}")
}

/// Adds a user. API keys of an earlier one of that name, who was in the password file, are deleted.
///
/// # Errors
/// The log has a user of that name.
pub fn create_user(state: &SecurityState, user: User) -> Result<Vec<Change>, ChangeError> {
    if state.is_in_log(&user.name) {
        return Err(ChangeError::Exists(named(&user.name)));
    }
    let mut changes = left_api_keys(state, &user.name);
    changes.push(Change::PutUser(Arc::new(user)));
    Ok(changes)
}

/// Deletes the API keys of a name that is no user: those of one who was removed from the password file. A new user of
/// this name must not inherit them.
pub fn left_api_keys(state: &SecurityState, name: &str) -> Vec<Change> {
    if state.user(name).is_some() {
        return Vec::new();
    }
    state.api_keys().of_user(name).map(|(id, _)| Change::DeleteApiKey(id)).collect()
}

/// Changes a user. A user of the password file becomes one of the log.
///
/// # Errors
/// The user does not exist.
pub fn change_user(
    state: &SecurityState,
    name: &str,
    change: impl FnOnce(&mut User),
) -> Result<Vec<Change>, ChangeError> {
    let user = state.user(name).ok_or_else(|| ChangeError::NotFound(named(name)))?;
    let mut user = User::clone(user);
    change(&mut user);
    Ok(vec![Change::PutUser(Arc::new(user))])
}

/// Deletes a user of the log, and its API keys: a later user of this name must not inherit them. Rules about the user
/// stay.
///
/// # Errors
/// The log has no such user.
pub fn delete_user(state: &SecurityState, name: &str) -> Result<Vec<Change>, ChangeError> {
    if !state.is_in_log(name) {
        return Err(ChangeError::NotFound(named(name)));
    }
    let keys = state.api_keys().of_user(name).map(|(id, _)| Change::DeleteApiKey(id));
    Ok(keys.chain([Change::DeleteUser(name.into())]).collect())
}

/// Adds an API key, and deletes those of its user that have expired.
///
/// # Errors
/// The user does not exist or lacks a role of the key, or the identifier is used.
pub fn add_api_key(state: &SecurityState, id: ApiKeyId, key: ApiKey) -> Result<Vec<Change>, ChangeError> {
    let user = state.user(&key.user).ok_or_else(|| ChangeError::NotFound(named(&key.user)))?;
    if key.roles.iter().any(|role| !user.roles.contains(role)) {
        return Err(ChangeError::Invalid(SecurityError::ApiKey("its user does not have all of its roles")));
    }
    if state.api_keys().get(id).is_some() {
        return Err(ChangeError::Exists(format!("API key {id}")));
    }
    let known = state.api_keys().of_user(&key.user);
    let expired = known.filter(|(_, known)| known.is_expired(key.created_ms));
    let mut changes: Vec<Change> = expired.map(|(id, _)| Change::DeleteApiKey(id)).collect();
    changes.push(Change::PutApiKey(id, Arc::new(key)));
    Ok(changes)
}

/// Deletes an API key.
///
/// # Errors
/// It does not exist.
pub fn delete_api_key(state: &SecurityState, id: ApiKeyId) -> Result<Vec<Change>, ChangeError> {
    state.api_keys().get(id).ok_or_else(|| ChangeError::NotFound(format!("API key {id}")))?;
    Ok(vec![Change::DeleteApiKey(id)])
}

/// Adds rules. Those that exist are not added again, and each is added once.
pub fn add_rules(
    state: &SecurityState,
    rules: impl IntoIterator<Item = impl Into<Arc<Rule>>>,
) -> Vec<Change> {
    let RuleId(mut next) = state.next_rule_id();
    let (mut changes, mut added) = (Vec::new(), BTreeMap::new());
    for rule in rules {
        let rule = rule.into();
        let known = state.rule_id(&rule).or_else(|| added.get(&rule).copied());
        let id = known.unwrap_or(RuleId(next));
        next += u64::from(known.is_none());
        added.insert(Arc::clone(&rule), id);
        changes.push(Change::PutRule(id, rule));
    }
    changes
}

/// Deletes a rule.
///
/// # Errors
/// It does not exist.
pub fn delete_rule(state: &SecurityState, id: RuleId) -> Result<Vec<Change>, ChangeError> {
    state.rule(id).ok_or_else(|| ChangeError::NotFound(format!("rule {}", id.0)))?;
    Ok(vec![Change::DeleteRule(id)])
}

/// Sets and removes quotas of an entity; those of other kinds stay.
///
/// # Errors
/// The entity cannot have such a quota, or a value is invalid.
pub fn alter_quotas(
    state: &SecurityState,
    entity: Entity,
    ops: &[(QuotaKey, Option<f64>)],
) -> Result<Change, SecurityError> {
    let mut quotas = state.quotas().get(&entity).cloned().unwrap_or_else(Quotas::default);
    for (key, value) in ops {
        quotas.set(*key, *value);
    }
    if quotas.is_empty() {
        return Ok(Change::DeleteQuotas(entity));
    }
    let change = Change::PutQuotas(entity, quotas);
    state.check(&change)?;
    Ok(change)
}

/// Adds a ban, and deletes those that have expired, so that they do not pile up.
pub fn add_ban(state: &SecurityState, subject: BanSubject, ban: Ban) -> Vec<Change> {
    let mut expired = state.bans().expired(ban.since_ms);
    expired.remove(&subject);
    let mut changes: Vec<Change> = expired.into_iter().take(EXPIRED_MAX).map(Change::DeleteBan).collect();
    changes.push(Change::PutBan(subject, Arc::new(ban)));
    changes
}

/// Deletes a ban.
///
/// # Errors
/// It does not exist.
pub fn delete_ban(state: &SecurityState, subject: BanSubject) -> Result<Vec<Change>, ChangeError> {
    state.bans().get(&subject).ok_or_else(|| ChangeError::NotFound(format!("a ban of {subject}")))?;
    Ok(vec![Change::DeleteBan(subject)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Action, Effect, Resource, Subject};

    #[test]
    fn api_keys_belong_to_a_user_and_go_with_it() {
        let mut state = SecurityState::default();
        let mut user = User::new("alice").unwrap();
        user.roles = vec!["ops".into()];
        state.apply(&Change::PutUser(Arc::new(user)));
        let key = |user: &str, role: Option<&str>, expires_ms| ApiKey {
            user: user.into(),
            hash: [1; 32],
            roles: role.into_iter().map(Into::into).collect(),
            description: "".into(),
            created_ms: 5,
            expires_ms,
        };
        let add = |state: &SecurityState, id, key| add_api_key(state, ApiKeyId(id), key);
        assert!(matches!(add(&state, 1, key("bob", None, None)), Err(ChangeError::NotFound(_))));
        assert!(matches!(add(&state, 1, key("alice", Some("admins"), None)), Err(ChangeError::Invalid(_))));
        for (id, expires_ms) in [(1, Some(5)), (2, Some(6))] {
            // The first one has expired when the second one is added.
            for change in add(&state, id, key("alice", Some("ops"), expires_ms)).unwrap() {
                state.check(&change).unwrap();
                state.apply(&change);
            }
        }
        assert_eq!(state.api_keys().iter().map(|(id, _)| id).collect::<Vec<_>>(), [ApiKeyId(2)]);
        assert!(matches!(add(&state, 2, key("alice", None, None)), Err(ChangeError::Exists(_))));
        assert!(matches!(delete_api_key(&state, ApiKeyId(1)), Err(ChangeError::NotFound(_))));
        assert_eq!(delete_api_key(&state, ApiKeyId(2)), Ok(vec![Change::DeleteApiKey(ApiKeyId(2))]));
        for change in delete_user(&state, "alice").unwrap() {
            state.apply(&change);
        }
        assert!(state.api_keys().is_empty() && state.user("alice").is_none());
        // Its user was in the password file, and is not any more.
        state.apply(&Change::PutApiKey(ApiKeyId(3), Arc::new(key("alice", None, None))));
        for change in create_user(&state, User::new("alice").unwrap()).unwrap() {
            state.apply(&change);
        }
        assert!(state.api_keys().is_empty() && state.user("alice").is_some());
        state.apply(&Change::PutApiKey(ApiKeyId(4), Arc::new(key("alice", None, None))));
        assert_eq!(left_api_keys(&state, "alice"), []);
    }

    #[test]
    fn many_rules_are_added_once_each() {
        let rule = |number: usize| Rule {
            subject: Subject::User(format!("user-{number}").into()),
            effect: Effect::Allow,
            action: Action::Publish,
            resource: Resource::filter("a/#"),
            listener: None,
            network: None,
        };
        let mut state = SecurityState::default();
        state.apply(&Change::PutRule(RuleId(5), Arc::new(rule(0))));
        let changes = add_rules(&state, (0..20_000).map(|number| rule(number % 10_000)));
        for change in &changes {
            state.apply(change);
        }
        assert_eq!(state.rules().count(), 10_000);
        assert_eq!((state.rule_id(&rule(0)), state.rule_id(&rule(1))), (Some(RuleId(5)), Some(RuleId(6))));
        assert_eq!(state.next_rule_id(), RuleId(10_005));
    }
}
