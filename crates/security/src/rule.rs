//! Rules: who may do what with which objects, from where.
//!
//! One model has to serve three protocols: an MQTT topic filter, a Kafka ACL and a queue name are all a [`Pattern`] on
//! a [`ResourceKind`], and actions have the names of the protocol that they come from. Deny wins over allow whatever
//! the order of rules, so a rule has no position, and adding one cannot change what another means.
//!
//! `${user}`, `${clientid}` and `${cn}` are replaced by text that a client may have chosen. That text must stay one
//! plain level: if it is empty or has a wildcard, a separator or `$`, a rule that allows does not apply, and in one
//! that denies `+` stands in its place.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use mainstem_topic::check_filter;

use crate::error::SecurityError;
use crate::identity::{Principal, Proof};
use crate::network::Network;
use crate::user::check_name;

/// Longest name or prefix of a resource, bytes.
pub const MAX_RESOURCE_BYTES: usize = 1024;

/// Stands for the user's name in the filter of a rule.
pub const USER_VARIABLE: &str = "${user}";
/// Stands for the common name of the client's certificate in the filter of a rule.
pub const COMMON_NAME_VARIABLE: &str = "${cn}";
/// Stands for the client identifier in the filter of a rule.
pub const CLIENT_ID_VARIABLE: &str = "${clientid}";

/// Identifies a rule. Never reused while the rule exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u64);

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// The principals that it applies to.
    pub subject: Subject,
    /// What it decides.
    pub effect: Effect,
    /// Which action.
    pub action: Action,
    /// On which objects.
    pub resource: Resource,
    /// From where: only through the listener with this name.
    pub listener: Option<Arc<str>>,
    /// From where: only from this network.
    pub network: Option<Network>,
}

/// The principals that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Everyone, with a user name or without.
    Everyone,
    /// Connections without a user.
    Anonymous,
    /// One user.
    User(Arc<str>),
    /// The users with a role.
    Role(Arc<str>),
}

/// What a rule decides. A rule that denies wins over all that allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// It allows the action.
    Allow,
    /// It denies the action.
    Deny,
}

