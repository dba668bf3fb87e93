//! Edits: the changes that an administrator asks for, computed from the newest state.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_quota::{Entity, QuotaKey, Quotas};

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

/// Adds a user.
///
/// # Errors
/// The log has a user of that name.
pub fn create_user(state: &SecurityState, user: User) -> Result<Vec<Change>, ChangeError> {
    if state.is_in_log(&user.name) {
        return Err(ChangeError::Exists(named(&user.name)));
    }
    Ok(vec![Change::PutUser(Arc::new(user))])
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

/// Deletes a user of the log. Rules about the user stay.
///
/// # Errors
/// The log has no such user.
pub fn delete_user(state: &SecurityState, name: &str) -> Result<Vec<Change>, ChangeError> {
    if !state.is_in_log(name) {
        return Err(ChangeError::NotFound(named(name)));
    }
    Ok(vec![Change::DeleteUser(name.into())])
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
