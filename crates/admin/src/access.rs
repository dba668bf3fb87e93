//! Who may use a route: basic authentication, and the rules.
//!
//! As soon as there is a user, each request but those for health needs one. Without users, everyone who can connect
//! may use the API, and only clients on this machine may add the first user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_security::{
    Action, Actor, AdminChange, BannedClient, CertificateOutcome, Certified, ChangedSettings, Denial, Grants,
    Identity, LogIn, LogInResult, Origin, PeerCertificate, Presented, ResourceKind, SecurityHost,
    SecurityState,
};
use tokio::sync::oneshot;

use crate::app::App;
use crate::clock::unix_ms;
use crate::problem::Problem;
use crate::request_quota::count_request;

const PROTOCOL: &str = "http";

/// What a route needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// Nothing.
    Open,
    /// A user, if there are any.
    LoggedIn,
    /// An action on the queue that the path names.
    Queue(Action),
    /// An action on the broker.
    Cluster(Action),
    /// Changes of users and rules: as `Cluster`, and without users only for clients on this machine.
    Security,
}

/// Where a connection comes from, in the extensions of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Address of the client.
    pub(crate) address: Option<IpAddr>,
    /// Name of the listener.
    pub(crate) listener: Arc<str>,
    /// Certificate of the client, which TLS has verified, in DER.
    pub(crate) certificate: Option<Arc<[u8]>>,
}

/// Who sends a request, in its extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    identity: Identity,
    address: Option<IpAddr>,
    /// Name of the listener.
    listener: Option<Arc<str>>,
    /// The users and rules by which the request was let in.
    epoch: u64,
}

impl Caller {
    /// For the audit log.
    pub(crate) fn actor(&self) -> Actor {
        Actor { principal: self.identity.principal.clone(), address: self.address, protocol: PROTOCOL }
    }

    /// Notes a change of this caller in the audit log.
    pub(crate) fn note(
        &self,
        app: &App,
        change: &'static str,
        object: &str,
        before: Option<ChangedSettings>,
        after: Option<ChangedSettings>,
    ) {
        if let Some(security) = app.broker().security() {
            let change = AdminChange { change, object: object.to_owned(), before, after };
            security.changed(&self.actor(), change);
        }
    }

    /// Checks an action on an object that is not the one of the path, by the newest users and rules.
    pub(crate) fn check(
        &self,
        app: &App,
        action: Action,
        kind: ResourceKind,
        name: &str,
    ) -> Result<(), Problem> {
        let Some(security) = app.broker().security() else { return Ok(()) };
        self.check_in(&security, &security.published().state(), (action, kind, name))
    }

    /// Checks a request again that has waited, if users or rules have changed since it came.
    pub(crate) fn check_again(&self, app: &App, action: Action, queue: &str) -> Result<(), Problem> {
        let Some(security) = app.broker().security() else { return Ok(()) };
        let state = security.published().state();
        let Identity { principal, proof } = &self.identity;
        let now_ms = unix_ms();
        if proof.as_ref().and_then(|proof| proof.expires_ms).is_some_and(|end_ms| now_ms >= end_ms) {
            return Err(Problem::log_in());
        }
        if state.epoch() == self.epoch {
            return Ok(());
        }
        let user = principal.user().map(|user| &**user);
        if state.bans().find(user, None, self.address, now_ms).is_some() {
            security.banned(&banned_client(user, self.address));
            return Err(Problem::banned());
        }
        let must_log_in = principal.user().is_none() && state.has_log_ins();
        if must_log_in || !state.admits(principal, proof.as_deref()) {
            return Err(Problem::log_in());
        }
        self.check_in(&security, &state, (action, ResourceKind::Queue, queue))
    }

    fn check_in(
        &self,
        security: &Arc<dyn SecurityHost>,
        state: &SecurityState,
        (action, kind, name): (Action, ResourceKind, &str),
    ) -> Result<(), Problem> {
        let Identity { principal, proof } = &self.identity;
        let (proof, listener) = (proof.as_deref(), self.listener.as_deref());
        let origin = Origin { principal, proof, client_id: None, listener, address: self.address };
        // A request is rare compared with a message: its rules are compiled each time.
        let grants = Grants::compile(state, &origin);
        let may_connect = grants.allows(Action::Connect, ResourceKind::Cluster, "");
        if may_connect && grants.allows(action, kind, name) {
            return Ok(());
        }
        security.denied(&Denial { origin, protocol: PROTOCOL, action, kind, name });
        Err(Problem::forbidden(action.name(), kind.name(), name))
    }
}

