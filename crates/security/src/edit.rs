//! Edits: the changes that an administrator asks for, computed from the newest state.

use std::sync::Arc;

use crate::authenticator::ChangeError;
use crate::rule::{Rule, RuleId};
use crate::state::{Change, SecurityState};
use crate::user::User;

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

/// Adds rules. Those that exist are not added again.
pub fn add_rules(state: &SecurityState, rules: Vec<Rule>) -> Vec<Change> {
    let mut next = state.next_rule_id();
    let mut changes = Vec::new();
    for rule in rules {
        let id = state.rule_id(&rule).unwrap_or(next);
        next = RuleId(next.0 + u64::from(id == next));
        changes.push(Change::PutRule(id, Arc::new(rule)));
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