macro_rules! names {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name in rules.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl FromStr for $type {
            type Err = SecurityError;

            fn from_str(name: &str) -> Result<Self, SecurityError> {
                Self::ALL.iter().copied().find(|known| known.name() == name).ok_or_else(|| {
                    let known: Vec<&str> = Self::ALL.iter().map(|known| known.name()).collect();
                    SecurityError::Rule(format!("`{name}` is no {}: it is one of {}", $what, known.join(", ")))
                })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

names! {
    /// What someone does.
    Action, "action",
    /// Every action on the resource.
    Any = "*",
    /// Connect to a listener; on [`ResourceKind::Cluster`]. Any rule that allows anything allows this, too.
    Connect = "connect",
    /// Publish an MQTT message.
    Publish = "publish",
    /// Subscribe to MQTT messages and receive them.
    Subscribe = "subscribe",
    /// Append to a topic, or use a transactional id (Kafka: Write).
    Produce = "produce",
    /// Read a topic (Kafka: Read on a topic).
    Consume = "consume",
    /// Join a consumer group and commit its offsets (Kafka: Read on a group).
    Group = "group",
    /// Send to a queue.
    Send = "send",
    /// Receive and settle messages of a queue.
    Receive = "receive",
    /// Create, configure, purge and delete a queue.
    Manage = "manage",
    /// Bind MQTT topics to a topic or queue; on [`ResourceKind::Cluster`].
    Bind = "bind",
    /// Create a topic (Kafka: Create).
    Create = "create",
    /// Delete a topic, its records, or a group (Kafka: Delete).
    Delete = "delete",
    /// Change a topic (Kafka: Alter).
    Alter = "alter",
    /// See that an object exists (Kafka: Describe).
    Describe = "describe",
    /// Read the configuration (Kafka: `DescribeConfigs`).
    DescribeConfigs = "describe-configs",
    /// Change the configuration (Kafka: `AlterConfigs`).
    AlterConfigs = "alter-configs",
    /// Requests between brokers (Kafka: `ClusterAction`).
    ClusterAction = "cluster-action",
    /// Produce idempotently (Kafka: `IdempotentWrite`).
    IdempotentWrite = "idempotent-write",
    /// Read the management interface: users, rules, connections; on [`ResourceKind::Cluster`].
    AdminRead = "admin-read",
    /// Change users and rules; on [`ResourceKind::Cluster`].
    AdminWrite = "admin-write",
}

impl Action {
    /// Number of actions.
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// Actions whose permission also permits this one, as in Kafka. It does not hold for rules that deny.
    pub fn implied_by(self) -> &'static [Action] {
        match self {
            Self::Describe => &[
                Self::Produce,
                Self::Consume,
                Self::Group,
                Self::Delete,
                Self::Alter,
                Self::Send,
                Self::Receive,
                Self::Manage,
            ],
            Self::DescribeConfigs => &[Self::AlterConfigs],
            Self::AdminRead => &[Self::AdminWrite],
            _ => &[],
        }
    }

    /// Whether a rule may have this action on this kind of resource.
    pub fn applies_to(self, kind: ResourceKind) -> bool {
        use ResourceKind as Kind;
        let kinds: &[Kind] = match self {
            Self::Any => return true,
            Self::Publish | Self::Subscribe => &[Kind::Mqtt],
            Self::Produce => &[Kind::Topic, Kind::TransactionalId],
            Self::Consume => &[Kind::Topic],
            Self::Group => &[Kind::Group],
            Self::Send | Self::Receive | Self::Manage => &[Kind::Queue],
            Self::Create | Self::Alter => &[Kind::Topic, Kind::Cluster],
            Self::Delete => &[Kind::Topic, Kind::Group],
            Self::Describe => &[Kind::Topic, Kind::Group, Kind::TransactionalId, Kind::Cluster, Kind::Queue],
            Self::DescribeConfigs | Self::AlterConfigs => &[Kind::Topic, Kind::Group, Kind::Cluster],
            Self::Connect
            | Self::Bind
            | Self::ClusterAction
            | Self::IdempotentWrite
            | Self::AdminRead
            | Self::AdminWrite => &[Kind::Cluster],
        };
        kinds.contains(&kind)
    }
}

names! {
    /// A kind of object.
    ResourceKind, "kind of resource",
    /// MQTT topics.
    Mqtt = "mqtt",
    /// A topic of the log.
    Topic = "topic",
    /// A consumer group.
    Group = "group",
    /// A work queue.
    Queue = "queue",
    /// A transactional id.
    TransactionalId = "transactional-id",
    /// The broker as a whole.
    Cluster = "cluster",
}

impl ResourceKind {
    /// Number of kinds.
    pub(crate) const COUNT: usize = Self::ALL.len();
}

/// Objects of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Their kind; `None` for objects of every kind, and then the pattern is [`Pattern::Any`].
    pub kind: Option<ResourceKind>,
    /// Which of them.
    pub pattern: Pattern,
}

/// Names of objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// All names.
    Any,
    /// One name.
    Literal(Arc<str>),
    /// The names that begin with a text.
    Prefix(Arc<str>),
    /// The names that an MQTT filter matches. [`USER_VARIABLE`], [`CLIENT_ID_VARIABLE`] and [`COMMON_NAME_VARIABLE`]
    /// stand for what the connection has.
    Filter(Arc<str>),
}

impl Resource {
    /// Objects of every kind.
    pub const EVERYTHING: Self = Self { kind: None, pattern: Pattern::Any };
    /// The broker as a whole.
    pub const CLUSTER: Self = Self { kind: Some(ResourceKind::Cluster), pattern: Pattern::Any };

    /// The topics that an MQTT filter matches.
    pub fn filter(filter: &str) -> Self {
        Self { kind: Some(ResourceKind::Mqtt), pattern: Pattern::Filter(filter.into()) }
    }

    /// One object.
    pub fn literal(kind: ResourceKind, name: &str) -> Self {
        Self { kind: Some(kind), pattern: Pattern::Literal(name.into()) }
    }

    /// The objects whose names begin with a text.
    pub fn prefix(kind: ResourceKind, prefix: &str) -> Self {
        Self { kind: Some(kind), pattern: Pattern::Prefix(prefix.into()) }
    }
}

