//! `FindCoordinator`, versions 0 to 6: returns the coordinator of groups and transactions, which is always this broker.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Kinds of coordinators. Share groups (2) are not served.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
/// First version with several keys in one request (KIP-699).
const BATCHED: i16 = 4;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: FindCoordinatorRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let found = coordinator(shard, &call, matches!(request.key_type, GROUP | TRANSACTION));
    let of_key = |key: String| {
        let checked = match request.key_type {
            GROUP => call.check_group(Action::Describe, &key),
            TRANSACTION => call.check_transactional_id(Action::Describe, &key),
            _ => Ok(()),
        };
        match checked {
            Ok(()) => Coordinator { key, ..found.clone() },
            Err(code) => {
                Coordinator { key, node_id: -1, port: -1, error_code: code as i16, ..Coordinator::default() }
            }
        }
    };
    let response = if call.version >= BATCHED {
        let coordinators = request.coordinator_keys.into_iter().map(of_key).collect();
        FindCoordinatorResponse { coordinators, ..FindCoordinatorResponse::default() }
    } else {
        let found = of_key(request.key);
        FindCoordinatorResponse {
            error_code: found.error_code,
            error_message: found.error_message,
            node_id: found.node_id,
            host: found.host,
            port: found.port,
            ..FindCoordinatorResponse::default()
        }
    };
    shard.reply::<FindCoordinatorRequest>(io, &call, &response);
}

fn coordinator(shard: &Shard, call: &RequestContext, is_known: bool) -> Coordinator {
    if !is_known {
        return Coordinator {
            node_id: -1,
            port: -1,
            error_code: ErrorCode::InvalidRequest as i16,
            error_message: Some("There is no coordinator of this type.".into()),
            ..Coordinator::default()
        };
    }
    let (host, port) = shard.env.shared().advertised(call.listener);
    Coordinator {
        node_id: shard.env.shared().config.node_id,
        host: host.to_string(),
        port: i32::from(port),
        ..Coordinator::default()
    }
}
