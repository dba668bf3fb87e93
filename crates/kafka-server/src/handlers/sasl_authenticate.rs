//! `SaslAuthenticate`, versions 0 to 2: a message of the mechanism that `SaslHandshake` has chosen.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::sasl_authenticate::{SaslAuthenticateRequest, SaslAuthenticateResponse};
use mainstem_runtime::Io;

use crate::log_in::{LogIn, TokenReply};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: SaslAuthenticateRequest,
) {
    let Some(conn) = shard.conns.get_mut(call.caller.conn) else { return };
    if matches!(conn.log_in, LogIn::Exchanging(_)) {
        let reply = TokenReply::Response(call);
        let answer = shard.conns.on_token(&mut shard.env, io, reply, &request.auth_bytes);
        return shard.answer_token(io, answer);
    }
    let response = SaslAuthenticateResponse {
        error_code: ErrorCode::IllegalSaslState as i16,
        error_message: Some("SaslAuthenticate request received after successful authentication".into()),
        ..SaslAuthenticateResponse::default()
    };
    shard.reply::<SaslAuthenticateRequest>(io, &call, &response);
}
