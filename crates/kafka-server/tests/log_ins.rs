//! Log-ins by SASL: which requests a connection may send, good and bad log-ins, their delay, sessions that end, and the
//! credentials of SCRAM.

mod kit;
#[path = "../../sasl/tests/kit/mod.rs"]
mod scram;

use kit::security::Host;
use kit::{Broker, Client, fetch_request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, ScramCredentialDeletion, ScramCredentialUpsertion,
};
use mainstem_kafka::api::api_versions::ApiVersionsRequest;
use mainstem_kafka::api::describe_user_scram_credentials::{DescribeUserScramCredentialsRequest, UserName};
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka::api::sasl_authenticate::{SaslAuthenticateRequest, SaslAuthenticateResponse};
use mainstem_kafka::api::sasl_handshake::{SaslHandshakeRequest, SaslHandshakeResponse};
use mainstem_kafka_server::{Config, ListenerSettings};
use mainstem_sasl::Mechanism;
use mainstem_security::ScramAlgorithm;

const OK: i16 = ErrorCode::None as i16;
const ILLEGAL: i16 = ErrorCode::IllegalSaslState as i16;
const UNSUPPORTED: i16 = ErrorCode::UnsupportedSaslMechanism as i16;
const FAILED: i16 = ErrorCode::SaslAuthenticationFailed as i16;
const PLAIN: &str = "PLAIN";
const SCRAM: [(&str, ScramAlgorithm); 2] =
    [("SCRAM-SHA-256", ScramAlgorithm::Sha256), ("SCRAM-SHA-512", ScramAlgorithm::Sha512)];

fn broker(mechanisms: &[Mechanism], change: impl FnOnce(&mut Config)) -> Broker {
    let listener = ListenerSettings { name: "kafka".into(), mechanisms: mechanisms.to_vec() };
    let mut config = Config { listeners: vec![listener], ..Config::default() };
    change(&mut config);
    Broker::secured(2, config, Host::open_to_all(&[("alice", "secret"), ("bob", "other")]).security())
}

fn handshake(broker: &mut Broker, client: Client, version: i16, mechanism: &str) -> SaslHandshakeResponse {
    broker.ask(client, version, &SaslHandshakeRequest { mechanism: mechanism.into() })
}

fn authenticate(broker: &mut Broker, client: Client, token: &[u8]) -> SaslAuthenticateResponse {
    broker.ask(client, 2, &SaslAuthenticateRequest { auth_bytes: token.to_vec() })
}

/// Whether the broker answers a request that needs a user.
fn is_served(broker: &mut Broker, client: Client) -> bool {
    broker.send(client, 12, &MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() });
    broker.run();
    broker.take::<MetadataRequest>(client, 12).is_some()
}

fn scram<'a>(algorithm: ScramAlgorithm, user: &'a str, password: &'a str) -> scram::Client<'a> {
    scram::Client { algorithm, user, password, nonce: "abc", gs2_header: "n,," }
}

/// Logs in by SCRAM. Returns the last response.
fn log_in_by_scram(
    broker: &mut Broker,
    client: Client,
    mechanism: &str,
    peer: &scram::Client<'_>,
) -> SaslAuthenticateResponse {
    assert_eq!(handshake(broker, client, 1, mechanism).error_code, OK);
    let first = authenticate(broker, client, peer.first().as_bytes());
    assert_eq!(first.error_code, OK);
    let (last, server_last) = peer.last(&String::from_utf8(first.auth_bytes).unwrap());
    broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: last.into_bytes() });
    broker.pass(200);
    let response = broker.take::<SaslAuthenticateRequest>(client, 2).expect("a response");
    assert!(
        response.error_code != OK || response.auth_bytes == server_last.as_bytes(),
        "the server proves itself"
    );
    response
}

#[test]
fn only_a_log_in_is_possible_before_the_log_in() {
    let mut broker = broker(&[Mechanism::Plain], |_| {});
    let client = broker.connect(0);
    assert!(!is_served(&mut broker, client) && !broker.is_open(client));

    let client = broker.connect(1);
    let software =
        ApiVersionsRequest { client_software_name: "kit".into(), client_software_version: "1".into() };
    assert_eq!(broker.ask(client, 3, &software).error_code, OK);
    assert_eq!(broker.ask(client, 0, &software).error_code, OK, "an older version after all");
    broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: b"\0alice\0secret".to_vec() });
    broker.run();
    assert!(!broker.is_open(client), "a token before the handshake");

    let client = broker.connect(1);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).mechanisms, [PLAIN]);
    assert!(!is_served(&mut broker, client) && !broker.is_open(client), "between handshake and token");
}