impl Rule {
    /// Checks what the types leave open.
    ///
    /// # Errors
    /// A name, a filter or the combination of action and resource is invalid.
    pub fn check(&self) -> Result<(), SecurityError> {
        match &self.subject {
            // Names of certificates and tokens may have colons, as in `spiffe://example.org/press`.
            Subject::User(name) | Subject::Role(name) => check_name(name)?,
            Subject::Everyone | Subject::Anonymous => {}
        }
        self.check_resource()?;
        let is_bad_listener = self.listener.as_ref().is_some_and(|name| check_name(name).is_err());
        if is_bad_listener {
            return Err(SecurityError::Rule("the name of the listener is invalid".to_owned()));
        }
        Ok(())
    }

    fn check_resource(&self) -> Result<(), SecurityError> {
        let refuse = |what: String| Err(SecurityError::Rule(what));
        let Resource { kind, pattern } = &self.resource;
        if let Some(kind) = kind
            && !self.action.applies_to(*kind)
        {
            return refuse(format!("the action {} does not apply to {kind}", self.action));
        }
        match (kind, pattern) {
            (_, Pattern::Any) => Ok(()),
            (None, _) => refuse("a resource of every kind has the pattern *".to_owned()),
            (Some(ResourceKind::Mqtt), Pattern::Filter(filter)) => match check_filter(filter) {
                Ok(()) if filter.len() > MAX_RESOURCE_BYTES => {
                    refuse(format!("a filter of a rule is longer than {MAX_RESOURCE_BYTES} bytes"))
                }
                Ok(()) => check_variables(filter),
                Err(error) => refuse(format!("the filter `{filter}` {error}")),
            },
            (Some(ResourceKind::Mqtt), _) => refuse("MQTT topics are named by a filter".to_owned()),
            (Some(_), Pattern::Filter(_)) => refuse("only MQTT topics are named by a filter".to_owned()),
            (Some(_), Pattern::Literal(name) | Pattern::Prefix(name)) => {
                if name.is_empty() || name.len() > MAX_RESOURCE_BYTES || name.chars().any(char::is_control) {
                    return refuse(format!(
                        "the name of a resource is empty, longer than {MAX_RESOURCE_BYTES} bytes, or has control \
                         characters"
                    ));
                }
                Ok(())
            }
        }
    }
}

/// Rejects variables that do not exist, which would otherwise never match.
fn check_variables(filter: &str) -> Result<(), SecurityError> {
    let known = [USER_VARIABLE, CLIENT_ID_VARIABLE, COMMON_NAME_VARIABLE];
    let unknown =
        filter.match_indices("${").find(|(at, _)| !known.iter().any(|v| filter[*at..].starts_with(v)));
    match unknown {
        None => Ok(()),
        Some(_) => Err(SecurityError::Rule(format!(
            "the filter `{filter}` has a variable other than {USER_VARIABLE}, {CLIENT_ID_VARIABLE} and \
             {COMMON_NAME_VARIABLE}"
        ))),
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("*"),
            Self::Anonymous => f.write_str("anonymous"),
            Self::User(name) => write!(f, "user:{name}"),
            Self::Role(name) => write!(f, "role:{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = SecurityError;

    /// Reads `*`, `anonymous`, `user:NAME` or `role:NAME`.
    fn from_str(text: &str) -> Result<Self, SecurityError> {
        match (text, text.split_once(':')) {
            ("*", _) => Ok(Self::Everyone),
            ("anonymous", _) => Ok(Self::Anonymous),
            (_, Some(("user", name))) => Ok(Self::User(name.into())),
            (_, Some(("role", name))) => Ok(Self::Role(name.into())),
            _ => Err(SecurityError::Rule(format!(
                "`{text}` is not the subject of a rule: user:NAME, role:NAME, anonymous or *"
            ))),
        }
    }
}

impl fmt::Display for Resource {
    /// Writes the form that `from_str` reads. A literal name that ends with `*` has no form of its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind else { return f.write_str("*") };
        match &self.pattern {
            Pattern::Any => write!(f, "{kind}:*"),
            Pattern::Literal(name) => write!(f, "{kind}:{name}"),
            Pattern::Prefix(prefix) => write!(f, "{kind}:{prefix}*"),
            Pattern::Filter(filter) => write!(f, "{kind}:{filter}"),
        }
    }
}

impl FromStr for Resource {
    type Err = SecurityError;

    /// Reads `*`, `cluster`, `mqtt:FILTER`, or `KIND:NAME`, where a name that ends with `*` is a prefix.
    fn from_str(text: &str) -> Result<Self, SecurityError> {
        if text == "*" {
            return Ok(Self::EVERYTHING);
        }
        let (kind, name) = text.split_once(':').unwrap_or((text, "*"));
        let kind: ResourceKind = kind.parse()?;
        let pattern = match name.strip_suffix('*') {
            Some("") => Pattern::Any,
            _ if kind == ResourceKind::Mqtt => Pattern::Filter(name.into()),
            Some(prefix) => Pattern::Prefix(prefix.into()),
            None => Pattern::Literal(name.into()),
        };
        Ok(Self { kind: Some(kind), pattern })
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        })
    }
}

