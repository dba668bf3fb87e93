//! Enhanced authentication (4.12): the exchange of SCRAM between CONNECT and CONNACK, and again while a client is
//! connected.
//!
//! ```text
//! CONNECT method, first message ──► AUTH 0x18 ──► AUTH 0x18 proof ──► CONNACK with the server's signature
//! AUTH 0x19 first message       ──► AUTH 0x18 ──► AUTH 0x18 proof ──► AUTH 0x00 with the server's signature
//! ```
//!
//! CONNECT is kept until the exchange ends, and handled then as if it had come with a password that is right. The time
//! for the whole is that of CONNECT.

use mainstem_mqtt::{Auth, Connect, Packet, ReasonCode, Version, decode};
use mainstem_runtime::{ConnId, Io};
use mainstem_security::LogInResult;

use super::Shard;
use super::connect::refusal;
use crate::admission::{self, Peer, Progress};
use crate::authentication::Authentication;
use crate::broker_state::Mail;
use crate::connections::LogInState;
use crate::handled::{Handled, Next, ProtocolError};

/// Cost of a message of SCRAM, units.
const MESSAGE_UNITS: u32 = 100;

/// Largest CONNECT with an authentication method, bytes.
const CONNECT_BYTES_MAX: usize = 128 * 1024;

impl Shard {
    /// Begins the exchange of a CONNECT with an authentication method.
    pub(super) fn begin_authentication(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        frame: &[u8],
    ) -> Handled {
        if frame.len() > CONNECT_BYTES_MAX {
            // It is kept during the exchange, before anything is proven.
            return self.refuse_connect(io, conn, connect, refusal(ReasonCode::PacketTooLarge));
        }
        let offered = connect.authentication_method.and_then(|name| self.shared.security.method(name));
        let Some(authentication) = offered.and_then(|method| Authentication::new(method, frame)) else {
            return self.refuse_connect(io, conn, connect, refusal(ReasonCode::BadAuthenticationMethod));
        };
        self.connections.set_authentication(conn, Some(Box::new(authentication)));
        let data = connect.authentication_data;
        let progress =
            data.map_or(Ok(Progress::Challenge(Vec::new())), |data| self.authenticate(io, conn, data));
        self.on_progress(io, conn, connect, progress)
    }

    /// Handles a packet of a connection between CONNECT and CONNACK.
    pub(super) fn continue_authentication(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        frame: &[u8],
    ) -> Handled {
        let violation = |what| Err(ProtocolError::new(ReasonCode::ProtocolError, what));
        let Some(authentication) = self.connections.authentication(conn) else {
            return violation("AUTH without CONNECT");
        };
        let kept = authentication.connect().to_vec();
        let (method, has_ended) = (authentication.method(), authentication.has_ended());
        let Ok(Packet::Connect(connect)) = decode(Version::V5, &kept) else {
            return violation("AUTH without CONNECT");
        };
        if has_ended {
            // The AUTH that has ended the exchange is offered again, because its CONNECT had to wait.
            return self.first_packet(io, conn, &kept);
        }
        let auth = match decode(Version::V5, frame)? {
            Packet::Auth(auth) => auth,
            Packet::Disconnect(_) => {
                self.vacate(conn);
                io.close(conn);
                return Ok(Next::Gone);
            }
            _ => return violation("another packet than AUTH before CONNACK"),
        };
        let is_next = auth.reason == ReasonCode::ContinueAuthentication
            && auth.authentication_method == Some(method.name());
        if !is_next {
            let what = "AUTH that does not continue the exchange [MQTT-4.12.0-5]";
            let refusal = ProtocolError::new(ReasonCode::ProtocolError, what);
            return self.refuse_connect(io, conn, &connect, refusal);
        }
        let progress = self.authenticate(io, conn, auth.authentication_data.unwrap_or_default());
        self.on_progress(io, conn, &connect, progress)
    }

