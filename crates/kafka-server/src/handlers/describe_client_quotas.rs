//! `DescribeClientQuotas`, versions 0 to 1: lists quotas (KIP-546).
//!
//! A filter has a component for each kind of part, which matches a name, the default, or any. Entities must have all
//! parts of the filter; with `strict`, no others.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_client_quotas::{
    ComponentData, DescribeClientQuotasRequest, DescribeClientQuotasResponse, EntityData, EntryData,
    ValueData,
};
use mainstem_quota::{Entity, Quotas};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::append_error::AppendError;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Kafka's names of the parts of an entity.
pub(crate) const USER: &str = "user";
pub(crate) const CLIENT_ID: &str = "client-id";
pub(crate) const IP: &str = "ip";

/// What a component matches.
enum Match<'a> {
    Name(&'a str),
    Default,
    Any,
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeClientQuotasRequest,
) {
    let response = match describe(shard, &call, &request) {
        Ok(entries) => {
            DescribeClientQuotasResponse { entries: Some(entries), ..DescribeClientQuotasResponse::default() }
        }
        Err(AppendError { code, message, .. }) => DescribeClientQuotasResponse {
            error_code: code as i16,
            error_message: message,
            ..DescribeClientQuotasResponse::default()
        },
    };
    shard.reply::<DescribeClientQuotasRequest>(io, &call, &response);
}

fn describe(
    shard: &Shard,
    call: &RequestContext,
    request: &DescribeClientQuotasRequest,
) -> Result<Vec<EntryData>, AppendError> {
    call.check_cluster(Action::DescribeConfigs)?;
    let filter = filter(&request.components)?;
    let Some(security) = shard.env.shared().security() else { return Ok(Vec::new()) };
    let state = security.host.published().state();
    let is_wanted = |(entity, _): &(&Entity, &Quotas)| matches(entity, &filter, request.strict);
    Ok(state.quotas().iter().filter(is_wanted).map(|(entity, quotas)| entry(entity, quotas)).collect())
}

fn filter(components: &[ComponentData]) -> Result<Vec<(&str, Match<'_>)>, AppendError> {
    let invalid = |message: String| AppendError::new(ErrorCode::InvalidRequest, message);
    let mut filter: Vec<(&str, Match<'_>)> = Vec::new();
    for ComponentData { entity_type, match_type, match_ } in components {
        let kind = entity_type.as_str();
        if kind.is_empty() {
            return Err(invalid("Invalid empty entity type.".into()));
        }
        if ![USER, CLIENT_ID, IP].contains(&kind) {
            let message = format!("Unsupported entity type {kind}");
            return Err(AppendError::new(ErrorCode::UnsupportedVersion, message));
        }
        if filter.iter().any(|(known, _)| *known == kind) {
            return Err(invalid(format!("Entity type {kind} cannot appear more than once in the filter.")));
        }
        let matched = match (match_type, match_) {
            (0, Some(name)) => Match::Name(name),
            (1, None) => Match::Default,
            (2, None) => Match::Any,
            (0, None) => {
                return Err(invalid(
                    "Request specified MATCH_TYPE_EXACT, but set match string to null.".into(),
                ));
            }
            (1 | 2, Some(_)) => return Err(invalid(format!("Match type {match_type} has no match string."))),
            _ => return Err(invalid(format!("Unknown match type {match_type}"))),
        };
        filter.push((kind, matched));
    }
    let has = |kind| filter.iter().any(|(known, _)| *known == kind);
    if has(IP) && (has(USER) || has(CLIENT_ID)) {
        return Err(invalid(
            "Invalid entity filter component combination, IP filter component should not be used with user or clientId filter component.".into(),
        ));
    }
    Ok(filter)
}

/// The parts of an entity: the kind, and the name; `None` for the default.
fn parts(entity: &Entity) -> Vec<(&'static str, Option<String>)> {
    let name = |name: &mainstem_quota::Name| name.exact().map(ToString::to_string);
    let user = entity.user().map(|user| (USER, name(user)));
    let client_id = entity.client_id().map(|client_id| (CLIENT_ID, name(client_id)));
    let address = entity.address().map(|address| (IP, address.map(|address| address.to_string())));
    [user, client_id, address].into_iter().flatten().collect()
}

fn matches(entity: &Entity, filter: &[(&str, Match<'_>)], is_strict: bool) -> bool {
    let parts = parts(entity);
    let has_part = |(kind, wanted): &(&str, Match<'_>)| {
        parts.iter().any(|(known, name)| {
            known == kind
                && match wanted {
                    Match::Name(wanted) => name.as_deref() == Some(wanted),
                    Match::Default => name.is_none(),
                    Match::Any => true,
                }
        })
    };
    filter.iter().all(has_part) && !(is_strict && parts.len() > filter.len())
}

fn entry(entity: &Entity, quotas: &Quotas) -> EntryData {
    let part =
        |(kind, entity_name): (&str, Option<String>)| EntityData { entity_type: kind.into(), entity_name };
    let values = quotas.iter().map(|(key, value)| ValueData { key: key.name().into(), value });
    EntryData { entity: parts(entity).into_iter().map(part).collect(), values: values.collect() }
}