impl FromStr for Effect {
    type Err = SecurityError;

    fn from_str(text: &str) -> Result<Self, SecurityError> {
        match text {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            _ => Err(SecurityError::Rule(format!("`{text}` is neither allow nor deny"))),
        }
    }
}

/// `allow user:alice publish mqtt:plant/# listener=… network=…`
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.effect, self.subject, self.action, self.resource)?;
        if let Some(listener) = &self.listener {
            write!(f, " listener={listener}")?;
        }
        match &self.network {
            Some(network) => write!(f, " network={network}"),
            None => Ok(()),
        }
    }
}

/// Who acts, and from where: what rules depend on besides action and resource.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Who.
    pub principal: &'a Principal,
    /// What has been proven of it beside a password.
    pub proof: Option<&'a Proof>,
    /// The client identifier of MQTT.
    pub client_id: Option<&'a str>,
    /// The name of the listener; `None` matches no rule that names one.
    pub listener: Option<&'a str>,
    /// The address of the peer; `None` matches no rule that names a network.
    pub address: Option<IpAddr>,
}

impl Rule {
    /// Whether the rule applies to connections from here, with these roles.
    pub fn applies_to(&self, origin: &Origin<'_>, roles: &[Arc<str>]) -> bool {
        let is_subject = match &self.subject {
            Subject::Everyone => true,
            Subject::Anonymous => *origin.principal == Principal::Anonymous,
            Subject::User(name) => origin.principal.user() == Some(name),
            Subject::Role(name) => roles.contains(name),
        };
        let is_listener = self.listener.as_deref().is_none_or(|listener| origin.listener == Some(listener));
        let is_network = self
            .network
            .is_none_or(|network| origin.address.is_some_and(|address| network.contains(address)));
        is_subject && is_listener && is_network
    }
}

/// The filter of a rule for one connection; `None` if a rule with this effect cannot apply to it.
///
/// A value that has wildcards, several levels or a leading `$` would change which topics the rule means. A rule that
/// allows then does not apply; a rule that denies then applies to every value.
pub(crate) fn substituted(filter: &Arc<str>, effect: Effect, origin: &Origin<'_>) -> Option<Arc<str>> {
    if !filter.contains("${") {
        return Some(Arc::clone(filter));
    }
    let mut text = String::with_capacity(filter.len());
    for level in filter.split('/') {
        if !text.is_empty() || level.as_ptr() != filter.as_ptr() {
            text.push('/');
        }
        match substituted_level(level, origin) {
            Some(level) => text.push_str(&level),
            None if effect == Effect::Allow => return None,
            None => text.push('+'),
        }
    }
    Some(text.into())
}

