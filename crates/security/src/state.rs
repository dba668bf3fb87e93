//! The state machine of users, rules, quotas, bans and API keys: changes go in, snapshots come out.
//!
//! A change is checked, made durable by the host, then applied; the same changes from the log give the same state.
//! Applying one twice has the effect of once, because a record may be read again after a crash. Readers get the state
//! as a whole: they see all of a change or nothing of it, and the epoch tells them whether anything is new.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_quota::{Entity, MAX_QUOTAS, QuotaTable, Quotas};

use crate::api_key::{ApiKey, ApiKeyId, ApiKeys};
use crate::ban::{Ban, BanSubject, Bans, MAX_BANS};
use crate::error::SecurityError;
use crate::identity::{Principal, Proof};
use crate::rule::{Effect, Origin, Rule, RuleId, Subject};
use crate::scram::{ScramAlgorithm, ScramKeys};
use crate::scram_shape::ScramShapes;
use crate::user::User;

/// Most users.
pub const MAX_USERS: usize = 100_000;
/// Most rules.
pub const MAX_RULES: usize = 100_000;

/// Whether connections without a user are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// They are.
    Allowed,
    /// They are not.
    #[default]
    Refused,
    /// They are as long as there is no user, and nothing else names users.
    UntilUsers,
}

/// What the configuration says, apart from users and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether connections without a user are accepted.
    pub anonymous: Anonymous,
    /// Users that may do everything.
    pub super_users: BTreeSet<Arc<str>>,
    /// Users of the password file. A user of the log with the same name replaces one of these.
    pub file_users: BTreeMap<Arc<str>, Arc<User>>,
    /// Whether certificates or tokens name users that are not in the user store.
    pub has_other_users: bool,
}

/// A change of users, rules, quotas, bans or API keys. Applying one twice has the effect of applying it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a user, or replaces the one with its name.
    PutUser(Arc<User>),
    /// Deletes a user.
    DeleteUser(Arc<str>),
    /// Adds a rule, or replaces the one with its identifier.
    PutRule(RuleId, Arc<Rule>),
    /// Deletes a rule.
    DeleteRule(RuleId),
    /// Sets the quotas of an entity, in place of those that it has.
    PutQuotas(Entity, Quotas),
    /// Deletes the quotas of an entity.
    DeleteQuotas(Entity),
    /// Adds a ban, or replaces the one of its subject.
    PutBan(BanSubject, Arc<Ban>),
    /// Deletes a ban.
    DeleteBan(BanSubject),
    /// Adds an API key, or replaces the one with its identifier.
    PutApiKey(ApiKeyId, Arc<ApiKey>),
    /// Deletes an API key, which ends what has logged in with it.
    DeleteApiKey(ApiKeyId),
}

/// All users, rules, quotas, bans and API keys at one time.
#[derive(Clone, Debug, Default)]
pub struct SecurityState {
    epoch: u64,
    settings: Arc<Settings>,
    users: BTreeMap<Arc<str>, Arc<User>>,
    rules: BTreeMap<RuleId, Arc<Rule>>,
    /// The identifiers of the same rules by content, so that none is stored twice.
    ids: BTreeMap<Arc<Rule>, RuleId>,
    /// The identifiers of the same rules by subject.
    by_subject: BTreeMap<Subject, BTreeSet<RuleId>>,
    /// The highest identifier that a rule has had.
    last_rule: u64,
    /// The forms of the users' keys.
    scram_shapes: ScramShapes,
    quotas: Arc<QuotaTable>,
    bans: Arc<Bans>,
    api_keys: Arc<ApiKeys>,
}

