//! `SaslHandshake`, versions 0 to 1: chooses the mechanism of a log-in.
//!
//! An unsupported mechanism and a handshake during a log-in end the connection, after the response and its delay. On a
//! connection that needs no log-in, the response is an error and the connection stays, as in Kafka.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::sasl_handshake::{SaslHandshakeRequest, SaslHandshakeResponse};
use mainstem_runtime::Io;
use mainstem_sasl::Mechanism;

use crate::conn::nonce;
use crate::log_in::HandshakeError;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: SaslHandshakeRequest,
) {
    let Some(nonce) = nonce() else {
        return shard.refuse(io, call.caller.conn, "the operating system has no random numbers for a log-in");
    };
    let mechanisms = shard.env.shared().mechanisms(call.listener);
    let mechanism = Mechanism::from_name(&request.mechanism);
    let mechanism = mechanism.filter(|mechanism| mechanisms.contains(mechanism));
    let Some(conn) = shard.conns.get_mut(call.caller.conn) else { return };
    let outcome = conn.log_in.choose(mechanism, call.version == 0, nonce, io.clock.now_ms);
    let code = outcome.map_or_else(|error| error.code, |()| ErrorCode::None);
    let offered = match code {
        // Kafka says nothing of the mechanisms to a client that is out of order.
        ErrorCode::IllegalSaslState => &[],
        _ => mechanisms,
    };
    let response = SaslHandshakeResponse {
        error_code: code as i16,
        mechanisms: offered.iter().map(|mechanism| mechanism.name().to_owned()).collect(),
    };
    match outcome {
        Err(HandshakeError { code, is_fatal: true }) => {
            let what = match code {
                ErrorCode::UnsupportedSaslMechanism => {
                    format!("the listener does not offer the mechanism {:?} (kafka.sasl)", request.mechanism)
                }
                _ => "a SaslHandshake during the log-in".to_owned(),
            };
            let answer = (call.caller, call.encode_frame::<SaslHandshakeRequest>(&response));
            shard.conns.close_after_failure(&mut shard.env, io, answer, &what);
        }
        _ => shard.reply::<SaslHandshakeRequest>(io, &call, &response),
    }
}