#[test]
fn a_right_password_logs_in() {
    let mut broker = broker(&Mechanism::ALL, |_| {});
    for shard in 0..2 {
        let client = broker.connect(shard);
        assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
        let response = authenticate(&mut broker, client, b"\0alice\0secret");
        assert_eq!((response.error_code, response.session_lifetime_ms), (OK, 0));
        assert!(is_served(&mut broker, client));
        for (mechanism, algorithm) in SCRAM {
            let client = broker.connect(shard);
            let response =
                log_in_by_scram(&mut broker, client, mechanism, &scram(algorithm, "alice", "secret"));
            assert_eq!(response.error_code, OK);
            assert!(is_served(&mut broker, client));
            // Without an end of the session there is nothing to log in for.
            assert_eq!(handshake(&mut broker, client, 1, mechanism).error_code, ILLEGAL);
            assert_eq!(authenticate(&mut broker, client, b"n,,n=alice,r=abc").error_code, ILLEGAL);
            assert!(is_served(&mut broker, client));
        }
    }
}

/// Version 0 of the handshake: tokens are frames of their own.
#[test]
fn bare_tokens_log_in() {
    let mut broker = broker(&Mechanism::ALL, |_| {});
    let frame = |token: &[u8]| [&(token.len() as u32).to_be_bytes(), token].concat();
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 0, PLAIN).error_code, OK);
    broker.send_bytes(client, &frame(b"\0alice\0secret"));
    broker.run();
    assert_eq!(broker.take_frame(client), Some(Vec::new()));
    assert!(is_served(&mut broker, client));

    let client = broker.connect(0);
    let peer = scram(ScramAlgorithm::Sha256, "bob", "other");
    assert_eq!(handshake(&mut broker, client, 0, "SCRAM-SHA-256").error_code, OK);
    broker.send_bytes(client, &frame(peer.first().as_bytes()));
    broker.run();
    let first = String::from_utf8(broker.take_frame(client).unwrap()).unwrap();
    let (last, server_last) = peer.last(&first);
    broker.send_bytes(client, &frame(last.as_bytes()));
    broker.run();
    assert_eq!(broker.take_frame(client), Some(server_last.into_bytes()));
    assert!(is_served(&mut broker, client));

    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 0, PLAIN).error_code, OK);
    broker.send_bytes(client, &frame(b"\0\0wrong"));
    broker.pass(200);
    assert_eq!(broker.take_frame(client), None);
    assert!(!broker.is_open(client));
}

#[test]
fn the_host_counts_log_ins_by_scram_and_limits_them() {
    let host = Host::open_to_all(&[("alice", "secret"), ("bob", "other")]);
    let listener = ListenerSettings { name: "kafka".into(), mechanisms: Mechanism::ALL.to_vec() };
    let config = Config { listeners: vec![listener], ..Config::default() };
    let mut broker = Broker::secured(2, config, host.security());
    let mut log_in = |user, password| {
        let client = broker.connect(0);
        log_in_by_scram(&mut broker, client, SCRAM[0].0, &scram(SCRAM[0].1, user, password)).error_code
    };
    assert_eq!(log_in("bob", "other"), OK);
    for _ in 0..3 {
        assert_eq!(log_in("alice", "guess"), FAILED);
    }
    let failed = ("alice".to_owned(), false);
    let expected = [("bob".to_owned(), true), failed.clone(), failed.clone(), failed];
    assert_eq!(*host.attempts.lock().unwrap(), expected);
    // Now her keys are not even looked up.
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 1, SCRAM[0].0).error_code, OK);
    let first = scram(SCRAM[0].1, "alice", "secret").first();
    broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: first.into_bytes() });
    broker.pass(200);
    let response = broker.take::<SaslAuthenticateRequest>(client, 2).expect("a response");
    assert_eq!(response.error_code, FAILED);
    assert!(response.error_message.unwrap().contains("try again later"));
    assert!(!broker.is_open(client));
    let client = broker.connect(0);
    let bob = scram(SCRAM[0].1, "bob", "other");
    assert_eq!(log_in_by_scram(&mut broker, client, SCRAM[0].0, &bob).error_code, OK);
}