    fn on_progress(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        connect: &Connect<'_>,
        progress: Result<Progress, ReasonCode>,
    ) -> Handled {
        match progress {
            Ok(Progress::Challenge(data)) => {
                let room = connect.maximum_packet_size.unwrap_or(u32::MAX);
                if self.send_auth(io, conn, ReasonCode::ContinueAuthentication, &data, room) {
                    Ok(Next::Packet)
                } else {
                    self.refuse_connect(io, conn, connect, refusal(ReasonCode::PacketTooLarge))
                }
            }
            Ok(Progress::Proven(identity, data)) => {
                let Some(authentication) = self.connections.authentication(conn) else {
                    return Ok(Next::Gone);
                };
                authentication.end(data);
                let kept = authentication.connect().to_vec();
                self.connections.set_log_in(conn, LogInState::Over(LogInResult::Accepted(identity)));
                self.first_packet(io, conn, &kept)
            }
            Err(reason) => self.refuse_connect(io, conn, connect, refusal(reason)),
        }
    }

    /// Handles AUTH of a connected client, which proves again who it is. Other packets go on meanwhile.
    pub(super) fn reauthenticate(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        auth: &Auth<'_>,
    ) -> Handled {
        let violation = |what| Err(ProtocolError::new(ReasonCode::ProtocolError, what));
        let Some(authentication) = self.connections.authentication(conn) else {
            return violation("AUTH without an authentication method [MQTT-4.12.0-6]");
        };
        if auth.authentication_method != Some(authentication.method().name()) {
            return violation("AUTH with another method than CONNECT [MQTT-4.12.1-1]");
        }
        match auth.reason {
            ReasonCode::ReAuthenticate if authentication.restart() => {}
            ReasonCode::ContinueAuthentication if !authentication.has_ended() => {}
            _ => return violation("AUTH that neither begins nor continues an exchange"),
        }
        let progress = self.authenticate(io, conn, auth.authentication_data.unwrap_or_default());
        let (reason, data) = match progress {
            Ok(Progress::Challenge(data)) => (ReasonCode::ContinueAuthentication, data),
            Ok(Progress::Proven(identity, data)) => {
                let session = self.host.session(slot);
                if session.access().is_none_or(|access| access.principal() != &identity.principal) {
                    let what = "another user re-authenticates";
                    return Err(ProtocolError::new(ReasonCode::NotAuthorized, what));
                }
                if let Some(authentication) = self.connections.authentication(conn) {
                    authentication.end(Vec::new());
                }
                (ReasonCode::Success, data)
            }
            Err(ReasonCode::ServerBusy) => {
                return Err(ProtocolError::new(ReasonCode::ServerBusy, "too many log-ins have failed"));
            }
            // A wrong password has no code of its own in DISCONNECT.
            Err(_) => {
                return Err(ProtocolError::new(ReasonCode::NotAuthorized, "re-authentication has failed"));
            }
        };
        let room = self.host.session(slot).packet_max();
        self.send_auth(io, conn, reason, &data, room);
        Ok(Next::Packet)
    }

    /// Gives a message of the client to its exchange.
    fn authenticate(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        data: &[u8],
    ) -> Result<Progress, ReasonCode> {
        io.charge(MESSAGE_UNITS);
        let peer = Peer::of(io, conn, self.connections.listener(conn));
        let authentication = self.connections.authentication(conn).ok_or(ReasonCode::ProtocolError)?;
        admission::authenticate(&self.shared.security, peer, authentication, data)
    }

    /// Sends AUTH; false if the client has no room for it.
    fn send_auth(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        reason: ReasonCode,
        data: &[u8],
        room: u32,
    ) -> bool {
        let Some(authentication) = self.connections.authentication(conn) else { return true };
        let packet = Packet::Auth(Auth {
            reason,
            authentication_method: Some(authentication.method().name()),
            authentication_data: (!data.is_empty()).then_some(data),
            ..Auth::default()
        });
        if packet.encoded_len(Version::V5) > room as usize {
            return false;
        }
        let Some(output) = io.output(conn) else { return true };
        match packet.encode(Version::V5, output.buffer()) {
            Ok(()) => self.host.counters_mut().messages_sent += 1,
            Err(error) => log::error!("an AUTH cannot be encoded: {error}"),
        }
        true
    }
}