/// Rejects requests that lack what their route needs.
pub(crate) async fn authorize(
    State((app, access)): State<(App, Access)>,
    request: Request,
    next: Next,
) -> Response {
    match check(&app, access, request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

async fn check(app: &App, access: Access, mut request: Request) -> Result<Request, Problem> {
    let peer = request.extensions().get::<Peer>().cloned();
    let address = peer.as_ref().and_then(|peer| peer.address);
    let security = app.broker().security().filter(|_| !matches!(access, Access::Open));
    let Some(security) = security else {
        let listener = peer.map(|peer| peer.listener);
        request.extensions_mut().insert(Caller { address, listener, ..Caller::default() });
        return Ok(request);
    };
    let mut state = security.published().state();
    let identity = if state.has_log_ins() {
        let identity = log_in(&security, request.headers(), peer.as_ref()).await?;
        // Users, rules and bans may have changed while the password was verified.
        state = security.published().state();
        if !state.admits(&identity.principal, identity.proof.as_deref()) {
            return Err(Problem::log_in());
        }
        identity
    } else if matches!(access, Access::Security) {
        if !address.is_some_and(is_local) {
            return Err(Problem::first_user());
        }
        Identity::default()
    } else if state.allows_anonymous() {
        Identity::default()
    } else {
        return Err(Problem::log_in());
    };
    let user = identity.principal.user().map(|user| &**user);
    if state.bans().find(user, None, address, unix_ms()).is_some() {
        security.banned(&banned_client(user, address));
        return Err(Problem::banned());
    }
    count_request(security.published(), &state, &identity.principal)?;
    let listener = peer.as_ref().map(|peer| Arc::clone(&peer.listener));
    let caller = Caller { identity, address, listener, epoch: state.epoch() };
    let (action, kind, name) = match access {
        Access::Open | Access::LoggedIn => {
            request.extensions_mut().insert(caller);
            return Ok(request);
        }
        Access::Cluster(action) => (action, ResourceKind::Cluster, String::new()),
        Access::Security => (Action::AdminWrite, ResourceKind::Cluster, String::new()),
        Access::Queue(action) => {
            let (mut parts, body) = request.into_parts();
            let params = Path::<HashMap<String, String>>::from_request_parts(&mut parts, &()).await;
            let Path(mut params) = params.map_err(|error| Problem::malformed(error.body_text()))?;
            request = Request::from_parts(parts, body);
            (action, ResourceKind::Queue, params.remove("name").unwrap_or_default())
        }
    };
    caller.check_in(&security, &state, (action, kind, &name))?;
    request.extensions_mut().insert(caller);
    Ok(request)
}

fn banned_client(user: Option<&str>, address: Option<IpAddr>) -> BannedClient<'_> {
    BannedClient { user, client_id: None, address, protocol: Some(PROTOCOL) }
}

fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

async fn log_in(
    security: &Arc<dyn SecurityHost>,
    headers: &HeaderMap,
    peer: Option<&Peer>,
) -> Result<Identity, Problem> {
    let credentials = credentials(headers);
    let address = peer.and_then(|peer| peer.address);
    let presented = Presented {
        listener: peer.map_or("", |peer| &peer.listener),
        certificate: peer.and_then(|peer| peer.certificate.as_deref()).map(PeerCertificate::Der),
        has_password: headers.contains_key(header::AUTHORIZATION),
        address,
        protocol: PROTOCOL,
    };
    let certified = match security.check_certificate(&presented) {
        CertificateOutcome::Accepted(identity) => return Ok(identity),
        CertificateOutcome::Refused => return Err(Problem::log_in()),
        CertificateOutcome::Ignored(certified) => certified,
    };
    let (user, password) = credentials.ok_or_else(Problem::log_in)?;
    verify(security, &user, password, certified, address).await
}

async fn verify(
    security: &Arc<dyn SecurityHost>,
    user: &str,
    password: String,
    certified: Certified,
    address: Option<IpAddr>,
) -> Result<Identity, Problem> {
    let (sender, receiver) = oneshot::channel();
    let (user, password) = (user.into(), password.into());
    let log_in = LogIn { user, password, certified, address, protocol: PROTOCOL, client_id: None };
    // The receiver is gone if the client has disconnected.
    security.log_in(log_in, Box::new(move |result| drop(sender.send(result))));
    match receiver.await {
        Ok(LogInResult::Accepted(identity)) => Ok(identity),
        Ok(LogInResult::Rejected) => Err(Problem::log_in()),
        Ok(LogInResult::Unavailable) => Err(Problem::log_in_unavailable()),
        Ok(LogInResult::Busy) | Err(_) => Err(Problem::log_in_limited()),
    }
}

/// User name and password of basic authentication (RFC 7617), or a token without a name (RFC 6750); `None` also if
/// there are several, since a proxy may have checked another one than the broker would take.
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let text = all.next().filter(|_| all.next().is_none())?.to_str().ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((String::new(), encoded.trim().to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_basic_authentication() {
        let parse = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            credentials(&headers)
        };
        let alice = Some(("Aladdin".to_owned(), "open:sesame".to_owned()));
        let encoded = STANDARD.encode("Aladdin:open:sesame");
        assert_eq!(parse(&format!("Basic {encoded}")), alice);
        assert_eq!(parse(&format!("bASIC {encoded}")), alice);
        assert_eq!(parse("bearer a.b.c"), Some((String::new(), "a.b.c".to_owned())));
        for value in ["Basic", "Basic !", "Digest x", "Basic QWxhZGRpbg==", ""] {
            assert_eq!(parse(value), None, "{value}");
        }
        assert_eq!(credentials(&HeaderMap::new()), None);
        let mut twice = HeaderMap::new();
        for _ in 0..2 {
            twice.append(header::AUTHORIZATION, format!("Basic {encoded}").parse().unwrap());
        }
        assert_eq!(credentials(&twice), None);
    }
}
