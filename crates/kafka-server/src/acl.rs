//! Kafka's access control lists (ACLs) as rules of the broker, and back.
//!
//! An ACL is a rule about one principal, host, operation and resource. Not every rule is an ACL: those with a condition
//! on the listener, those on MQTT topics or queues, and those on resources of every kind have no form in the protocol.
//! ACL requests neither show nor delete them.

use std::net::IpAddr;

use mainstem_security::{Action, Effect, Network, Pattern, Resource, ResourceKind, Rule, Subject};

/// The only name of the resource type `CLUSTER`.
const CLUSTER_NAME: &str = "kafka-cluster";
/// The name of all resources, and all hosts.
const WILDCARD: &str = "*";
/// Matches everything, in a filter.
const ANY: i8 = 1;
/// In a filter: all patterns that match a name.
const MATCH: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;
const DENY: i8 = 2;
const ALLOW: i8 = 3;
/// The operation that stands for all.
const ALL: i8 = 2;

/// Types of resources by their numbers in the protocol.
const RESOURCE_TYPES: [(i8, ResourceKind); 4] = [
    (2, ResourceKind::Topic),
    (3, ResourceKind::Group),
    (4, ResourceKind::Cluster),
    (5, ResourceKind::TransactionalId),
];
/// Operations by their numbers in the protocol, except all of them, and reading, which is another
/// action for topics and groups.
pub(crate) const OPERATIONS: [(i8, Action); 9] = [
    (4, Action::Produce),
    (5, Action::Create),
    (6, Action::Delete),
    (7, Action::Alter),
    (8, Action::Describe),
    (9, Action::ClusterAction),
    (10, Action::DescribeConfigs),
    (11, Action::AlterConfigs),
    (12, Action::IdempotentWrite),
];
pub(crate) const READ: i8 = 3;

/// An ACL with the numbers of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Acl {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: String,
    pub(crate) pattern_type: i8,
    /// For example `User:alice`.
    pub(crate) principal: String,
    pub(crate) host: String,
    pub(crate) operation: i8,
    pub(crate) permission_type: i8,
}

/// A filter of ACLs; `None` matches everything.
#[derive(Clone, Debug)]
pub(crate) struct AclFilter {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: Option<String>,
    pub(crate) pattern_type: i8,
    pub(crate) principal: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) operation: i8,
    pub(crate) permission_type: i8,
}

impl Acl {
    /// The ACL of a rule, if it has one.
    pub(crate) fn of_rule(rule: &Rule) -> Option<Self> {
        if rule.listener.is_some() {
            return None;
        }
        let kind = rule.resource.kind?;
        let (resource_type, _) = RESOURCE_TYPES.into_iter().find(|(_, known)| *known == kind)?;
        let (resource_name, pattern_type) = match &rule.resource.pattern {
            Pattern::Any if kind == ResourceKind::Cluster => (CLUSTER_NAME.to_owned(), LITERAL),
            Pattern::Any => (WILDCARD.to_owned(), LITERAL),
            Pattern::Literal(name) => (name.to_string(), LITERAL),
            Pattern::Prefix(prefix) => (prefix.to_string(), PREFIXED),
            Pattern::Filter(_) => return None,
        };
        let operation = match (kind, rule.action) {
            (ResourceKind::Topic, Action::Consume) | (ResourceKind::Group, Action::Group) => READ,
            (_, Action::Any) => ALL,
            (_, action) => OPERATIONS.into_iter().find(|(_, known)| *known == action)?.0,
        };
        let principal = match &rule.subject {
            Subject::Everyone => "User:*".to_owned(),
            Subject::Anonymous => "User:ANONYMOUS".to_owned(),
            Subject::User(name) => format!("User:{name}"),
            Subject::Role(name) => format!("Role:{name}"),
        };
        Some(Self {
            resource_type,
            resource_name,
            pattern_type,
            principal,
            host: rule.network.map_or_else(|| WILDCARD.to_owned(), |network| network.to_string()),
            operation,
            permission_type: if rule.effect == Effect::Deny { DENY } else { ALLOW },
        })
    }

    /// The rule of an ACL.
    ///
    /// # Errors
    /// The ACL is invalid, or has no form as a rule: why.
    pub(crate) fn to_rule(&self) -> Result<Rule, String> {
        let kind = RESOURCE_TYPES.into_iter().find(|(number, _)| *number == self.resource_type);
        let (_, kind) = kind.ok_or_else(|| format!("Unsupported resource type {}", self.resource_type))?;
        let rule = Rule {
            subject: self.subject()?,
            effect: match self.permission_type {
                DENY => Effect::Deny,
                ALLOW => Effect::Allow,
                other => return Err(format!("Invalid permission type {other}")),
            },
            action: self.action(kind)?,
            resource: Resource { kind: Some(kind), pattern: self.pattern(kind)? },
            listener: None,
            network: match self.host.as_str() {
                WILDCARD => None,
                host => {
                    Some(host.parse().map_err(|_| format!("The host {host:?} is neither an address nor *"))?)
                }
            },
        };
        rule.check().map_err(|error| error.to_string())?;
        Ok(rule)
    }