#[test]
fn a_failed_log_in_is_answered_after_a_delay_and_its_connection_closed() {
    let mut broker = broker(&Mechanism::ALL, |config| config.failed_authentication_delay_ms = 500);
    let failing: [(&str, &[u8]); 5] = [
        (PLAIN, b"\0alice\0wrong"),
        (PLAIN, b"\0mallory\0secret"),
        (PLAIN, b"\0alice\0"),
        (PLAIN, b"root\0alice\0secret"),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=alice,r=abc"),
    ];
    let mut messages = Vec::new();
    for (mechanism, token) in failing {
        let client = broker.connect(0);
        let innocent = broker.connect(0);
        assert_eq!(handshake(&mut broker, client, 1, mechanism).error_code, OK);
        broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: token.to_vec() });
        // What it sends in the meantime is discarded.
        broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: b"\0alice\0secret".to_vec() });
        broker.pass(400);
        assert!(broker.take_frame(client).is_none() && broker.is_open(client), "{mechanism}");
        assert_eq!(handshake(&mut broker, innocent, 1, PLAIN).error_code, OK, "others are served");
        broker.pass(200);
        let response = broker.take::<SaslAuthenticateRequest>(client, 2).expect("a response");
        assert_eq!((response.error_code, response.auth_bytes), (FAILED, Vec::new()));
        assert!(broker.take_frame(client).is_none() && !broker.is_open(client));
        messages.push(response.error_message.unwrap());
    }
    assert_eq!(messages[0], "Authentication failed: Invalid username or password");
    assert_eq!(messages[0], messages[1], "an unknown user is like a wrong password");

    for (mechanism, algorithm) in SCRAM {
        let responses = [("alice", "wrong"), ("mallory", "secret")].map(|(user, password)| {
            let client = broker.connect(1);
            assert_eq!(handshake(&mut broker, client, 1, mechanism).error_code, OK);
            let peer = scram(algorithm, user, password);
            let first = authenticate(&mut broker, client, peer.first().as_bytes());
            let (last, _) = peer.last(&String::from_utf8(first.auth_bytes).unwrap());
            broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: last.into_bytes() });
            broker.pass(600);
            let response = broker.take::<SaslAuthenticateRequest>(client, 2).expect("a response");
            assert!(!broker.is_open(client));
            response
        });
        assert_eq!(responses[0].error_code, FAILED);
        assert_eq!(responses[0], responses[1]);
    }
}

#[test]
fn wrong_handshakes_are_answered_and_closed() {
    let mut broker = broker(&[Mechanism::ScramSha256, Mechanism::Plain], |_| {});
    for mechanism in ["SCRAM-SHA-512", "GSSAPI", "plain", ""] {
        let client = broker.connect(0);
        broker.send(client, 1, &SaslHandshakeRequest { mechanism: mechanism.into() });
        broker.pass(200);
        let response = broker.take::<SaslHandshakeRequest>(client, 1).unwrap();
        assert_eq!(
            (response.error_code, response.mechanisms),
            (UNSUPPORTED, vec!["SCRAM-SHA-256".into(), PLAIN.into()])
        );
        assert!(!broker.is_open(client));
    }
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
    broker.send(client, 1, &SaslHandshakeRequest { mechanism: PLAIN.into() });
    broker.pass(200);
    assert_eq!(broker.take::<SaslHandshakeRequest>(client, 1).unwrap().error_code, ILLEGAL);
    assert!(!broker.is_open(client));
}

#[test]
fn listeners_without_mechanisms_need_no_log_in() {
    let mut broker = broker(&[], |_| {});
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, ILLEGAL);
    assert_eq!(authenticate(&mut broker, client, b"\0alice\0secret").error_code, ILLEGAL);
    assert!(is_served(&mut broker, client));
}

#[test]
fn requests_before_the_log_in_are_small() {
    let mut broker = broker(&[Mechanism::Plain], |_| {});
    let client = broker.connect(0);
    broker.send_bytes(client, &100_000_u32.to_be_bytes());
    broker.run();
    assert!(!broker.is_open(client), "closed before the bytes arrive");

    // The largest token of PLAIN fits, and after the log-in requests may be large.
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
    broker.send(client, 2, &SaslAuthenticateRequest { auth_bytes: vec![b'x'; 20_000] });
    broker.pass(200);
    assert_eq!(broker.take::<SaslAuthenticateRequest>(client, 2).unwrap().error_code, FAILED);
    let client = broker.connect(0);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
    assert_eq!(authenticate(&mut broker, client, b"\0alice\0secret").error_code, OK);
    broker.send_bytes(client, &100_000_u32.to_be_bytes());
    broker.run();
    assert!(broker.is_open(client));
}

