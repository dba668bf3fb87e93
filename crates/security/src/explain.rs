//! Why an action is allowed or denied: the rules compared one by one.
//!
//! Compiled rules answer fast and cannot say why. This compares rule by rule, as slowly as it is obvious, with the same
//! functions for patterns and substitutions; a property test compares the two.

use std::sync::Arc;

use mainstem_topic::matches;

use crate::rule::{Action, Effect, Origin, Pattern, ResourceKind, Rule, RuleId, substituted};
use crate::state::SecurityState;

/// A decision and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Whether the action is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: Reason,
}

/// What decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `security.super_users` has the user.
    SuperUser,
    /// There are no rules.
    NoRules,
    /// The rule with the smallest identifier among those that decide.
    Rule(RuleId, Arc<Rule>),
    /// No rule allows it.
    NoRuleAllows,
}

impl SecurityState {
    /// Decides one action by comparing every rule, and says why. For people, and the reference for
    /// [`Grants`](crate::Grants).
    pub fn explain(
        &self,
        origin: &Origin<'_>,
        action: Action,
        kind: ResourceKind,
        name: &str,
    ) -> Explanation {
        explain(self, origin, action, kind, name)
    }
}

fn explain(
    state: &SecurityState,
    origin: &Origin<'_>,
    action: Action,
    kind: ResourceKind,
    name: &str,
) -> Explanation {
    let allowing = state.allowing_roles(origin.proof);
    if state.is_super_user(origin.principal, origin.proof) {
        return Explanation { allowed: true, reason: Reason::SuperUser };
    }
    if !state.has_rules() && allowing.is_none() {
        return Explanation { allowed: true, reason: Reason::NoRules };
    }
    let roles = &*state.roles(origin);
    let applies = |rule: &Rule| SecurityState::applies(rule, origin, roles, allowing);
    let decides = |rule: &Rule, effect: Effect| {
        if action == Action::Connect && effect == Effect::Allow {
            // Who may do anything may connect.
            return rule.effect == effect && applies(rule) && has_names(rule, origin);
        }
        let is_action = rule.action == Action::Any
            || rule.action == action
            || (effect == Effect::Allow && action.implied_by().contains(&rule.action));
        let is_kind = rule.resource.kind.is_none_or(|of| of == kind);
        rule.effect == effect && is_action && is_kind && applies(rule) && covers_name(rule, origin, name)
    };
    for effect in [Effect::Deny, Effect::Allow] {
        if let Some((id, rule)) = state.rules().find(|(_, rule)| decides(rule, effect)) {
            let reason = Reason::Rule(id, Arc::clone(rule));
            return Explanation { allowed: effect == Effect::Allow, reason };
        }
    }
    Explanation { allowed: false, reason: Reason::NoRuleAllows }
}

/// Whether the rule names anything for a connection: its filter may have a variable without a value.
fn has_names(rule: &Rule, origin: &Origin<'_>) -> bool {
    match &rule.resource.pattern {
        Pattern::Filter(filter) => substituted(filter, rule.effect, origin).is_some(),
        _ => true,
    }
}

fn covers_name(rule: &Rule, origin: &Origin<'_>, name: &str) -> bool {
    match &rule.resource.pattern {
        Pattern::Any => true,
        Pattern::Literal(literal) => **literal == *name,
        Pattern::Prefix(prefix) => name.starts_with(&**prefix),
        Pattern::Filter(filter) => {
            substituted(filter, rule.effect, origin).is_some_and(|filter| matches(&filter, name))
        }
    }
}
