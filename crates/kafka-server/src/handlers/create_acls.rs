//! `CreateAcls`, versions 1 to 3: adds rules. An ACL that exists already is added successfully, as in Kafka.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_acls::{
    AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::{Change, ChangeError, add_rules};

use super::describe_acls::NO_AUTHORIZER;
use crate::acl::Acl;
use crate::pending::AfterSecurityChange;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Most ACLs of a request: they are parsed at once, and stored together.
const CREATIONS_MAX: usize = 2_000;
const TOO_MANY: &str = "A request may create 2000 ACLs; send several requests.";

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
    let is_long = request.creations.len() > CREATIONS_MAX;
    let too_many = (ErrorCode::PolicyViolation, TOO_MANY);
    let refusal = refusal.or_else(|| is_long.then_some(too_many));
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
    shard.change_security(io, after, Box::new(move |state| Ok(add_rules(state, rules))));
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
