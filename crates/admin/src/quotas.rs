//! `/v1/quotas`: lists, sets and deletes quotas.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_quota::{Entity, Name, QuotaKey, Quotas};
use mainstem_security::{Change, ChangeError, SecurityState, alter_quotas};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::input::{JsonBody, QueryParams};
use crate::problem::Problem;
use crate::response::json_response;
use crate::users::{change, host};

/// The user, client id or address of quotas.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EntityQuery {
    user: Option<String>,
    #[serde(default)]
    default_user: bool,
    client_id: Option<String>,
    #[serde(default)]
    default_client_id: bool,
    ip: Option<IpAddr>,
    #[serde(default)]
    default_ip: bool,
}

pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let state = host(&app)?.published().state();
    let quotas: Vec<Value> = state.quotas().iter().map(|(entity, quotas)| show(entity, quotas)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "quotas": quotas })))
}

pub(crate) async fn set(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    QueryParams(query): QueryParams<EntityQuery>,
    JsonBody(body): JsonBody<BTreeMap<String, Option<f64>>>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let entity = query.entity()?;
    let op = |(key, value): (String, Option<f64>)| match QuotaKey::from_str(&key) {
        Ok(key) => Ok((key, value)),
        Err(error) => Err(Problem::invalid(error)),
    };
    let ops = body.into_iter().map(op).collect::<Result<Vec<_>, Problem>>()?;
    if ops.is_empty() {
        return Err(Problem::invalid("the body changes nothing"));
    }
    let wanted = entity.clone();
    let edit = move |state: &SecurityState| {
        alter_quotas(state, wanted, &ops).map(|change| vec![change]).map_err(ChangeError::Invalid)
    };
    change(&host, &caller, Box::new(edit)).await?;
    let state = host.published().state();
    let quotas = state.quotas().get(&entity).cloned().unwrap_or_default();
    Ok(json_response(StatusCode::OK, &show(&entity, &quotas)))
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    QueryParams(query): QueryParams<EntityQuery>,
) -> Result<Response, Problem> {
    let entity = query.entity()?;
    let edit = move |state: &SecurityState| match state.quotas().get(&entity) {
        Some(_) => Ok(vec![Change::DeleteQuotas(entity)]),
        None => Err(ChangeError::NotFound(format!("a quota of {entity}"))),
    };
    change(&host(&app)?, &caller, Box::new(edit)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl EntityQuery {
    fn entity(&self) -> Result<Entity, Problem> {
        let part = |field: &str, name: Option<&str>, is_default: bool| match (name, is_default) {
            (Some(_), true) => {
                Err(Problem::invalid(format!("{field} and default_{field} exclude each other")))
            }
            (None, false) => Ok(None),
            (name, _) => Ok(Some(Name::from_option(name))),
        };
        let user = part("user", self.user.as_deref(), self.default_user)?;
        let client_id = part("client_id", self.client_id.as_deref(), self.default_client_id)?;
        let address = match (self.ip, self.default_ip) {
            (Some(_), true) => return Err(Problem::invalid("ip and default_ip exclude each other")),
            (None, false) => None,
            (address, _) => Some(address),
        };
        Entity::from_parts(user, client_id, address).map_err(Problem::invalid)
    }
}

fn show(entity: &Entity, quotas: &Quotas) -> Value {
    let mut object = Map::new();
    let name = |name: &Name| Value::from(name.exact().map(ToString::to_string));
    if let Some(user) = entity.user() {
        object.insert("user".into(), name(user));
    }
    if let Some(client_id) = entity.client_id() {
        object.insert("client_id".into(), name(client_id));
    }
    if let Some(address) = entity.address() {
        object.insert("ip".into(), address.map(|address| address.to_string()).into());
    }
    let quotas: Map<String, Value> =
        quotas.iter().map(|(key, value)| (key.name().into(), value.into())).collect();
    object.insert("quotas".into(), quotas.into());
    object.into()
}
