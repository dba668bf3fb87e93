//! `DescribeAcls`, versions 1 to 3: lists the rules that are ACLs and match a filter.

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_acls::{
    AclDescription, DescribeAclsRequest, DescribeAclsResource, DescribeAclsResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::acl::{Acl, AclFilter};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Kafka's answer without an authorizer.
pub(crate) const NO_AUTHORIZER: &str = "No Authorizer is configured on the broker";

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeAclsRequest,
) {
    let refused = |code: ErrorCode, message: String| DescribeAclsResponse {
        error_code: code as i16,
        error_message: Some(message),
        ..DescribeAclsResponse::default()
    };
    let filter = AclFilter {
        resource_type: request.resource_type_filter,
        resource_name: request.resource_name_filter,
        pattern_type: request.pattern_type_filter,
        principal: request.principal_filter,
        host: request.host_filter,
        operation: request.operation,
        permission_type: request.permission_type,
    };
    let response = match (call.check_cluster(Action::Describe), shard.env.shared().security(), filter.check())
    {
        (Err(code), ..) => refused(code, "Cluster authorization failed.".into()),
        (_, None, _) => refused(ErrorCode::SecurityDisabled, NO_AUTHORIZER.into()),
        (.., Err(what)) => refused(ErrorCode::InvalidRequest, what),
        (Ok(()), Some(security), Ok(())) => {
            let state = security.host.published().state();
            let acls = state.rules().filter_map(|(_, rule)| Acl::of_rule(rule));
            by_resource(acls.filter(|acl| filter.matches(acl)))
        }
    };
    shard.reply::<DescribeAclsRequest>(io, &call, &response);
}

fn by_resource(acls: impl Iterator<Item = Acl>) -> DescribeAclsResponse {
    let mut resources: BTreeMap<(i8, String, i8), Vec<AclDescription>> = BTreeMap::new();
    for acl in acls {
        let Acl { principal, host, operation, permission_type, .. } = acl;
        let key = (acl.resource_type, acl.resource_name, acl.pattern_type);
        let description = AclDescription { principal, host, operation, permission_type };
        resources.entry(key).or_default().push(description);
    }
    let resource = |((resource_type, resource_name, pattern_type), acls)| DescribeAclsResource {
        resource_type,
        resource_name,
        pattern_type,
        acls,
    };
    let resources = resources.into_iter().map(resource).collect();
    DescribeAclsResponse { resources, ..DescribeAclsResponse::default() }
}
