//! One message of a client in the exchange of an enhanced authentication (4.12): SCRAM between CONNECT and CONNACK, and
//! again while a client is connected.
//!
//! Guesses are counted per user and address. The limit is checked at each message, not only at the first one: many
//! exchanges may be in progress at once, and a limit that each of them checks once does not hold for all together.

use mainstem_mqtt::ReasonCode;
use mainstem_sasl::{Failure, Step};
use mainstem_security::{CertificateOutcome, Identity};

use super::Peer;
use crate::access::Security;
use crate::authentication::Authentication;

/// How far an exchange is.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The client must answer this.
    Challenge(Vec<u8>),
    /// The client is this user, and this is the server's last message.
    Proven(Identity, Vec<u8>),
}

/// Gives a message of the client to its exchange.
pub(crate) fn authenticate(
    security: &Security,
    peer: Peer<'_>,
    authentication: &mut Authentication,
    data: &[u8],
) -> Result<Progress, ReasonCode> {
    let address = peer.address();
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
                let identity = certified_identity(security, peer, Identity::of_user(&user.as_str().into()));
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
fn certified_identity(security: &Security, peer: Peer<'_>, identity: Identity) -> Option<Identity> {
    match peer.check_certificate(security, true) {
        CertificateOutcome::Ignored(certified) => certified.confirm(identity),
        CertificateOutcome::Accepted(_) | CertificateOutcome::Refused => None,
    }
}