    fn subject(&self) -> Result<Subject, String> {
        let invalid = || {
            format!("Could not parse principal from `{}`: expected User:NAME or Role:NAME", self.principal)
        };
        let (kind, name) = self.principal.split_once(':').ok_or_else(invalid)?;
        match (kind, name) {
            ("User" | "Role", "") => Err(invalid()),
            ("User", WILDCARD) => Ok(Subject::Everyone),
            ("User", "ANONYMOUS") => Ok(Subject::Anonymous),
            ("User", name) => Ok(Subject::User(name.into())),
            ("Role", name) => Ok(Subject::Role(name.into())),
            _ => Err(invalid()),
        }
    }

    fn action(&self, kind: ResourceKind) -> Result<Action, String> {
        match (kind, self.operation) {
            (ResourceKind::Topic, READ) => return Ok(Action::Consume),
            (ResourceKind::Group, READ) => return Ok(Action::Group),
            (_, ALL) => return Ok(Action::Any),
            _ => {}
        }
        let known = OPERATIONS.into_iter().find(|(number, _)| *number == self.operation);
        known
            .map(|(_, action)| action)
            .ok_or_else(|| format!("Invalid operation {} for {kind}", self.operation))
    }

    fn pattern(&self, kind: ResourceKind) -> Result<Pattern, String> {
        let name = self.resource_name.as_str();
        match (kind, self.pattern_type) {
            (ResourceKind::Cluster, LITERAL) if name == CLUSTER_NAME => Ok(Pattern::Any),
            (ResourceKind::Cluster, _) => {
                Err(format!("The only valid name for the CLUSTER resource is {CLUSTER_NAME}"))
            }
            (_, LITERAL) if name == WILDCARD => Ok(Pattern::Any),
            (_, LITERAL) => Ok(Pattern::Literal(name.into())),
            (_, PREFIXED) => Ok(Pattern::Prefix(name.into())),
            (_, other) => Err(format!("Invalid resource pattern type {other}")),
        }
    }
}

impl AclFilter {
    /// Checks the numbers of the filter.
    ///
    /// # Errors
    /// One of them is unknown: which.
    pub(crate) fn check(&self) -> Result<(), String> {
        let numbers = [
            ("resource type", self.resource_type, 7),
            ("pattern type", self.pattern_type, PREFIXED),
            ("operation", self.operation, 15),
            ("permission type", self.permission_type, ALLOW),
        ];
        let unknown = numbers.into_iter().find(|(_, number, max)| !(ANY..=*max).contains(number));
        unknown.map_or(Ok(()), |(what, number, _)| Err(format!("The filter has an unknown {what}, {number}")))
    }

    /// Whether the filter matches.
    pub(crate) fn matches(&self, acl: &Acl) -> bool {
        let is_number = |filter: i8, number: i8| filter == ANY || filter == number;
        is_number(self.resource_type, acl.resource_type)
            && self.matches_name(acl)
            && self.principal.as_ref().is_none_or(|principal| *principal == acl.principal)
            && self.host.as_ref().is_none_or(|host| is_same_host(host, &acl.host))
            && is_number(self.operation, acl.operation)
            && is_number(self.permission_type, acl.permission_type)
    }

    fn matches_name(&self, acl: &Acl) -> bool {
        let Some(name) = &self.resource_name else {
            return matches!(self.pattern_type, ANY | MATCH) || self.pattern_type == acl.pattern_type;
        };
        match (self.pattern_type, acl.pattern_type) {
            (MATCH, LITERAL) => acl.resource_name == *name || acl.resource_name == WILDCARD,
            (MATCH, _) => name.starts_with(&acl.resource_name),
            (ANY, _) => acl.resource_name == *name,
            (wanted, pattern_type) => wanted == pattern_type && acl.resource_name == *name,
        }
    }
}