#[test]
fn a_connection_that_does_not_log_in_is_closed() {
    let mut broker = broker(&[Mechanism::Plain], |config| config.log_in_timeout_ms = 5_000);
    let (silent, slow, quick) = (broker.connect(0), broker.connect(0), broker.connect(0));
    assert_eq!(handshake(&mut broker, quick, 1, PLAIN).error_code, OK);
    assert_eq!(authenticate(&mut broker, quick, b"\0alice\0secret").error_code, OK);
    broker.pass(4_000);
    assert_eq!(handshake(&mut broker, slow, 1, PLAIN).error_code, OK);
    assert!(broker.is_open(silent));
    broker.pass(2_100);
    assert!(!broker.is_open(silent) && !broker.is_open(slow) && broker.is_open(quick));
}

/// KIP-368.
#[test]
fn a_session_ends_unless_the_client_logs_in_again() {
    let mut broker = broker(&Mechanism::ALL, |config| config.connections_max_reauth_ms = 10_000);
    let logged_in = |broker: &mut Broker| {
        let client = broker.connect(0);
        assert_eq!(handshake(broker, client, 1, PLAIN).error_code, OK);
        assert_eq!(authenticate(broker, client, b"\0alice\0secret").session_lifetime_ms, 10_000);
        client
    };
    let [idle, keeps, other_user, other_mechanism] = [(); 4].map(|()| logged_in(&mut broker));
    assert_eq!(handshake(&mut broker, keeps, 1, PLAIN).error_code, ILLEGAL, "too early");
    broker.pass(6_000);
    assert_eq!(handshake(&mut broker, keeps, 1, PLAIN).error_code, OK);
    assert_eq!(authenticate(&mut broker, keeps, b"\0alice\0secret").session_lifetime_ms, 10_000);
    assert!(is_served(&mut broker, keeps) && is_served(&mut broker, idle));

    assert_eq!(handshake(&mut broker, other_user, 1, PLAIN).error_code, OK);
    broker.send(other_user, 2, &SaslAuthenticateRequest { auth_bytes: b"\0bob\0other".to_vec() });
    broker.pass(200);
    assert_eq!(broker.take::<SaslAuthenticateRequest>(other_user, 2).unwrap().error_code, FAILED);
    let peer = scram(ScramAlgorithm::Sha256, "alice", "secret");
    let response = log_in_by_scram(&mut broker, other_mechanism, "SCRAM-SHA-256", &peer);
    assert_eq!(response.error_code, FAILED);
    assert!(!broker.is_open(other_user) && !broker.is_open(other_mechanism));

    broker.pass(3_900);
    assert!(is_served(&mut broker, keeps));
    assert!(!is_served(&mut broker, idle) && !broker.is_open(idle));
    broker.pass(20_000);
    assert_eq!(handshake(&mut broker, keeps, 1, PLAIN).error_code, OK, "also after the end of the session");
    assert_eq!(authenticate(&mut broker, keeps, b"\0alice\0secret").error_code, OK);
    assert!(is_served(&mut broker, keeps));
}

#[test]
fn a_fetch_that_waits_beyond_the_end_of_its_session_gets_nothing() {
    let mut broker = broker(&Mechanism::ALL, |config| config.connections_max_reauth_ms = 10_000);
    let [waits, producer] = [(); 2].map(|()| {
        let client = broker.connect(0);
        assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
        assert_eq!(authenticate(&mut broker, client, b"\0alice\0secret").error_code, OK);
        client
    });
    assert_eq!(broker.try_create_topic_by(producer, "orders", 1, &[]), OK);
    broker.send(waits, 12, &FetchRequest { max_wait_ms: 60_000, ..fetch_request("orders", 0, 0, 0) });
    broker.pass(6_000);
    assert_eq!(handshake(&mut broker, producer, 1, PLAIN).error_code, OK);
    assert_eq!(authenticate(&mut broker, producer, b"\0alice\0secret").error_code, OK);
    broker.pass(5_000);
    assert!(broker.is_open(waits));
    assert_eq!(broker.produce(producer, "orders", 0, &["too late"]).error_code, OK);
    broker.run();
    assert_eq!(broker.take_frame(waits), None);
    assert!(!broker.is_open(waits));
}

