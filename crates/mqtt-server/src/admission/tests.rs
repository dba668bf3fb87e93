//! Decisions of [`Admission`], without connections.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use mainstem_mqtt::{ConnAck, Connect, MessageProperties, Packet, Publish, QoS, UserProperties, Will};
use mainstem_quota::{BucketSettings, Entity, Name, Quotas};
use mainstem_security::{
    Actor, AdminChange, Anonymous, Attempt, Authenticator, Ban, BanSubject, BannedClient, Certified, Change,
    ChangeError, Denial, Edit, LogIn, LogInResult, Presented, Published, Reply, SecurityAdmin, SecurityHost,
    Settings, User,
};

use super::*;
use crate::config::{MqttConfig, QuotaPolicy};
use crate::session::{ClientParameters, Sessions};

/// Accepts no password, and keeps what it is told.
#[derive(Default)]
struct Host {
    published: Arc<Published>,
    log_ins: Mutex<Vec<Arc<str>>>,
    banned: Mutex<u32>,
}

impl Authenticator for Host {
    fn check_certificate(&self, presented: &Presented<'_>) -> CertificateOutcome {
        match presented.certificate {
            Some(_) => CertificateOutcome::Accepted(Identity::of_user(&"certified".into())),
            None => CertificateOutcome::Ignored(Certified::default()),
        }
    }

    fn log_in(&self, log_in: LogIn, reply: Reply<LogInResult>) {
        self.log_ins.lock().unwrap().push(log_in.user);
        reply(LogInResult::Rejected);
    }

    fn may_attempt(&self, _: &Attempt<'_>) -> bool {
        true
    }

    fn attempted(&self, _: &Attempt<'_>, _: bool) {}

    fn denied(&self, _: &Denial<'_>) {}

    fn banned(&self, _: &BannedClient<'_>) {
        *self.banned.lock().unwrap() += 1;
    }
}

impl SecurityAdmin for Host {
    fn change(&self, _: Edit, _: Actor, _: Reply<Result<Vec<Change>, ChangeError>>) {}

    fn changed(&self, _: &Actor, _: AdminChange) {}

    fn derive(&self, user: User, _: Vec<u8>, reply: Reply<Result<User, ChangeError>>) {
        reply(Ok(user));
    }
}

impl SecurityHost for Host {
    fn published(&self) -> &Arc<Published> {
        &self.published
    }
}

/// An [`Admission`], with users that tests change.
struct Fixture {
    admission: Admission,
    shared: Arc<Shared>,
    host: Arc<Host>,
    sessions: Sessions,
}

impl Fixture {
    fn new(config: MqttConfig) -> Self {
        let shared = Shared::new(config, 1, 1);
        let host = Arc::new(Host::default());
        host.published.buckets().configure(BucketSettings { shards: 1, ..BucketSettings::default() });
        shared.set_security(Arc::clone(&host) as Arc<dyn SecurityHost>, vec!["tcp".into()], [7; 32]);
        let sessions = Sessions::new(0, shared.session_meter(0));
        Self { admission: Admission::new(0, Arc::clone(&shared)), shared, host, sessions }
    }

    fn apply(&self, change: &Change) {
        let mut state = SecurityState::clone(&self.host.published.state());
        state.check(change).unwrap();
        assert!(state.apply(change));
        self.host.published.publish(Arc::new(state));
    }

    fn add_user(&self, name: &str) {
        self.apply(&Change::PutUser(Arc::new(User::new(name).unwrap())));
    }

    fn set_anonymous(&self, anonymous: Anonymous, super_user: &str) {
        let settings = Settings { anonymous, super_users: [super_user.into()].into(), ..Settings::default() };
        self.host.published.publish(Arc::new(SecurityState::new(settings)));
    }

    fn ban(&self, subject: BanSubject) {
        let ban = Ban { reason: "test".into(), since_ms: 0, until_ms: None };
        self.apply(&Change::PutBan(subject, Arc::new(ban)));
    }

    fn access(&self, identity: Identity) -> Access {
        Access::new(&self.shared.security, identity, "client", (None, None)).unwrap()
    }

    /// A connected session.
    fn session(&mut self, version: Version) -> &mut Session {
        let conn = ConnId::from_parts(0, 1);
        let slot = self.sessions.insert("client".into(), conn).slot;
        let session = self.sessions.at(slot);
        session.connect(ClientParameters {
            conn,
            version,
            problem_information: true,
            inflight_max: 10,
            packet_max: u32::MAX,
            expiry_s: 0,
        });
        session
    }

    fn check(&self, connect: &Connect<'_>) -> Result<(), ReasonCode> {
        self.admission.check_connect(connect, ConnectContext::default())
    }
}

fn connect(version: Version) -> Connect<'static> {
    Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id: "client",
        will: None,
        username: None,
        password: None,
        session_expiry: None,
        receive_maximum: None,
        maximum_packet_size: None,
        topic_alias_maximum: None,
        request_response_information: None,
        request_problem_information: None,
        authentication_method: None,
        authentication_data: None,
        user_properties: UserProperties::default(),
    }
}