/// Addresses have more than one form.
fn is_same_host(left: &str, right: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(Network::of_address);
    left == right || address(left).is_some_and(|left| Some(left) == address(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl() -> Acl {
        Acl {
            resource_type: 2,
            resource_name: "orders".into(),
            pattern_type: LITERAL,
            principal: "User:alice".into(),
            host: "*".into(),
            operation: READ,
            permission_type: ALLOW,
        }
    }

    fn everything() -> AclFilter {
        AclFilter {
            resource_type: ANY,
            resource_name: None,
            pattern_type: ANY,
            principal: None,
            host: None,
            operation: ANY,
            permission_type: ANY,
        }
    }

    #[test]
    fn every_valid_acl_is_a_rule_and_back() {
        let group = Acl { resource_type: 3, operation: READ, ..acl() };
        let cluster =
            |operation| Acl { resource_type: 4, resource_name: CLUSTER_NAME.into(), operation, ..acl() };
        let mut acls = vec![
            acl(),
            Acl { permission_type: DENY, ..acl() },
            Acl { pattern_type: PREFIXED, ..acl() },
            Acl { resource_name: "*".into(), operation: ALL, ..acl() },
            Acl { principal: "User:*".into(), host: "192.0.2.7".into(), ..acl() },
            Acl { principal: "User:ANONYMOUS".into(), host: "2001:db8::1".into(), ..acl() },
            Acl { principal: "Role:ops".into(), host: "10.0.0.0/8".into(), ..acl() },
            Acl { principal: "User:CN=a:b".into(), ..acl() },
            group.clone(),
            Acl { operation: 6, ..group },
            Acl { resource_type: 5, operation: 4, ..acl() },
            Acl { resource_type: 5, operation: 8, ..acl() },
        ];
        acls.extend([ALL, 5, 7, 8, 9, 10, 11, 12].map(cluster));
        acls.extend([4, 5, 6, 7, 8, 10, 11].map(|operation| Acl { operation, ..acl() }));
        acls.retain(|acl| !acl.principal.contains("a:b"));
        for acl in acls {
            assert_eq!(Acl::of_rule(&acl.to_rule().expect("a valid ACL")), Some(acl));
        }
    }

    #[test]
    fn invalid_acls_are_refused() {
        for invalid in [
            Acl { resource_type: 0, ..acl() },
            Acl { resource_type: ANY, ..acl() },
            Acl { resource_type: 6, ..acl() },
            Acl { resource_type: 4, ..acl() },
            Acl { resource_name: String::new(), ..acl() },
            Acl { pattern_type: ANY, ..acl() },
            Acl { pattern_type: MATCH, ..acl() },
            Acl { principal: "alice".into(), ..acl() },
            Acl { principal: "User:".into(), ..acl() },
            Acl { principal: "Group:ops".into(), ..acl() },
            Acl { host: "example.com".into(), ..acl() },
            Acl { operation: ANY, ..acl() },
            Acl { operation: 9, ..acl() },
            Acl { operation: 99, ..acl() },
            Acl { resource_type: 5, operation: READ, ..acl() },
            Acl { permission_type: ANY, ..acl() },
        ] {
            assert!(invalid.to_rule().is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn rules_that_no_acl_expresses_are_left_out() {
        let rule = acl().to_rule().unwrap();
        assert_eq!(Acl::of_rule(&Rule { listener: Some("internal".into()), ..rule.clone() }), None);
        assert_eq!(Acl::of_rule(&Rule { resource: Resource::EVERYTHING, ..rule.clone() }), None);
        let queue = Resource::literal(ResourceKind::Queue, "jobs");
        assert_eq!(Acl::of_rule(&Rule { resource: queue, action: Action::Send, ..rule }), None);
    }

    #[test]
    fn filters_match_as_in_kafka() {
        let named = |pattern_type, name: &str| AclFilter {
            pattern_type,
            resource_name: Some(name.into()),
            ..everything()
        };
        let prefixed = Acl { pattern_type: PREFIXED, resource_name: "ord".into(), ..acl() };
        let wildcard = Acl { resource_name: "*".into(), ..acl() };
        let matched =
            |filter: &AclFilter| [acl(), prefixed.clone(), wildcard.clone()].map(|acl| filter.matches(&acl));
        assert_eq!(matched(&everything()), [true, true, true]);
        assert_eq!(matched(&named(MATCH, "orders")), [true, true, true]);
        assert_eq!(matched(&named(MATCH, "other")), [false, false, true]);
        assert_eq!(matched(&named(LITERAL, "orders")), [true, false, false]);
        assert_eq!(matched(&named(PREFIXED, "ord")), [false, true, false]);
        assert_eq!(matched(&named(ANY, "ord")), [false, true, false]);
        assert_eq!(matched(&AclFilter { pattern_type: PREFIXED, ..everything() }), [false, true, false]);
        assert_eq!(matched(&AclFilter { resource_type: 3, ..everything() }), [false; 3]);
        assert_eq!(matched(&AclFilter { principal: Some("User:bob".into()), ..everything() }), [false; 3]);
        assert_eq!(matched(&AclFilter { host: Some("::1".into()), ..everything() }), [false; 3]);
        assert_eq!(
            matched(&AclFilter { operation: READ, permission_type: ALLOW, ..everything() }),
            [true; 3]
        );
        let local = Acl { host: "::1".into(), ..acl() };
        assert!(AclFilter { host: Some("0:0:0:0:0:0:0:1".into()), ..everything() }.matches(&local));
        assert!(AclFilter { operation: 0, ..everything() }.check().is_err());
        assert!(everything().check().is_ok());
    }
}