/// KIP-554.
#[test]
fn credentials_of_scram_are_set_listed_and_deleted() {
    let mut broker = broker(&Mechanism::ALL, |_| {});
    let client = broker.connect(1);
    assert_eq!(handshake(&mut broker, client, 1, PLAIN).error_code, OK);
    assert_eq!(authenticate(&mut broker, client, b"\0alice\0secret").error_code, OK);
    let upsertion = |name: &str, mechanism: i8, iterations: i32| ScramCredentialUpsertion {
        name: name.into(),
        mechanism,
        iterations,
        salt: b"salt of carol".to_vec(),
        salted_password: ScramAlgorithm::Sha512.salted_password(b"new", b"salt of carol", 4_096),
    };
    let deletion = |name: &str, mechanism: i8| ScramCredentialDeletion { name: name.into(), mechanism };
    let request = AlterUserScramCredentialsRequest {
        deletions: vec![deletion("dave", 1), deletion("erin", 3), deletion("bob", 1)],
        upsertions: vec![
            upsertion("carol", 2, 4_096),
            upsertion("frank", 2, 4_095),
            upsertion("grace", 2, 16_385),
            upsertion("heidi", 1, 4_096),
            upsertion("", 2, 4_096),
            upsertion("ivan", 2, 4_096),
            upsertion("ivan", 2, 4_096),
        ],
    };
    let response = broker.ask(client, 0, &request);
    let code = |user: &str| response.results.iter().find(|result| result.user == user).unwrap().error_code;
    let unacceptable = ErrorCode::UnacceptableCredential as i16;
    assert_eq!((code("carol"), code("bob")), (OK, OK));
    assert_eq!(code("dave"), ErrorCode::ResourceNotFound as i16);
    assert_eq!(code("erin"), UNSUPPORTED);
    assert_eq!([code("frank"), code("grace"), code("heidi"), code("")], [unacceptable; 4]);
    assert_eq!(code("ivan"), ErrorCode::DuplicateResource as i16);

    let users = |broker: &mut Broker, names: Option<&[&str]>| {
        let name = |name: &&str| UserName { name: (*name).into() };
        let request = DescribeUserScramCredentialsRequest {
            users: names.map(|names| names.iter().map(name).collect()),
        };
        broker.ask(client, 0, &request).results
    };
    let listed: Vec<_> =
        users(&mut broker, None).into_iter().map(|user| (user.user, user.credential_infos.len())).collect();
    assert_eq!(listed, [("alice".into(), 2), ("bob".into(), 1), ("carol".into(), 1)]);
    let named = users(&mut broker, Some(&["carol", "dave", "bob", "bob"]));
    let codes: Vec<_> = named.iter().map(|user| (user.user.as_str(), user.error_code)).collect();
    let (twice, unknown) = (ErrorCode::DuplicateResource as i16, ErrorCode::ResourceNotFound as i16);
    assert_eq!(codes, [("bob", twice), ("carol", OK), ("dave", unknown)]);
    let info = &named[1].credential_infos[0];
    assert_eq!((info.mechanism, info.iterations), (2, 4_096));

    let carol = broker.connect(0);
    let response =
        log_in_by_scram(&mut broker, carol, "SCRAM-SHA-512", &scram(ScramAlgorithm::Sha512, "carol", "new"));
    assert_eq!(response.error_code, OK);
    let bob = broker.connect(0);
    let response =
        log_in_by_scram(&mut broker, bob, "SCRAM-SHA-256", &scram(ScramAlgorithm::Sha256, "bob", "other"));
    assert_eq!(response.error_code, FAILED, "its keys are deleted");

    let request =
        AlterUserScramCredentialsRequest { deletions: vec![deletion("carol", 2)], ..Default::default() };
    assert_eq!(broker.ask(client, 0, &request).results[0].error_code, OK);
    assert_eq!(users(&mut broker, None).len(), 2);
}

/// A connection that moves to the shard of its partitions keeps its user.
#[test]
fn a_connection_that_moves_stays_logged_in() {
    let mut broker = broker(&[Mechanism::Plain], |config| config.follows_partitions = true);
    let log_in = |broker: &mut Broker, shard| {
        let client = broker.connect(shard);
        assert_eq!(handshake(broker, client, 1, PLAIN).error_code, OK);
        assert_eq!(authenticate(broker, client, b"\0alice\0secret").error_code, OK);
        client
    };
    let admin = log_in(&mut broker, 0);
    assert_eq!(broker.try_create_topic_by(admin, "topic", 1, &[]), OK);
    let places = [0, 1].map(|shard| {
        let client = log_in(&mut broker, shard);
        assert_eq!(broker.produce(client, "topic", 0, &["a value"]).error_code, OK);
        assert!(is_served(&mut broker, client));
        broker.shard_of(client)
    });
    assert_eq!(places[0], places[1], "one of the two has moved");
}
