//! The rules of one connection, compiled: a check costs about one match, however many rules there are.
//!
//! User, roles, listener, address and client identifier of a connection are fixed, so only the rules that apply to it
//! are kept, by action and kind of resource. Literal names are a hash set, prefixes a sorted list without redundant
//! entries, filters the subscription index. [`Grants`] are valid as long as the epoch of the state is the same.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use mainstem_topic::{Index, matches};

use crate::filter::{covers, intersects};
use crate::rule::{Action, CLIENT_ID_VARIABLE, Effect, Origin, Pattern, ResourceKind, Rule, substituted};
use crate::state::SecurityState;

/// Up to this many filters are compared one by one, which is faster than an index.
const LINEAR_FILTERS: usize = 8;

/// What a connection may do.
pub struct Grants {
    epoch: u64,
    /// `None` if everything is allowed.
    rules: Option<Box<Compiled>>,
    depends_on_client_id: bool,
}

/// What becomes of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscribeDecision {
    /// All its messages are allowed.
    Allowed,
    /// Some may not be: each message is checked with [`Grants::allows`] at delivery.
    Narrowed,
    /// None is allowed.
    Refused,
}

#[derive(Default)]
struct Compiled {
    allow: RuleSet,
    deny: RuleSet,
}

/// Rules of one effect by action and kind.
#[derive(Default)]
struct RuleSet {
    sets: Vec<Option<Box<NameSet>>>,
}

/// Names of one kind.
#[derive(Default)]
struct NameSet {
    any: bool,
    literals: HashSet<Arc<str>>,
    /// Sorted; none begins with another.
    prefixes: Vec<Arc<str>>,
    filters: Vec<Arc<str>>,
    /// The filters, if there are many.
    index: Option<Box<Index<()>>>,
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_unrestricted = self.rules.is_none();
        f.debug_struct("Grants")
            .field("epoch", &self.epoch)
            .field("is_unrestricted", &is_unrestricted)
            .finish_non_exhaustive()
    }
}

impl Grants {
    /// Compiles the rules for connections from here.
    pub fn compile(state: &SecurityState, origin: &Origin<'_>) -> Self {
        let epoch = state.epoch();
        // An API key with roles may do what their rules allow, so nothing without rules.
        let has_all_rights = !state.has_rules() && state.allowing_roles(origin.proof).is_none();
        if has_all_rights || state.is_super_user(origin.principal, origin.proof) {
            return Self { epoch, rules: None, depends_on_client_id: false };
        }
        let mut compiled = Compiled::default();
        let mut depends_on_client_id = false;
        for (_, rule) in state.rules_for(origin) {
            if let Pattern::Filter(filter) = &rule.resource.pattern {
                depends_on_client_id |= filter.contains(CLIENT_ID_VARIABLE);
            }
            let set = match rule.effect {
                Effect::Allow => &mut compiled.allow,
                Effect::Deny => &mut compiled.deny,
            };
            set.add(rule, origin);
        }
        compiled.allow.finish();
        compiled.deny.finish();
        Self { epoch, rules: Some(Box::new(compiled)), depends_on_client_id }
    }

    /// The epoch of the state that this was compiled from.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether everything is allowed.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.rules.is_none()
    }

    /// Whether another client identifier may have other grants.
    pub fn depends_on_client_id(&self) -> bool {
        self.depends_on_client_id
    }

    /// Whether an action on one object is allowed. For [`ResourceKind::Cluster`] the name is empty.
    #[inline]
    pub fn allows(&self, action: Action, kind: ResourceKind, name: &str) -> bool {
        let Some(rules) = &self.rules else { return true };
        rules.allows(action, kind, name)
    }

    /// Whether a rule denies the connection. Kafka lets clients connect that no rule allows anything, and answers their
    /// requests.
    pub fn denies_connection(&self) -> bool {
        let (action, kind) = (Action::Connect, ResourceKind::Cluster);
        self.rules
            .as_ref()
            .is_some_and(|rules| rules.deny.set(action, kind).is_some_and(|set| set.contains("")))
    }

    /// Whether an action is allowed on any object of a kind: Kafka asks that before it produces idempotently.
    pub fn allows_any(&self, action: Action, kind: ResourceKind) -> bool {
        let Some(rules) = &self.rules else { return true };
        if rules.deny.set(action, kind).is_some_and(|set| set.any) {
            return false;
        }
        allowing(action).any(|action| rules.allow.set(action, kind).is_some_and(|set| !set.is_empty()))
    }

    /// Decides a subscription to a topic filter, without `$share/<group>/`.
    pub fn subscribe(&self, filter: &str) -> SubscribeDecision {
        let Some(rules) = &self.rules else { return SubscribeDecision::Allowed };
        let (action, kind) = (Action::Subscribe, ResourceKind::Mqtt);
        let (allow, deny) = (rules.allow.set(action, kind), rules.deny.set(action, kind));
        if deny.is_some_and(|set| set.covers(filter)) {
            return SubscribeDecision::Refused;
        }
        let Some(allow) = allow.filter(|set| set.intersects(filter)) else {
            return SubscribeDecision::Refused;
        };
        if allow.covers(filter) && !deny.is_some_and(|set| set.intersects(filter)) {
            SubscribeDecision::Allowed
        } else {
            SubscribeDecision::Narrowed
        }
    }
}