fn will(topic: &str) -> Will<'_> {
    Will {
        qos: QoS::AtMostOnce,
        retain: false,
        topic,
        payload: b"gone",
        delay_interval: None,
        properties: MessageProperties::default(),
    }
}

fn user(name: &str) -> Identity {
    Identity::of_user(&name.into())
}

#[test]
fn a_shard_that_drains_refuses_before_all_else() {
    let fixture = Fixture::new(MqttConfig { redirect: Redirect::ServerMoved, ..MqttConfig::default() });
    let context = ConnectContext { is_draining: true, ..ConnectContext::default() };
    let connect = connect(Version::V5);
    assert_eq!(fixture.admission.check_connect(&connect, context), Err(ReasonCode::ServerUnavailable));
    assert_eq!(fixture.check(&connect), Err(ReasonCode::ServerMoved));
}

#[test]
fn only_sessions_that_need_the_disk_are_refused_while_it_fails() {
    let fixture = Fixture::new(MqttConfig::default());
    fixture.shared.set_failing(0, true);
    let context = ConnectContext { is_persistence_enabled: true, ..ConnectContext::default() };
    let after_wait = ConnectContext { has_waited: true, ..context };
    let durable = Connect { session_expiry: Some(60), ..connect(Version::V5) };
    let durable_v4 = Connect { clean_start: false, ..connect(Version::V4) };
    let refused = Err(ReasonCode::ServerUnavailable);
    let check = |connect: &Connect<'_>, context| fixture.admission.check_connect(connect, context);
    assert_eq!(check(&connect(Version::V5), context), Ok(()));
    assert_eq!(check(&connect(Version::V5), after_wait), refused);
    assert_eq!(check(&durable, context), refused);
    assert_eq!(check(&durable_v4, context), refused);
    assert_eq!(fixture.check(&durable), Ok(()), "without persistence");
}

/// [MQTT-3.1.3-8]
#[test]
fn an_empty_client_id_is_allowed_by_version() {
    let fixture = Fixture::new(MqttConfig::default());
    let empty = |version, clean_start| Connect { clean_start, client_id: "", ..connect(version) };
    let refused = Err(ReasonCode::ClientIdentifierNotValid);
    assert_eq!(fixture.check(&empty(Version::V3, true)), refused);
    assert_eq!(fixture.check(&empty(Version::V4, false)), refused);
    assert_eq!(fixture.check(&empty(Version::V4, true)), Ok(()));
    assert_eq!(fixture.check(&empty(Version::V5, false)), Ok(()));
    let fixture = Fixture::new(MqttConfig { allow_empty_client_id: false, ..MqttConfig::default() });
    assert_eq!(fixture.check(&empty(Version::V5, true)), refused);
}

#[test]
fn a_will_must_be_publishable() {
    let fixture = Fixture::new(MqttConfig { retain_available: false, ..MqttConfig::default() });
    let check = |will| fixture.check(&Connect { will: Some(will), ..connect(Version::V5) });
    assert_eq!(check(will("a/b")), Ok(()));
    for topic in ["a/#", "", "$SYS/broker/version"] {
        assert_eq!(check(will(topic)), Err(ReasonCode::TopicNameInvalid), "{topic}");
    }
    assert_eq!(check(Will { retain: true, ..will("a") }), Err(ReasonCode::RetainNotSupported));
    let properties = MessageProperties { response_topic: Some("+"), ..MessageProperties::default() };
    assert_eq!(check(Will { properties, ..will("a") }), Err(ReasonCode::ProtocolError));
}

#[test]
fn the_will_of_a_resumed_session_is_replaced() {
    let config = MqttConfig { max_session_bytes: 4096, ..MqttConfig::default() };
    let mut fixture = Fixture::new(config);
    let payload = [0; 2500];
    let large = Will { payload: &payload, ..will("a") };
    let meter = fixture.shared.message_meter(0);
    let session = fixture.session(Version::V5);
    let key = session.key();
    session.set_will_and_aliases(Some(crate::wills::Will::new(&large, key, &meter)), 0);
    let connect = Connect { will: Some(large), ..connect(Version::V5) };
    let mut room =
        |resumed: Option<&Session>| fixture.admission.has_room_for_will(&connect, "client", resumed, 0);
    assert!(room(None));
    assert!(room(Some(fixture.sessions.at(key.slot))), "two such wills would be too large");
    let payload = [0; 4096];
    let connect = Connect { will: Some(Will { payload: &payload, ..will("a") }), ..connect.clone() };
    assert!(!fixture.admission.has_room_for_will(&connect, "client", None, 0));
}

