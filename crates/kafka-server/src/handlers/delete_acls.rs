//! `DeleteAcls`, versions 1 to 3: deletes the rules that are ACLs and match a filter.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_acls::{
    DeleteAclsFilter, DeleteAclsFilterResult, DeleteAclsMatchingAcl, DeleteAclsRequest, DeleteAclsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::{Change, ChangeError, Rule, RuleId, SecurityState};

use super::describe_acls::NO_AUTHORIZER;
use crate::acl::{Acl, AclFilter};
use crate::pending::AfterSecurityChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DeleteAclsRequest,
) {
    let security = shard.env.shared().security();
    let refusal = match (call.check_security_change(security), security) {
        (Err(code), _) => Err((code, "Cluster authorization failed.")),
        (_, None) => Err((ErrorCode::SecurityDisabled, NO_AUTHORIZER)),
        (Ok(()), Some(security)) => Ok(security.host.published().state()),
    };
    let mut deleted = Vec::new();
    let mut result = |requested: DeleteAclsFilter| match &refusal {
        Err((code, message)) => refused(*code, (*message).to_owned()),
        Ok(state) => match matching(state, requested) {
            Err(what) => refused(ErrorCode::InvalidRequest, what),
            Ok(found) => {
                let matching_acls = found.iter().map(|(_, _, acl)| matching_acl(acl)).collect();
                deleted.extend(found.into_iter().map(|(id, rule, _)| (id, rule)));
                DeleteAclsFilterResult { matching_acls, ..DeleteAclsFilterResult::default() }
            }
        },
    };
    let results = request.filters.into_iter().map(&mut result).collect();
    if deleted.is_empty() {
        return answer(shard, io, &call, results, &Ok(Vec::new()));
    }
    let after = AfterSecurityChange::DeleteAcls { call, results };
    shard.change_security(io, after, Box::new(move |state| Ok(deletions(state, &deleted))));
}

/// The rules are deleted durably, or not.
pub(crate) fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    mut results: Vec<DeleteAclsFilterResult>,
    outcome: &Result<Vec<Change>, ChangeError>,
) {
    if let Err(error) = outcome {
        let (code, message) = super::security_change_error(error);
        for acl in results.iter_mut().flat_map(|result| &mut result.matching_acls) {
            (acl.error_code, acl.error_message) = (code as i16, Some(message.clone()));
        }
    }
    let response = DeleteAclsResponse { filter_results: results, ..DeleteAclsResponse::default() };
    shard.reply::<DeleteAclsRequest>(io, call, &response);
}

fn refused(code: ErrorCode, message: String) -> DeleteAclsFilterResult {
    DeleteAclsFilterResult {
        error_code: code as i16,
        error_message: Some(message),
        ..DeleteAclsFilterResult::default()
    }
}

fn matching(
    state: &SecurityState,
    requested: DeleteAclsFilter,
) -> Result<Vec<(RuleId, Arc<Rule>, Acl)>, String> {
    let filter = AclFilter {
        resource_type: requested.resource_type_filter,
        resource_name: requested.resource_name_filter,
        pattern_type: requested.pattern_type_filter,
        principal: requested.principal_filter,
        host: requested.host_filter,
        operation: requested.operation,
        permission_type: requested.permission_type,
    };
    filter.check()?;
    let acls = state.rules().filter_map(|(id, rule)| Some((id, Arc::clone(rule), Acl::of_rule(rule)?)));
    Ok(acls.filter(|(_, _, acl)| filter.matches(acl)).collect())
}

fn matching_acl(acl: &Acl) -> DeleteAclsMatchingAcl {
    let Acl { resource_type, resource_name, pattern_type, principal, host, operation, permission_type } =
        acl.clone();
    DeleteAclsMatchingAcl {
        resource_type,
        resource_name,
        pattern_type,
        principal,
        host,
        operation,
        permission_type,
        ..DeleteAclsMatchingAcl::default()
    }
}

/// Deletes the rules that are still the same, each once.
fn deletions(state: &SecurityState, deleted: &[(RuleId, Arc<Rule>)]) -> Vec<Change> {
    let mut ids = BTreeSet::new();
    let mut is_there = |(id, rule): &&(RuleId, Arc<Rule>)| state.rule(*id) == Some(rule) && ids.insert(*id);
    deleted.iter().filter(|deleted| is_there(deleted)).map(|(id, _)| Change::DeleteRule(*id)).collect()
}