/// The actions whose permission permits `action`.
fn allowing(action: Action) -> impl Iterator<Item = Action> {
    std::iter::once(action).chain(action.implied_by().iter().copied())
}

impl Compiled {
    fn allows(&self, action: Action, kind: ResourceKind, name: &str) -> bool {
        let is_in = |set: &RuleSet, action| set.set(action, kind).is_some_and(|set| set.contains(name));
        !is_in(&self.deny, action) && allowing(action).any(|action| is_in(&self.allow, action))
    }
}

impl RuleSet {
    fn at(action: Action, kind: ResourceKind) -> usize {
        action as usize * ResourceKind::COUNT + kind as usize
    }

    fn set(&self, action: Action, kind: ResourceKind) -> Option<&NameSet> {
        self.sets.get(Self::at(action, kind))?.as_deref()
    }

    fn add(&mut self, rule: &Rule, origin: &Origin<'_>) {
        let pattern = match &rule.resource.pattern {
            Pattern::Filter(filter) => match substituted(filter, rule.effect, origin) {
                Some(filter) => Pattern::Filter(filter),
                None => return,
            },
            pattern => pattern.clone(),
        };
        if self.sets.is_empty() {
            self.sets.resize_with(Action::COUNT * ResourceKind::COUNT, || None);
        }
        if rule.effect == Effect::Allow {
            // Who may do anything may connect.
            self.sets[Self::at(Action::Connect, ResourceKind::Cluster)].get_or_insert_default().any = true;
        }
        let (action, kind) = (rule.action, rule.resource.kind);
        let actions = Action::ALL.iter().filter(|&&one| action == Action::Any || action == one);
        for &action in actions {
            for &kind in ResourceKind::ALL.iter().filter(|&&one| kind.is_none_or(|kind| kind == one)) {
                self.sets[Self::at(action, kind)].get_or_insert_default().add(&pattern);
            }
        }
    }

    fn finish(&mut self) {
        self.sets.iter_mut().flatten().for_each(|set| set.finish());
    }
}

impl NameSet {
    fn add(&mut self, pattern: &Pattern) {
        match pattern {
            Pattern::Any => self.any = true,
            Pattern::Literal(name) => drop(self.literals.insert(Arc::clone(name))),
            Pattern::Prefix(prefix) => self.prefixes.push(Arc::clone(prefix)),
            Pattern::Filter(filter) => self.filters.push(Arc::clone(filter)),
        }
    }

    fn finish(&mut self) {
        self.prefixes.sort_unstable();
        // After sorting, a prefix of an entry comes before it, and all between begin with that prefix too.
        self.prefixes.dedup_by(|later, earlier| later.starts_with(&**earlier));
        self.filters.sort_unstable();
        self.filters.dedup();
        if self.filters.len() > LINEAR_FILTERS {
            let mut index = Index::new();
            for filter in &self.filters {
                index.insert_with(filter, || ());
            }
            self.index = Some(Box::new(index));
        }
    }

    fn is_empty(&self) -> bool {
        !self.any && self.literals.is_empty() && self.prefixes.is_empty() && self.filters.is_empty()
    }

    fn contains(&self, name: &str) -> bool {
        self.any || self.literals.contains(name) || self.has_prefix_of(name) || self.matches(name)
    }

    /// None begins with another, so only the greatest entry up to `name` can be a prefix of it.
    fn has_prefix_of(&self, name: &str) -> bool {
        let after = self.prefixes.partition_point(|prefix| **prefix <= *name);
        after.checked_sub(1).is_some_and(|at| name.starts_with(&*self.prefixes[at]))
    }