fn substituted_level(level: &str, origin: &Origin<'_>) -> Option<String> {
    let user = origin.principal.user().map(|name| &**name);
    let common_name = origin.proof.and_then(|proof| proof.common_name.as_deref());
    let mut text = level.to_owned();
    // The client chooses its identifier, which may look like a variable: the user's name is inserted last, and a
    // client identifier with `${` is not inserted.
    let values =
        [(CLIENT_ID_VARIABLE, origin.client_id), (COMMON_NAME_VARIABLE, common_name), (USER_VARIABLE, user)];
    for (variable, value) in values {
        if text.contains(variable) {
            let value = value.filter(|value| {
                !value.is_empty() && !value.starts_with('$') && !value.contains(['+', '#', '/', '\0', '$'])
            })?;
            text = text.replace(variable, value);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(resource: &str, action: Action) -> Rule {
        Rule {
            subject: Subject::Everyone,
            effect: Effect::Allow,
            action,
            resource: resource.parse().unwrap(),
            listener: None,
            network: None,
        }
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        for text in
            ["*", "cluster:*", "mqtt:a/${user}/#", "mqtt:*", "topic:orders", "topic:orders-*", "group:g"]
        {
            assert_eq!(text.parse::<Resource>().unwrap().to_string(), text);
        }
        assert_eq!("cluster".parse::<Resource>().unwrap(), Resource::CLUSTER);
        for text in ["*", "anonymous", "user:alice", "role:a:b"] {
            assert_eq!(text.parse::<Subject>().unwrap().to_string(), text);
        }
        for action in Action::ALL {
            assert_eq!(action.name().parse::<Action>().unwrap(), *action);
        }
        assert!("alice".parse::<Subject>().is_err());
        assert!("bucket:a".parse::<Resource>().is_err());
        assert!("fly".parse::<Action>().is_err());
    }

    #[test]
    fn rules_are_checked() {
        for (resource, action, ok) in [
            ("mqtt:a/#", Action::Publish, true),
            ("mqtt:a/#/b", Action::Publish, false),
            ("mqtt:a/${cn}", Action::Publish, true),
            ("mqtt:a/${dn}", Action::Publish, false),
            ("mqtt:a/${user}-x/${clientid}", Action::Publish, true),
            ("topic:a", Action::Publish, false),
            ("topic:a", Action::Consume, true),
            ("topic:a", Action::Any, true),
            ("*", Action::Publish, true),
            ("transactional-id:a*", Action::Produce, true),
            ("cluster", Action::AdminWrite, true),
            ("queue:a", Action::Consume, false),
        ] {
            assert_eq!(rule(resource, action).check().is_ok(), ok, "{resource} {action}");
        }
        let long = "x".repeat(MAX_RESOURCE_BYTES + 1);
        assert!(rule(&format!("topic:{long}"), Action::Consume).check().is_err());
        assert!(rule(&format!("mqtt:{long}"), Action::Publish).check().is_err());
        let name = Subject::User("spiffe://example.org/press".into());
        assert!(Rule { subject: name, ..rule("*", Action::Any) }.check().is_ok());
        let name = Subject::User("a\nb".into());
        assert!(Rule { subject: name, ..rule("*", Action::Any) }.check().is_err());
    }

    #[test]
    fn variables_stand_for_plain_values_only() {
        let user = Principal::User("alice".into());
        let substitute = |filter: &str, effect, client_id, principal: &Principal| {
            let proof = Proof { common_name: Some("press-7".into()), ..Proof::default() };
            let proof = (*principal != Principal::Anonymous).then_some(&proof);
            let origin = Origin { principal, proof, client_id, listener: None, address: None };
            substituted(&filter.into(), effect, &origin).map(|filter| filter.to_string())
        };
        let filter = "/plant/${user}/c-${clientid}/#";
        let allowed = |client_id, principal| substitute(filter, Effect::Allow, client_id, principal);
        assert_eq!(allowed(Some("7"), &user).as_deref(), Some("/plant/alice/c-7/#"));
        for client_id in [None, Some(""), Some("+"), Some("a/b"), Some("#"), Some("$SYS"), Some("${user}")] {
            assert_eq!(allowed(client_id, &user), None, "{client_id:?}");
            let denied = substitute(filter, Effect::Deny, client_id, &user);
            assert_eq!(denied.as_deref(), Some("/plant/alice/+/#"), "{client_id:?}");
        }
        assert_eq!(allowed(Some("7"), &Principal::Anonymous), None);
        let of_certificate = |principal| substitute("a/${cn}/+", Effect::Allow, None, principal);
        assert_eq!(of_certificate(&user).as_deref(), Some("a/press-7/+"));
        assert_eq!(of_certificate(&Principal::Anonymous), None);
    }
}