#[test]
fn bans_count_by_client_id_address_and_user() {
    let mut fixture = Fixture::new(MqttConfig::default());
    let clock = Clock::default();
    let address: IpAddr = [10, 0, 0, 1].into();
    let (connect, refused) = (connect(Version::V5), Err(ReasonCode::Banned));
    fixture.ban(BanSubject::Network("10.0.0.0/8".parse().unwrap()));
    fixture.ban(BanSubject::User("mallory".into()));
    assert_eq!(fixture.admission.check_bans(&connect, None, clock), Ok(()));
    assert_eq!(fixture.admission.check_bans(&connect, Some(address), clock), refused);
    fixture.ban(BanSubject::ClientId("client".into()));
    assert_eq!(fixture.admission.check_bans(&connect, None, clock), refused);
    let mut check_user =
        |name| fixture.admission.check_user_ban(&connect, &user(name).principal, None, clock);
    assert_eq!(check_user("alice"), Ok(()));
    assert_eq!(check_user("mallory"), refused);
    assert_eq!(*fixture.host.banned.lock().unwrap(), 3, "each refusal is noted once");
}

#[test]
fn who_a_client_is_comes_from_its_certificate_or_its_password() {
    let fixture = Fixture::new(MqttConfig::default());
    let conn = ConnId::from_parts(0, 1);
    let log_in = |connect: &Connect<'_>, peer| fixture.admission.log_in(conn, connect, peer);
    let bare = connect(Version::V5);
    let named = Connect { username: Some("alice"), ..bare.clone() };
    let is_anonymous = |outcome| matches!(outcome, Ok(LoggedIn::As(identity)) if identity.user().is_none());
    assert!(is_anonymous(log_in(&named, Peer::default())), "without users, the name is ignored");
    fixture.set_anonymous(Anonymous::Refused, "root");
    fixture.add_user("alice");
    assert_eq!(log_in(&bare, Peer::default()).unwrap_err(), ReasonCode::NotAuthorized);
    assert!(matches!(log_in(&named, Peer::default()), Ok(LoggedIn::NotYet)));
    assert_eq!(*fixture.host.log_ins.lock().unwrap(), ["alice".into()]);
    let certified = log_in(&named, Peer::with_certificate(b"DER"));
    assert!(matches!(certified, Ok(LoggedIn::As(identity)) if identity == user("certified")));
    assert_eq!(fixture.host.log_ins.lock().unwrap().len(), 1, "a certificate needs no password");
}

#[test]
fn a_session_is_resumed_by_its_user_or_a_super_user() {
    let mut fixture = Fixture::new(MqttConfig::default());
    fixture.set_anonymous(Anonymous::Allowed, "root");
    for name in ["alice", "bob", "root"] {
        fixture.add_user(name);
    }
    let access = fixture.access(user("alice"));
    fixture.session(Version::V5).set_access(Some(access));
    let session = &*fixture.sessions.at(0);
    let check = |identity: &Identity, resumed| {
        let connect = connect(Version::V5);
        let rights = fixture.admission.check_rights(&connect, "client", identity, Peer::default(), resumed);
        rights.map(|access| access.map(|access| access.principal().clone()))
    };
    let refused = Err(ReasonCode::NotAuthorized);
    assert_eq!(check(&user("alice"), Some(session)), Ok(Some(user("alice").principal)));
    assert_eq!(check(&user("root"), Some(session)), Ok(Some(user("root").principal)));
    assert_eq!(check(&user("bob"), Some(session)), refused);
    assert_eq!(check(&Identity::default(), Some(session)), refused);
    assert!(check(&user("bob"), None).is_ok());
    assert_eq!(check(&user("deleted"), None), refused, "deleted while its password was checked");
}

#[test]
fn a_renewal_tells_what_becomes_of_a_session() {
    let mut fixture = Fixture::new(MqttConfig::default());
    fixture.set_anonymous(Anonymous::Allowed, "root");
    fixture.add_user("alice");
    let access = fixture.access(user("alice"));
    fixture.session(Version::V5).set_access(Some(access));
    let security = Arc::clone(&fixture.shared.security);
    let epoch = fixture.sessions.at(0).access().unwrap().epoch();
    fixture.ban(BanSubject::ClientId("other".into()));
    assert_eq!(renew(&security, fixture.sessions.at(0), None, 0), Renewal::Narrow);
    assert!(fixture.sessions.at(0).access().unwrap().epoch() > epoch);
    assert_eq!(renew(&security, fixture.sessions.at(0), Some(Peer::default()), 0), Renewal::Narrow);
    fixture.apply(&Change::DeleteUser("alice".into()));
    let mut renewal = |peer| renew(&security, fixture.sessions.at(0), peer, 0);
    assert_eq!(renewal(None), Renewal::Withhold);
    assert!(matches!(renewal(Some(Peer::default())), Renewal::Disconnect(ReasonCode::NotAuthorized, _)));
    fixture.ban(BanSubject::User("alice".into()));
    let renewal = renew(&security, fixture.sessions.at(0), Some(Peer::default()), 0);
    assert!(matches!(renewal, Renewal::Disconnect(ReasonCode::AdministrativeAction, _)));
}

