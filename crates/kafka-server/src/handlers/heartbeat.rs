//! `Heartbeat`, versions 0 to 4: renews a member's session in its consumer group.

use mainstem_coordinator::group::Heartbeat;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: HeartbeatRequest,
) {
    if let Err(code) = call.check_group(Action::Group, &request.group_id) {
        let response = HeartbeatResponse { error_code: code as i16, ..HeartbeatResponse::default() };
        return shard.reply::<HeartbeatRequest>(io, &call, &response);
    }
    let heartbeat = Heartbeat {
        group_id: &request.group_id,
        member_id: &request.member_id,
        instance_id: request.group_instance_id.as_deref(),
        generation: request.generation_id,
    };
    let outcome = shard.with_groups(io, |groups, now_ms| groups.handle_heartbeat(now_ms, &heartbeat));
    let error_code = match outcome {
        Some(Ok(())) => ErrorCode::None as i16,
        Some(Err(error)) => error.code(),
        None => ErrorCode::NotCoordinator as i16,
    };
    shard.reply::<HeartbeatRequest>(
        io,
        &call,
        &HeartbeatResponse { error_code, ..HeartbeatResponse::default() },
    );
}