impl SecurityState {
    /// No users but those of the settings, and no rules.
    pub fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), ..Self::default() }
    }

    /// Grows with every change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The same users and rules with other settings. They count as a change.
    #[must_use]
    pub fn with_settings(&self, settings: Settings) -> Self {
        Self { epoch: self.epoch + 1, settings: Arc::new(settings), ..self.clone() }
    }

    /// Checks a change against the state it would be applied to.
    ///
    /// # Errors
    /// The user or rule is invalid, or there would be too many.
    pub fn check(&self, change: &Change) -> Result<(), SecurityError> {
        match change {
            Change::PutUser(user) => {
                user.check()?;
                if self.users.len() >= MAX_USERS && !self.users.contains_key(&user.name) {
                    return Err(SecurityError::Limit("there are 100000 users, which is the limit"));
                }
            }
            Change::PutRule(id, rule) => {
                rule.check()?;
                if self.rules.len() >= MAX_RULES && !self.rules.contains_key(id) {
                    return Err(SecurityError::Limit("there are 100000 rules, which is the limit"));
                }
            }
            Change::PutQuotas(entity, quotas) => {
                quotas.check(entity).map_err(SecurityError::Quota)?;
                if self.quotas.len() >= MAX_QUOTAS && self.quotas.get(entity).is_none() {
                    return Err(SecurityError::Limit("100000 entities have quotas, which is the limit"));
                }
            }
            Change::PutBan(subject, ban) => {
                ban.check(subject)?;
                if self.bans.len() >= MAX_BANS && self.bans.get(subject).is_none() {
                    return Err(SecurityError::Limit("there are 100000 bans, which is the limit"));
                }
            }
            Change::PutApiKey(id, key) => self.api_keys.check(*id, key)?,
            Change::DeleteUser(_)
            | Change::DeleteRule(_)
            | Change::DeleteQuotas(_)
            | Change::DeleteBan(_)
            | Change::DeleteApiKey(_) => {}
        }
        Ok(())
    }

    /// Applies a change. Returns whether anything is different now.
    pub fn apply(&mut self, change: &Change) -> bool {
        let has_changed = match change {
            Change::PutUser(user) => {
                let before = self.users.insert(Arc::clone(&user.name), Arc::clone(user));
                if let Some(before) = &before {
                    self.scram_shapes.remove(before);
                }
                self.scram_shapes.add(user);
                before.as_ref() != Some(user)
            }
            Change::DeleteUser(name) => {
                let before = self.users.remove(name);
                if let Some(before) = &before {
                    self.scram_shapes.remove(before);
                }
                before.is_some()
            }
            Change::PutRule(id, rule) => {
                self.note_rule_id(*id);
                self.rules.get(id) != Some(rule) && {
                    self.remove_rule(*id);
                    self.ids.insert(Arc::clone(rule), *id);
                    self.by_subject.entry(rule.subject.clone()).or_default().insert(*id);
                    self.rules.insert(*id, Arc::clone(rule));
                    true
                }
            }
            Change::DeleteRule(id) => {
                self.note_rule_id(*id);
                self.remove_rule(*id)
            }
            Change::PutQuotas(entity, quotas) => Arc::make_mut(&mut self.quotas).put(entity, Some(quotas)),
            Change::DeleteQuotas(entity) => Arc::make_mut(&mut self.quotas).put(entity, None),
            Change::PutBan(subject, ban) => Arc::make_mut(&mut self.bans).put(subject, ban),
            Change::DeleteBan(subject) => Arc::make_mut(&mut self.bans).remove(subject),
            Change::PutApiKey(id, key) => Arc::make_mut(&mut self.api_keys).put(*id, key),
            Change::DeleteApiKey(id) => Arc::make_mut(&mut self.api_keys).remove(*id),
        };
        self.epoch += u64::from(has_changed);
        has_changed
    }

    /// Notes that a rule has had this identifier, so that no later one gets it.
    pub fn note_rule_id(&mut self, id: RuleId) {
        self.last_rule = self.last_rule.max(id.0);
    }

    fn remove_rule(&mut self, id: RuleId) -> bool {
        let Some(rule) = self.rules.remove(&id) else { return false };
        if self.ids.get(&rule) == Some(&id) {
            self.ids.remove(&rule);
        }
        if let Some(ids) = self.by_subject.get_mut(&rule.subject) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_subject.remove(&rule.subject);
            }
        }
        true
    }

    /// A user, of the log or of the password file.
    pub fn user(&self, name: &str) -> Option<&Arc<User>> {
        self.users.get(name).or_else(|| self.settings.file_users.get(name))
    }

    /// The keys with which a user may log in, and those to show to a client if there are none: the user is unknown or
    /// disabled, or has no such keys. They depend on `secret`, and look like those of others.
    pub fn scram_keys(
        &self,
        name: &str,
        algorithm: ScramAlgorithm,
        secret: &[u8],
    ) -> (Option<ScramKeys>, ScramKeys) {
        // Computed in any case, so that both take as long.
        let hash = algorithm.hmac(secret, &[name.as_bytes(), b"\0shape"].concat());
        let hash = u64::from_be_bytes(hash[..8].try_into().expect("a hash has 32 bytes"));
        let shape = self.scram_shapes.pick(algorithm, hash);
        let shown = shape.keys_of_unknown_user(algorithm, secret, name);
        match self.user(name).and_then(|user| Some((user.disabled, user.scram(algorithm)?.clone()))) {
            Some((false, keys)) => (Some(keys), shown),
            // Disabling a user must not be seen from outside.
            Some((true, keys)) => (None, keys),
            None => (None, shown),
        }
    }

    /// The users of the log, by name.
    pub fn users(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// Whether a user of this name is in the log, where it can be changed.
    pub fn is_in_log(&self, name: &str) -> bool {
        self.users.contains_key(name)
    }

    /// All users: those of the log, and those of the password file that none of the log replaces.
    pub fn all_users(&self) -> impl Iterator<Item = &Arc<User>> {
        let file = self.settings.file_users.values();
        self.users.values().chain(file.filter(|user| !self.users.contains_key(&user.name)))
    }

    /// Whether there is any user.
    pub fn has_users(&self) -> bool {
        !self.users.is_empty() || !self.settings.file_users.is_empty()
    }

    /// Whether clients log in: there are users, or certificates or tokens name some.
    pub fn has_log_ins(&self) -> bool {
        self.has_users() || self.settings.has_other_users
    }

    /// Whether a connection with this identity is accepted now. A user that the user store has disabled is not,
    /// whatever names it; nor is whoever has logged in with an API key that was deleted since.
    pub fn admits(&self, principal: &Principal, proof: Option<&Proof>) -> bool {
        match principal {
            Principal::Anonymous => self.allows_anonymous(),
            Principal::User(name) => match self.user(name) {
                Some(user) => !user.disabled && self.has_api_key_of(name, proof),
                None => proof.is_some_and(|proof| proof.is_external),
            },
        }
    }

    /// Whether the API key of a proof, if it has one, is a key of this user.
    fn has_api_key_of(&self, user: &str, proof: Option<&Proof>) -> bool {
        let id = proof.and_then(|proof| proof.api_key);
        id.is_none_or(|id| self.api_keys.get(id).is_some_and(|key| *key.user == *user))
    }

    /// Whether what a client with this identity has left behind still counts. After a restart nothing tells whether a
    /// certificate or token has named a user who is not in the user store.
    pub fn admits_absent(&self, principal: &Principal, proof: Option<&Proof>) -> bool {
        let may_be_external = proof.is_none() && self.settings.has_other_users;
        self.admits(principal, proof)
            || may_be_external && matches!(principal, Principal::User(name) if self.user(name).is_none())
    }

    /// Whether connections without a user are accepted now.
    pub fn allows_anonymous(&self) -> bool {
        match self.settings.anonymous {
            Anonymous::Allowed => true,
            Anonymous::Refused => false,
            Anonymous::UntilUsers => !self.has_log_ins(),
        }
    }

    /// Whether there is any rule; the default is to deny then.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The rules, by identifier.
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Arc<Rule>)> {
        self.rules.iter().map(|(id, rule)| (*id, rule))
    }

    /// A rule.
    pub fn rule(&self, id: RuleId) -> Option<&Arc<Rule>> {
        self.rules.get(&id)
    }

    /// The identifier of a rule with this content.
    pub fn rule_id(&self, rule: &Rule) -> Option<RuleId> {
        self.ids.get(rule).copied()
    }

    /// An identifier for the next rule, which no rule has had. Whoever notes an identifier of a deleted rule must not
    /// mean another one.
    pub fn next_rule_id(&self) -> RuleId {
        RuleId(self.last_rule + 1)
    }

    /// The quotas.
    pub fn quotas(&self) -> &QuotaTable {
        &self.quotas
    }

    /// The bans.
    pub fn bans(&self) -> &Bans {
        &self.bans
    }

    /// The API keys.
    pub fn api_keys(&self) -> &ApiKeys {
        &self.api_keys
    }

    /// Whether a client with this identity may do everything by the settings. An API key with roles may not.
    pub fn is_super_user(&self, principal: &Principal, proof: Option<&Proof>) -> bool {
        self.allowing_roles(proof).is_none()
            && principal.user().is_some_and(|name| self.settings.super_users.contains(name))
    }

    /// Whether a client may do less than its user, because its API key has roles or was deleted.
    pub fn is_narrowed(&self, proof: Option<&Proof>) -> bool {
        self.allowing_roles(proof).is_some()
    }

    /// The only roles whose rules allow a client anything; `None` if all rules about it do. They narrow an API key: its
    /// user must have the role, too, and what denies its user something denies it to the key.
    pub(crate) fn allowing_roles(&self, proof: Option<&Proof>) -> Option<&[Arc<str>]> {
        let id = proof.and_then(|proof| proof.api_key)?;
        // A key that was deleted allows nothing.
        self.api_keys.get(id).map_or(Some(&[]), |key| (!key.roles.is_empty()).then_some(&*key.roles))
    }

    /// Whether a rule applies to a client with these roles, of which `allowing` allow anything.
    pub(crate) fn applies(
        rule: &Rule,
        origin: &Origin<'_>,
        roles: &[Arc<str>],
        allowing: Option<&[Arc<str>]>,
    ) -> bool {
        let may_allow = allowing.is_none_or(|allowing| match &rule.subject {
            Subject::Role(name) => allowing.contains(name),
            _ => false,
        });
        (rule.effect == Effect::Deny || may_allow) && rule.applies_to(origin, roles)
    }

    /// The roles of a connection: those of its user, and those that a token gives it.
    pub fn roles(&self, origin: &Origin<'_>) -> Cow<'_, [Arc<str>]> {
        let user = origin.principal.user().and_then(|name| self.user(name));
        let stored: &[Arc<str>] = user.map_or(&[], |user| &user.roles);
        match origin.proof {
            Some(proof) if !proof.roles.is_empty() => Cow::Owned([stored, &proof.roles].concat()),
            _ => Cow::Borrowed(stored),
        }
    }

    /// The rules that apply to connections from here, by identifier.
    pub fn rules_for(&self, origin: &Origin<'_>) -> Vec<(RuleId, &Arc<Rule>)> {
        let (roles, allowing) = (&*self.roles(origin), self.allowing_roles(origin.proof));
        let own = match origin.principal {
            Principal::Anonymous => Subject::Anonymous,
            Principal::User(name) => Subject::User(Arc::clone(name)),
        };
        let subjects =
            roles.iter().map(|role| Subject::Role(Arc::clone(role))).chain([Subject::Everyone, own]);
        let ids: BTreeSet<RuleId> =
            subjects.filter_map(|subject| self.by_subject.get(&subject)).flatten().copied().collect();
        ids.into_iter()
            .map(|id| (id, &self.rules[&id]))
            .filter(|(_, rule)| Self::applies(rule, origin, roles, allowing))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Action, Resource};

    fn rule(user: &str) -> Arc<Rule> {
        Arc::new(Rule {
            subject: Subject::User(user.into()),
            effect: Effect::Allow,
            action: Action::Publish,
            resource: Resource::filter("a/#"),
            listener: None,
            network: None,
        })
    }

    #[test]
    fn changes_are_idempotent() {
        let mut state = SecurityState::new(Settings::default());
        let user = Arc::new(User::new("alice").unwrap());
        let changes = [
            Change::PutUser(Arc::clone(&user)),
            Change::PutRule(RuleId(1), rule("alice")),
            Change::PutRule(RuleId(2), rule("bob")),
            Change::PutRule(RuleId(2), rule("carol")),
            Change::DeleteRule(RuleId(1)),
            Change::DeleteUser("alice".into()),
        ];
        for change in &changes {
            state.check(change).unwrap();
            let epoch = state.epoch();
            assert!(state.apply(change), "{change:?}");
            assert_eq!(state.epoch(), epoch + 1);
            assert!(!state.apply(change), "{change:?}");
            assert_eq!(state.epoch(), epoch + 1);
        }
        assert_eq!(state.rule_id(&rule("bob")), None);
        assert_eq!(state.rule_id(&rule("carol")), Some(RuleId(2)));
        assert_eq!(state.next_rule_id(), RuleId(3));
        assert!(!state.has_users());
    }

    #[test]
    fn an_api_key_ends_with_its_deletion_and_with_its_user() {
        let mut state = SecurityState::default();
        let (alice, bob) = (Principal::User("alice".into()), Principal::User("bob".into()));
        for name in ["alice", "bob"] {
            state.apply(&Change::PutUser(Arc::new(User::new(name).unwrap())));
        }
        let id = ApiKeyId(1);
        let proof = Proof { api_key: Some(id), ..Proof::default() };
        assert!(!state.admits(&alice, Some(&proof)), "there is no such key");
        let key = ApiKey {
            user: "alice".into(),
            hash: [1; 32],
            roles: Vec::new(),
            description: "".into(),
            created_ms: 1,
            expires_ms: None,
        };
        let put = Change::PutApiKey(id, Arc::new(key));
        state.check(&put).unwrap();
        assert!(state.apply(&put) && !state.apply(&put));
        assert!(state.admits(&alice, Some(&proof)) && !state.admits(&bob, Some(&proof)));
        state.apply(&Change::DeleteUser("alice".into()));
        assert!(!state.admits(&alice, Some(&proof)));
        state.apply(&Change::PutUser(Arc::new(User::new("alice").unwrap())));
        assert!(state.admits(&alice, Some(&proof)));
        assert!(state.apply(&Change::DeleteApiKey(id)));
        assert!(!state.admits(&alice, Some(&proof)) && !state.admits_absent(&alice, Some(&proof)));
        assert!(state.admits(&alice, None));
    }

    #[test]
    fn users_of_the_log_replace_those_of_the_file() {
        let named = |name: &str, disabled| Arc::new(User { disabled, ..User::new(name).unwrap() });
        let file_users =
            [named("alice", true), named("bob", true)].map(|user| (Arc::clone(&user.name), user));
        let settings = Settings { file_users: file_users.into_iter().collect(), ..Settings::default() };
        let mut state = SecurityState::new(settings);
        assert!(state.user("alice").unwrap().disabled);
        state.apply(&Change::PutUser(named("alice", false)));
        assert!(!state.user("alice").unwrap().disabled);
        let all: Vec<_> = state.all_users().map(|user| (&*user.name, user.disabled)).collect();
        assert_eq!(all, [("alice", false), ("bob", true)]);
        state.apply(&Change::DeleteUser("alice".into()));
        assert!(state.user("alice").unwrap().disabled);
    }

    #[test]
    fn the_identifier_of_a_deleted_rule_is_not_used_again() {
        let mut state = SecurityState::default();
        assert_eq!(state.next_rule_id(), RuleId(1));
        for id in 1..4 {
            state.apply(&Change::PutRule(RuleId(id), rule(&format!("user-{id}"))));
        }
        state.apply(&Change::DeleteRule(RuleId(3)));
        assert_eq!(state.next_rule_id(), RuleId(4));
        state.note_rule_id(RuleId(9));
        state.note_rule_id(RuleId(5));
        assert_eq!(state.next_rule_id(), RuleId(10));
    }

    #[test]
    fn certificates_and_tokens_name_users_and_give_roles() {
        let mut state = SecurityState::new(Settings { has_other_users: true, ..Settings::default() });
        assert!(state.has_log_ins() && !state.has_users());
        let proof = Proof { is_external: true, roles: vec!["ops".into()], ..Proof::default() };
        let alice = Principal::User("alice".into());
        assert!(state.admits(&alice, Some(&proof)));
        assert!(!state.admits(&alice, None));
        assert!(!state.admits(&alice, Some(&Proof::default())), "a common name is no user");
        let named = |disabled| {
            let roles = vec!["staff".into()];
            Change::PutUser(Arc::new(User { roles, disabled, ..User::new("alice").unwrap() }))
        };
        state.apply(&named(false));
        let origin =
            Origin { principal: &alice, proof: Some(&proof), client_id: None, listener: None, address: None };
        assert_eq!(*state.roles(&origin), ["staff".into(), "ops".into()]);
        let of_role = Rule { subject: Subject::Role("ops".into()), ..Rule::clone(&rule("x")) };
        state.apply(&Change::PutRule(RuleId(1), Arc::new(of_role)));
        assert_eq!(state.rules_for(&origin).len(), 1);
        assert!(state.rules_for(&Origin { proof: None, ..origin }).is_empty());
        assert!(state.admits(&alice, None) && state.admits(&alice, Some(&proof)));
        let gone = Principal::User("gone".into());
        assert!(state.admits_absent(&gone, None), "a certificate may have named it");
        assert!(!state.admits_absent(&gone, Some(&Proof::default())));
        assert!(!SecurityState::default().admits_absent(&gone, None));
        state.apply(&named(true));
        assert!(!state.admits(&alice, None) && !state.admits(&alice, Some(&proof)));
        assert!(!state.admits_absent(&alice, None));
    }
}