    fn matches(&self, name: &str) -> bool {
        let Some(index) = &self.index else {
            return self.filters.iter().any(|filter| matches(filter, name));
        };
        let found = Cell::new(false);
        index.for_each_match(name, |_, ()| found.set(true));
        found.get()
    }

    fn covers(&self, filter: &str) -> bool {
        self.any || self.filters.iter().any(|wide| covers(wide, filter))
    }

    fn intersects(&self, filter: &str) -> bool {
        self.any || self.filters.iter().any(|other| intersects(other, filter))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::api_key::{ApiKey, ApiKeyId};
    use crate::identity::{Principal, Proof};
    use crate::rule::{Resource, RuleId, Subject};
    use crate::state::{Change, Settings};
    use crate::user::User;

    /// The evaluator that cannot be wrong: every rule in turn, in the words of the documentation.
    fn naive(
        rules: &[Rule],
        user_roles: &[&str],
        allowing: Option<&str>,
        user: &str,
        client_id: &str,
        check: (Action, ResourceKind, &str),
    ) -> bool {
        let (action, kind, name) = check;
        if rules.is_empty() && allowing.is_none() {
            return true;
        }
        let applies = |rule: &&Rule| {
            if rule.effect == Effect::Allow
                && let Some(role) = allowing
                && rule.subject != Subject::Role(role.into())
            {
                return false;
            }
            let is_subject = match &rule.subject {
                Subject::Everyone => true,
                Subject::Anonymous => false,
                Subject::User(name) => **name == *user,
                Subject::Role(role) => user_roles.contains(&&**role),
            };
            let implied = match (rule.effect, action) {
                (Effect::Allow, Action::Describe) => {
                    matches!(rule.action, Action::Produce | Action::Consume | Action::Delete)
                }
                _ => false,
            };
            let what = rule.action == Action::Any || rule.action == action || implied;
            let which = rule.resource.kind.is_none_or(|of| of == kind)
                && match &rule.resource.pattern {
                    Pattern::Any => true,
                    Pattern::Literal(literal) => **literal == *name,
                    Pattern::Prefix(prefix) => name.starts_with(&**prefix),
                    Pattern::Filter(filter) => {
                        let filter = filter.replace("${user}", user).replace("${clientid}", client_id);
                        matches(&filter, name)
                    }
                };
            is_subject && what && which
        };
        let decisive: Vec<&Rule> = rules.iter().filter(applies).collect();
        !decisive.is_empty() && decisive.iter().all(|rule| rule.effect == Effect::Allow)
    }

    fn state_of(rules: &[Rule], user_roles: &[&str]) -> SecurityState {
        let mut state = SecurityState::new(Settings::default());
        let mut user = User::new("alice").unwrap();
        user.roles = user_roles.iter().map(|&role| role.into()).collect();
        state.apply(&Change::PutUser(Arc::new(user)));
        for (id, rule) in (1..).zip(rules) {
            state.check(&Change::PutRule(RuleId(id), Arc::new(rule.clone()))).unwrap();
            state.apply(&Change::PutRule(RuleId(id), Arc::new(rule.clone())));
        }
        state
    }

    /// Adds an API key that only this role allows anything.
    fn log_in_with_key(state: &mut SecurityState, role: &str) -> Proof {
        let id = ApiKeyId(1);
        let key = ApiKey {
            user: "alice".into(),
            hash: [1; 32],
            roles: vec![role.into()],
            description: "".into(),
            created_ms: 1,
            expires_ms: None,
        };
        state.apply(&Change::PutApiKey(id, Arc::new(key)));
        Proof { api_key: Some(id), ..Proof::default() }
    }

    fn mqtt_filters() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just("a"), Just("b"), Just("+"), Just("${user}"), Just("${clientid}")];
        (proptest::collection::vec(level, 1..4), any::<bool>()).prop_map(|(levels, multi)| {
            let filter = levels.join("/");
            if multi { format!("{filter}/#") } else { filter }
        })
    }

    fn mqtt_rules() -> impl Strategy<Value = Rule> {
        let subject =
            prop_oneof![Just("*"), Just("user:alice"), Just("user:bob"), Just("role:ops"), Just("anonymous")];
        let action = prop_oneof![Just(Action::Publish), Just(Action::Subscribe), Just(Action::Any)];
        let resource = prop_oneof![
            8 => mqtt_filters().prop_map(|filter| Resource::filter(&filter)),
            1 => Just(Resource::EVERYTHING),
        ];
        (subject, prop_oneof![3 => Just(Effect::Allow), 1 => Just(Effect::Deny)], action, resource).prop_map(
            |(subject, effect, action, resource)| Rule {
                subject: subject.parse().unwrap(),
                effect,
                action,
                resource,
                listener: None,
                network: None,
            },
        )
    }

    fn topic_rules() -> impl Strategy<Value = Rule> {
        let action = prop_oneof![
            Just(Action::Produce),
            Just(Action::Consume),
            Just(Action::Describe),
            Just(Action::Delete),
            Just(Action::Any),
        ];
        let name = "[ab]{1,3}";
        let topic = ResourceKind::Topic;
        let resource = prop_oneof![
            name.prop_map(move |name| Resource::literal(topic, &name)),
            name.prop_map(move |name| Resource::prefix(topic, &name)),
            Just(Resource { kind: Some(topic), pattern: Pattern::Any }),
        ];
        (prop_oneof![3 => Just(Effect::Allow), 1 => Just(Effect::Deny)], action, resource).prop_map(
            |(effect, action, resource)| Rule {
                subject: Subject::User("alice".into()),
                effect,
                action,
                resource,
                listener: None,
                network: None,
            },
        )
    }

    fn all_names(levels: &[&str]) -> Vec<String> {
        let mut names: Vec<String> = levels.iter().map(|&level| level.to_owned()).collect();
        let mut longest = names.clone();
        for _ in 0..3 {
            longest = longest
                .iter()
                .flat_map(|name| levels.iter().map(move |level| format!("{name}/{level}")))
                .collect();
            names.extend(longest.iter().cloned());
        }
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn mqtt_checks_are_those_of_every_rule_in_turn(
            rules in proptest::collection::vec(mqtt_rules(), 0..14),
            has_role in any::<bool>(),
            key_role in prop_oneof![2 => Just(None), 1 => Just(Some("ops")), 1 => Just(Some("other"))],
            filter in mqtt_filters(),
        ) {
            let user_roles: &[&str] = if has_role { &["ops"] } else { &[] };
            let mut state = state_of(&rules, user_roles);
            let proof = key_role.map(|role| log_in_with_key(&mut state, role));
            let principal = Principal::User("alice".into());
            let origin = Origin { principal: &principal, proof: proof.as_ref(), client_id: Some("7"), listener: None, address: None };
            let grants = Grants::compile(&state, &origin);
            let names = all_names(&["a", "b", "alice", "7"]);
            for name in &names {
                for action in [Action::Publish, Action::Subscribe] {
                    let check = (action, ResourceKind::Mqtt, name.as_str());
                    let expected = naive(&rules, user_roles, key_role, "alice", "7", check);
                    prop_assert_eq!(grants.allows(action, ResourceKind::Mqtt, name), expected, "{} {}", action, name);
                    let explained = state.explain(&origin, action, ResourceKind::Mqtt, name);
                    prop_assert_eq!(explained.allowed, expected, "{} {}", action, name);
                }
            }
            let filter = filter.replace("${user}", "alice").replace("${clientid}", "7");
            let matching = names.iter().filter(|name| matches(&filter, name));
            let allowed: Vec<bool> = matching
                .map(|name| grants.allows(Action::Subscribe, ResourceKind::Mqtt, name))
                .collect();
            match grants.subscribe(&filter) {
                SubscribeDecision::Allowed => prop_assert!(allowed.iter().all(|&allowed| allowed)),
                SubscribeDecision::Refused => prop_assert!(!allowed.iter().any(|&allowed| allowed)),
                // Each message is checked, so this is right for any subscription.
                SubscribeDecision::Narrowed => {}
            }
        }

        #[test]
        fn checks_of_names_are_those_of_every_rule_in_turn(
            rules in proptest::collection::vec(topic_rules(), 0..12),
        ) {
            let state = state_of(&rules, &[]);
            let principal = Principal::User("alice".into());
            let origin = Origin { principal: &principal, proof: None, client_id: None, listener: None, address: None };
            let grants = Grants::compile(&state, &origin);
            let mut any: BTreeMap<Action, bool> = BTreeMap::new();
            for name in all_names(&["a", "b"]).iter().map(|name| name.replace('/', "")) {
                for action in [Action::Produce, Action::Consume, Action::Describe, Action::Delete] {
                    let expected = naive(&rules, &[], None, "alice", "", (action, ResourceKind::Topic, &name));
                    prop_assert_eq!(grants.allows(action, ResourceKind::Topic, &name), expected, "{} {}", action, name);
                    *any.entry(action).or_default() |= expected;
                }
            }
            for (action, any) in any {
                // It does not subtract rules that deny some names.
                prop_assert!(!any || grants.allows_any(action, ResourceKind::Topic), "{}", action);
            }
        }
    }

    #[test]
    fn conditions_are_those_of_the_connection() {
        let rule = Rule {
            subject: Subject::Everyone,
            effect: Effect::Allow,
            action: Action::Publish,
            resource: Resource::filter("#"),
            listener: Some("plant".into()),
            network: Some("192.0.2.0/24".parse().unwrap()),
        };
        let state = state_of(&[rule], &[]);
        let principal = Principal::Anonymous;
        for (listener, address, expected) in [
            (Some("plant"), Some("192.0.2.9"), true),
            (Some("plant"), Some("192.0.3.9"), false),
            (Some("other"), Some("192.0.2.9"), false),
            (Some("plant"), None, false),
            (None, Some("192.0.2.9"), false),
        ] {
            let address = address.map(|address| address.parse().unwrap());
            let origin = Origin { principal: &principal, proof: None, client_id: None, listener, address };
            let grants = Grants::compile(&state, &origin);
            assert_eq!(grants.allows(Action::Publish, ResourceKind::Mqtt, "a"), expected, "{listener:?}");
        }
    }

    #[test]
    fn super_users_may_do_everything() {
        let rule = Rule {
            subject: Subject::Everyone,
            effect: Effect::Deny,
            action: Action::Any,
            resource: Resource::EVERYTHING,
            listener: None,
            network: None,
        };
        let settings = Settings { super_users: ["root".into()].into(), ..Settings::default() };
        let mut state = SecurityState::new(settings);
        state.apply(&Change::PutRule(RuleId(1), Arc::new(rule)));
        let proof = log_in_with_key(&mut state, "ops");
        for (name, proof, expected) in
            [("root", None, true), ("alice", None, false), ("root", Some(&proof), false)]
        {
            let principal = Principal::User(name.into());
            let origin =
                Origin { principal: &principal, proof, client_id: None, listener: None, address: None };
            let grants = Grants::compile(&state, &origin);
            assert_eq!(grants.is_unrestricted(), expected);
            assert_eq!(grants.allows(Action::AdminWrite, ResourceKind::Cluster, ""), expected);
        }
    }

    /// Without rules every user may do everything, but a key that was narrowed to a role, or deleted, may do nothing.
    #[test]
    fn an_api_key_with_roles_needs_rules() {
        let mut state = state_of(&[], &["ops"]);
        let proof = log_in_with_key(&mut state, "ops");
        let principal = Principal::User("alice".into());
        let may = |state: &SecurityState, proof: Option<&Proof>| {
            let origin =
                Origin { principal: &principal, proof, client_id: None, listener: None, address: None };
            let explained = state.explain(&origin, Action::Publish, ResourceKind::Mqtt, "a").allowed;
            let allowed = Grants::compile(state, &origin).allows(Action::Publish, ResourceKind::Mqtt, "a");
            assert_eq!(allowed, explained);
            allowed
        };
        assert!(may(&state, None) && !may(&state, Some(&proof)));
        state.apply(&Change::DeleteApiKey(ApiKeyId(1)));
        assert!(!may(&state, Some(&proof)));
    }

    #[test]
    fn subscriptions_are_allowed_narrowed_or_refused() {
        let rule = |effect, filter: &str| Rule {
            subject: Subject::Everyone,
            effect,
            action: Action::Subscribe,
            resource: Resource::filter(filter),
            listener: None,
            network: None,
        };
        let state = state_of(&[rule(Effect::Allow, "plant/#"), rule(Effect::Deny, "plant/secret/#")], &[]);
        let principal = Principal::Anonymous;
        let origin =
            Origin { principal: &principal, proof: None, client_id: None, listener: None, address: None };
        let grants = Grants::compile(&state, &origin);
        for (filter, expected) in [
            ("plant/a", SubscribeDecision::Allowed),
            ("plant/a/#", SubscribeDecision::Allowed),
            ("plant/#", SubscribeDecision::Narrowed),
            ("#", SubscribeDecision::Narrowed),
            ("+/+", SubscribeDecision::Narrowed),
            ("plant/secret/a", SubscribeDecision::Refused),
            ("office/#", SubscribeDecision::Refused),
            ("$SYS/#", SubscribeDecision::Refused),
        ] {
            assert_eq!(grants.subscribe(filter), expected, "{filter}");
        }
    }
}
