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

use std::sync::Arc;

use mainstem_mqtt::{Auth, Connect, Packet, PacketType, ReasonCode, Version, decode};
use mainstem_runtime::{ConnId, Io};
use mainstem_sasl::{Failure, Step};
use mainstem_security::{CertificateOutcome, Identity, LogInResult, PeerCertificate};

use super::Shard;
use crate::authentication::Authentication;
use crate::broker_state::Mail;
use crate::connections::LogInState;
use crate::handled::{Handled, Next, ProtocolError};

/// Cost of a message of SCRAM, units.
const MESSAGE_UNITS: u32 = 100;

/// Largest CONNECT with an authentication method, bytes.
const CONNECT_BYTES_MAX: usize = 128 * 1024;

/// How far an exchange is.
enum Progress {
    /// The client must answer this.
    Challenge(Vec<u8>),
    /// The client is this user, and this is the server's last message.
    Proven(Identity, Vec<u8>),
}

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
            return self.refuse_connect(io, conn, connect, ReasonCode::PacketTooLarge);
        }
        let offered = connect.authentication_method.and_then(|name| self.shared.security.method(name));
        let Some(authentication) = offered.and_then(|method| Authentication::new(method, frame)) else {
            return self.refuse_connect(io, conn, connect, ReasonCode::BadAuthenticationMethod);
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
            let reason = ReasonCode::ProtocolError;
            self.reject_connect(io, conn, connect.version, connect.maximum_packet_size, reason);
            return violation("AUTH that does not continue the exchange [MQTT-4.12.0-5]");
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
                    self.refuse_connect(io, conn, connect, ReasonCode::PacketTooLarge)
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
            Err(reason) => self.refuse_connect(io, conn, connect, reason),
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
        let shared = Arc::clone(&self.shared);
        let security = &shared.security;
        let address = io.peer_address(conn);
        let authentication = self.connections.authentication(conn).ok_or(ReasonCode::ProtocolError)?;
        // Others may have failed since the first message: a limit that is checked once does not hold for many at once.
        if authentication.user().is_some_and(|user| !security.may_attempt(user, address)) {
            return Err(ReasonCode::ServerBusy);
        }
        let mut step = authentication.receive(data);
        loop {
            step = match step {
                Step::FindKeys { user, algorithm } => {
                    if !security.may_attempt(&user, address) {
                        return Err(ReasonCode::ServerBusy);
                    }
                    let (keys, shown) = security.scram_keys(&user, algorithm);
                    authentication.keys_found(&user, keys, shown)
                }
                Step::Challenge(data) => return Ok(Progress::Challenge(data)),
                Step::Success { user, message } => {
                    let identity =
                        self.certified_identity(io, conn, Identity::of_user(&user.as_str().into()));
                    security.attempted(&user, address, identity.is_some());
                    let identity = identity.ok_or(ReasonCode::NotAuthorized)?;
                    return Ok(Progress::Proven(identity, message));
                }
                Step::Failure(Failure::Credentials) => {
                    let user = authentication.user().map(str::to_owned).unwrap_or_default();
                    security.attempted(&user, address, false);
                    return Err(ReasonCode::BadUserNameOrPassword);
                }
                Step::Failure(_) | Step::CheckPassword { .. } | Step::CheckToken { .. } => {
                    return Err(ReasonCode::NotAuthorized);
                }
            };
        }
    }

    /// A user that has been proven, with the certificate of its connection; `None` if that does not permit it.
    fn certified_identity(&self, io: &Io<'_, Mail>, conn: ConnId, identity: Identity) -> Option<Identity> {
        let proxied = || io.proxied_client(conn)?.common_name.as_deref();
        let certificate = io.peer_certificate(conn).map(PeerCertificate::Der);
        let certificate = certificate.or_else(|| proxied().map(PeerCertificate::CommonName));
        let (listener, address) = (self.connections.listener(conn), io.peer_address(conn));
        match self.shared.security.check_certificate(listener, certificate, true, address) {
            CertificateOutcome::Ignored(certified) => certified.confirm(identity),
            CertificateOutcome::Accepted(_) | CertificateOutcome::Refused => None,
        }
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

    /// Whether a packet with this first byte may come on a connection that has had no CONNACK.
    pub(super) fn may_come_first(&mut self, conn: ConnId, first: u8) -> bool {
        const CONNECT: u8 = PacketType::Connect as u8;
        const AUTH: u8 = PacketType::Auth as u8;
        const DISCONNECT: u8 = PacketType::Disconnect as u8;
        let is_authenticating = self.connections.authentication(conn).is_some();
        match first >> 4 {
            CONNECT => !is_authenticating,
            AUTH | DISCONNECT => is_authenticating,
            _ => false,
        }
    }
}
