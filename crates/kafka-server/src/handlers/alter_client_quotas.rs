//! `AlterClientQuotas`, versions 0 to 1: sets and removes quotas (KIP-546). Each entity is changed on its own.

use std::collections::BTreeSet;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_client_quotas::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, AlterEntity, AlterEntry, AlterEntryResult, AlterOp,
    AlteredEntity,
};
use mainstem_quota::{Entity, Name, QuotaKey};
use mainstem_runtime::Io;
use mainstem_security::{Action, Change, ChangeError, SecurityState, alter_quotas};

use super::describe_client_quotas::{CLIENT_ID, IP, USER};
use crate::append_error::AppendError;
use crate::pending::AfterSecurityChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// The changes of an entity.
type Alteration = (Entity, Vec<(QuotaKey, Option<f64>)>);

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AlterClientQuotasRequest,
) {
    let security = shard.env.shared().security();
    let refusal = match (call.check_cluster(Action::AlterConfigs), security) {
        (Err(code), _) => Some(AppendError::from(code)),
        (_, None) => Some(AppendError::new(ErrorCode::SecurityDisabled, "The broker stores no quotas.")),
        _ => None,
    };
    let state = security.map(|security| security.host.published().state()).unwrap_or_default();
    let (mut seen, mut wanted, mut entries) = (BTreeSet::new(), Vec::new(), Vec::new());
    for entry in request.entries {
        let outcome = match &refusal {
            Some(refused) => Err(refused.clone()),
            None => alteration(&state, &entry, &mut seen),
        };
        let error = match outcome {
            Ok(alteration) => {
                wanted.push(alteration);
                ErrorCode::None.into()
            }
            Err(error) => error,
        };
        entries.push(result(entry, error));
    }
    if request.validate_only || wanted.is_empty() {
        return answer(shard, io, &call, entries, &Ok(Vec::new()));
    }
    let edit = move |state: &SecurityState| {
        let changes = wanted.into_iter().map(|(entity, ops)| alter_quotas(state, entity, &ops));
        changes.collect::<Result<Vec<_>, _>>().map_err(ChangeError::Invalid)
    };
    shard.change_security(io, AfterSecurityChange::AlterClientQuotas { call, entries }, Box::new(edit));
}

/// The changes are durable, or were refused.
pub(crate) fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    mut entries: Vec<AlterEntryResult>,
    outcome: &Result<Vec<Change>, ChangeError>,
) {
    if let Err(error) = outcome {
        let (code, message) = super::security_change_error(error);
        for entry in entries.iter_mut().filter(|entry| entry.error_code == ErrorCode::None as i16) {
            (entry.error_code, entry.error_message) = (code as i16, Some(message.clone()));
        }
    }
    let response = AlterClientQuotasResponse { entries, ..AlterClientQuotasResponse::default() };
    shard.reply::<AlterClientQuotasRequest>(io, call, &response);
}

/// Checks the changes of an entity.
fn alteration(
    state: &SecurityState,
    entry: &AlterEntry,
    seen: &mut BTreeSet<Entity>,
) -> Result<Alteration, AppendError> {
    let entity = entity_of(&entry.entity)?;
    if !seen.insert(entity.clone()) {
        return Err(invalid("Duplicate quota entity"));
    }
    let ops = entry.ops.iter().map(op).collect::<Result<Vec<_>, _>>()?;
    alter_quotas(state, entity.clone(), &ops).map_err(|error| invalid(error.to_string()))?;
    Ok((entity, ops))
}

fn invalid(message: impl Into<String>) -> AppendError {
    AppendError::new(ErrorCode::InvalidRequest, message)
}

fn op(AlterOp { key, value, remove }: &AlterOp) -> Result<(QuotaKey, Option<f64>), AppendError> {
    let key: QuotaKey = key.parse().map_err(|message: String| invalid(message))?;
    Ok((key, (!remove).then_some(*value)))
}

/// The entity with these parts. A part without a name is a default.
fn entity_of(parts: &[AlterEntity]) -> Result<Entity, AppendError> {
    let (mut user, mut client_id, mut address) = (None, None, None);
    for AlterEntity { entity_type, entity_name } in parts {
        let name = entity_name.as_deref();
        let is_repeated = match entity_type.as_str() {
            USER => user.replace(Name::from_option(name)).is_some(),
            CLIENT_ID => client_id.replace(Name::from_option(name)).is_some(),
            IP => {
                let parsed = name.map(str::parse).transpose();
                let unknown = |_| invalid(format!("{} is not a valid IP.", name.unwrap_or_default()));
                address.replace(parsed.map_err(unknown)?).is_some()
            }
            other => return Err(invalid(format!("Invalid quota entity type: {other}"))),
        };
        if is_repeated {
            return Err(invalid(format!("Invalid quota entity: {entity_type} occurs twice")));
        }
    }
    Entity::from_parts(user, client_id, address).map_err(invalid)
}

fn result(entry: AlterEntry, AppendError { code, message, .. }: AppendError) -> AlterEntryResult {
    let entity = entry
        .entity
        .into_iter()
        .map(|part| AlteredEntity { entity_type: part.entity_type, entity_name: part.entity_name });
    AlterEntryResult { error_code: code as i16, error_message: message, entity: entity.collect() }
}
