//! `CreateAcls`, versions 1 to 3: adds rules. An ACL that exists already is added successfully, as in Kafka.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_acls::{
    AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::{Change, ChangeError, Rule, RuleId, SecurityState};

use super::describe_acls::NO_AUTHORIZER;
use crate::acl::Acl;
use crate::pending::AfterSecurityChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: CreateAclsRequest,
) {
    let security = shard.env.shared().security();
    let refusal = match (call.check_security_change(security), security) {
        (Err(code), _) => Some((code, "Cluster authorization failed.")),
        (_, None) => Some((ErrorCode::SecurityDisabled, NO_AUTHORIZER)),
        _ => None,
    };
    let (mut rules, mut results) = (Vec::new(), Vec::new());
    for creation in request.creations {
        let outcome = match refusal {
            Some((code, message)) => Err((code, message.to_owned())),
            None => acl(creation).to_rule().map_err(|what| (ErrorCode::InvalidRequest, what)),
        };
        let mut result = AclCreationResult::default();
        match outcome {
            Ok(rule) => rules.push(Arc::new(rule)),
            Err((code, message)) => (result.error_code, result.error_message) = (code as i16, Some(message)),
        }
        results.push(result);
    }
    if rules.is_empty() {
        return answer(shard, io, &call, results, &Ok(Vec::new()));
    }
    let after = AfterSecurityChange::CreateAcls { call, results };
    shard.change_security(io, after, Box::new(move |state| Ok(additions(state, &rules))));
}

/// The rules are durable, or were refused.
pub(crate) fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    mut results: Vec<AclCreationResult>,
    outcome: &Result<Vec<Change>, ChangeError>,
) {
    if let Err(error) = outcome {
        let (code, message) = super::security_change_error(error);
        for result in results.iter_mut().filter(|result| result.error_code == ErrorCode::None as i16) {
            (result.error_code, result.error_message) = (code as i16, Some(message.clone()));
        }
    }
    shard.reply::<CreateAclsRequest>(io, call, &CreateAclsResponse { results, ..Default::default() });
}

fn acl(creation: AclCreation) -> Acl {
    Acl {
        resource_type: creation.resource_type,
        resource_name: creation.resource_name,
        pattern_type: creation.resource_pattern_type,
        principal: creation.principal,
        host: creation.host,
        operation: creation.operation,
        permission_type: creation.permission_type,
    }
}

/// Adds the rules that do not exist, each once.
fn additions(state: &SecurityState, rules: &[Arc<Rule>]) -> Vec<Change> {
    let mut made: Vec<Change> = Vec::new();
    let RuleId(mut id) = state.next_rule_id();
    for (at, rule) in rules.iter().enumerate() {
        if state.rule_id(rule).is_none() && !rules[..at].contains(rule) {
            made.push(Change::PutRule(RuleId(id), Arc::clone(rule)));
            id += 1;
        }
    }
    made
}