/// What becomes of the first PUBLISH that exceeds a quota. `begun`: its QoS 2 exchange has begun.
fn excess_publish(policy: QuotaPolicy, version: Version, qos: QoS, begun: bool) -> QuotaOutcome {
    let mut fixture = Fixture::new(MqttConfig { quota_policy: policy, ..MqttConfig::default() });
    let mut quotas = Quotas::default();
    quotas.set(QuotaKey::PublishRate, Some(1.0));
    let client = Entity::ClientId(Name::from_option(Some("client")));
    fixture.apply(&Change::PutQuotas(client, quotas));
    let session = fixture.session(version);
    if begun {
        session.receive(1, 10).unwrap();
    }
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic: "t",
        packet_id: u16::from(qos != QoS::AtMostOnce),
        topic_alias: None,
        subscription_ids: mainstem_mqtt::SubscriptionIds::default(),
        properties: MessageProperties::default(),
        payload: b"",
    };
    let session = &*fixture.sessions.at(0);
    let quotas = fixture.admission.find_quotas(session, 0).unwrap();
    let mut check = || fixture.admission.check_quotas(&quotas, session, &publish, 0);
    assert_eq!(check(), QuotaOutcome::Within);
    let excess = (0..10).map(|_| check()).find(|outcome| *outcome != QuotaOutcome::Within);
    excess.expect("the quota holds")
}

#[test]
fn a_publish_beyond_a_quota_is_refused_only_if_its_client_can_be_told() {
    use QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    let key = QuotaKey::PublishRate;
    let refused = QuotaOutcome::Refuse { key };
    let is_wait = |outcome| matches!(outcome, QuotaOutcome::Wait { wait_ms: 1.., .. });
    let refuse = |version, qos, begun| excess_publish(QuotaPolicy::Refuse, version, qos, begun);
    assert_eq!(refuse(Version::V4, AtMostOnce, false), refused);
    assert_eq!(refuse(Version::V5, AtLeastOnce, false), refused);
    assert_eq!(refuse(Version::V5, ExactlyOnce, false), refused);
    assert!(is_wait(refuse(Version::V4, AtLeastOnce, false)));
    assert!(is_wait(refuse(Version::V4, ExactlyOnce, false)));
    assert!(is_wait(refuse(Version::V5, ExactlyOnce, true)));
    assert!(is_wait(excess_publish(QuotaPolicy::Wait, Version::V5, AtMostOnce, false)));
    let outcome = excess_publish(QuotaPolicy::Disconnect, Version::V4, AtLeastOnce, false);
    assert_eq!(outcome, QuotaOutcome::Disconnect { key });
}

#[test]
fn a_connack_tells_only_what_differs() {
    let config = MqttConfig { keep_alive_s_max: 30, session_expiry_s_max: 100, ..MqttConfig::default() };
    let told = |connect: &Connect<'_>| {
        let connack = accepted(&config, connect, Granted::new(&config, connect), false, "client");
        (connack.server_keep_alive, connack.session_expiry)
    };
    let v5 = Connect { session_expiry: Some(200), ..connect(Version::V5) };
    assert_eq!(told(&v5), (Some(30), Some(100)));
    assert_eq!(told(&Connect { keep_alive: 0, session_expiry: None, ..v5.clone() }), (Some(30), None));
    assert_eq!(told(&Connect { keep_alive: 20, session_expiry: Some(100), ..v5 }), (None, None));
    // A client of 3.x cannot be told of another keep alive than its own.
    assert_eq!(told(&connect(Version::V4)).0, None);
}

#[test]
fn a_rejection_fits_the_client() {
    let config = MqttConfig { server_reference: "other.example:1883".into(), ..MqttConfig::default() };
    let rejection = |room| rejected(&config, Version::V5, room, ReasonCode::ServerMoved);
    let reference = |packet: Option<Packet<'_>>| match packet {
        Some(Packet::ConnAck(ConnAck { server_reference, .. })) => server_reference.map(str::to_owned),
        other => panic!("{other:?}"),
    };
    assert_eq!(reference(rejection(None)).as_deref(), Some("other.example:1883"));
    assert_eq!(reference(rejection(Some(10))), None);
    assert!(rejection(Some(4)).is_none());
}
