//! `/v1/acls`: lists, adds and deletes rules, and explains decisions.

use std::net::IpAddr;
use std::str::FromStr;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_security::{
    Action, Change, Network, Origin, Principal, Reason, Resource, ResourceKind, Rule, RuleId, SecurityError,
    add_rules, delete_rule,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::input::{BoundedList, JsonBody, PathParams, QueryParams};
use crate::problem::Problem;
use crate::response::json_response;
use crate::users::{change, host};

/// Rules that differ in their actions only.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleBody {
    effect: String,
    subject: String,
    actions: BoundedList<String>,
    resource: String,
    listener: Option<String>,
    network: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainQuery {
    /// Absent for a connection without a user.
    user: Option<String>,
    action: String,
    resource: String,
    client_id: Option<String>,
    listener: Option<String>,
    address: Option<IpAddr>,
}

pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let state = host(&app)?.published().state();
    let rules: Vec<Value> = state.rules().map(|(id, rule)| show_rule(id, rule)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "acls": rules })))
}

pub(crate) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<RuleBody>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let rules = body.rules().map_err(|error| Problem::invalid(error.to_string()))?;
    let wanted = rules.clone();
    change(&host, &caller, Box::new(move |state| Ok(add_rules(state, wanted)))).await?;
    let state = host.published().state();
    let stored = rules.iter().filter_map(|rule| Some(show_rule(state.rule_id(rule)?, rule)));
    Ok(json_response(StatusCode::CREATED, &json!({ "acls": stored.collect::<Vec<_>>() })))
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(id): PathParams<u64>,
) -> Result<Response, Problem> {
    let removed: Vec<Change> =
        change(&host(&app)?, &caller, Box::new(move |state| delete_rule(state, RuleId(id)))).await?;
    debug_assert_eq!(removed.len(), 1);
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn explain(
    State(app): State<App>,
    QueryParams(query): QueryParams<ExplainQuery>,
) -> Result<Response, Problem> {
    let state = host(&app)?.published().state();
    let invalid = |error: SecurityError| Problem::invalid(error.to_string());
    let action = Action::from_str(&query.action).map_err(invalid)?;
    let (kind, name) = query.resource.split_once(':').unwrap_or((&query.resource, ""));
    let kind = ResourceKind::from_str(kind).map_err(invalid)?;
    if !action.applies_to(kind) || action == Action::Any {
        return Err(Problem::invalid(format!("the action {action} does not apply to one {kind}")));
    }
    let principal = query.user.as_deref().map_or(Principal::Anonymous, |user| Principal::User(user.into()));
    if let Some(user) = principal.user()
        && state.user(user).is_none()
    {
        return Err(Problem::invalid(format!("user: {user:?} does not exist")));
    }
    let origin = Origin {
        principal: &principal,
        proof: None,
        client_id: query.client_id.as_deref(),
        listener: query.listener.as_deref(),
        address: query.address,
    };
    let explanation = state.explain(&origin, action, kind, name);
    let (reason, rule) = match &explanation.reason {
        Reason::SuperUser => ("the user is in security.super_users", None),
        Reason::NoRules => ("there are no rules", None),
        Reason::NoRuleAllows => ("no rule allows it", None),
        Reason::Rule(id, rule) => ("a rule decides", Some(show_rule(*id, rule))),
    };
    let answer = json!({ "allowed": explanation.allowed, "reason": reason, "acl": rule });
    Ok(json_response(StatusCode::OK, &answer))
}

impl RuleBody {
    fn rules(&self) -> Result<Vec<Rule>, SecurityError> {
        let resource: Resource = self.resource.parse()?;
        let rule = |action: &String| {
            let rule = Rule {
                subject: self.subject.parse()?,
                effect: self.effect.parse()?,
                action: action.parse()?,
                resource: resource.clone(),
                listener: self.listener.as_deref().map(Into::into),
                network: self.network.as_deref().map(Network::from_str).transpose()?,
            };
            rule.check()?;
            Ok(rule)
        };
        self.actions.0.iter().map(rule).collect()
    }
}

fn show_rule(id: RuleId, rule: &Rule) -> Value {
    json!({
        "id": id.0,
        "effect": rule.effect.to_string(),
        "subject": rule.subject.to_string(),
        "action": rule.action.name(),
        "resource": rule.resource.to_string(),
        "listener": rule.listener.as_deref(),
        "network": rule.network.map(|network| network.to_string()),
    })
}
