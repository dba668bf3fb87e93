//! A directory that answers what it should not. Real ones are in `tests/security/test_ldap.py`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use mainstem_security::Certified;

use super::ber::{ENUMERATED, OCTET_STRING, SEQUENCE, constructed, element, integer};
use super::*;

const BOUND: u8 = 0x61;
const FOUND: u8 = 0x64;
const DONE: u8 = 0x65;

fn settings(url: String) -> LdapSettings {
    LdapSettings {
        url,
        start_tls: false,
        ca_file: None,
        timeout: Duration::from_secs(20),
        limits: ServiceLimits {
            threads: 1,
            keep: Duration::ZERO,
            failures_max: 100,
            pause: Duration::from_secs(1),
        },
        account: None,
        user: UserEntry::Name("uid=${user},o=x".into()),
        user_attribute: None,
        groups: None,
    }
}

fn with_search(url: String) -> LdapSettings {
    let filter = "(uid=${user})".into();
    let user = UserEntry::Search { base: "o=x".into(), scope: Scope::Subtree, filter };
    LdapSettings { user, user_attribute: Some("uid".into()), ..settings(url) }
}

fn with_groups(url: String) -> LdapSettings {
    let groups = GroupSettings {
        base: "o=x".into(),
        scope: Scope::OneLevel,
        filter: "(member=${dn})".into(),
        attribute: "cn".into(),
    };
    LdapSettings { groups: Some(groups), ..settings(url) }
}

/// The next request of a client; `None` once it has closed.
fn request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    client.read_exact(&mut head).ok()?;
    assert!(head[1] < 0x80, "requests of these tests are short");
    let mut content = vec![0; head[1].into()];
    client.read_exact(&mut content).ok()?;
    Some(content)
}

/// A directory for one connection, which sends one answer for each request and then waits for the end. Returns its
/// URL, and later the tags of the requests.
fn directory(answers: Vec<Vec<u8>>) -> (String, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ldap://{}", listener.local_addr().unwrap());
    let serve = move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut answers, mut seen) = (answers.into_iter(), Vec::new());
        while let Some(request) = request(&mut client) {
            seen.push(request[3]);
            if let Some(answer) = answers.next() {
                client.write_all(&answer).unwrap();
            }
        }
        seen
    };
    (url, std::thread::spawn(serve))
}

fn result(id: u32, tag: u8, code: u32) -> Vec<u8> {
    let parts = [integer(ENUMERATED, code), element(OCTET_STRING, b""), element(OCTET_STRING, b"why")];
    constructed(SEQUENCE, &[integer(2, id), constructed(tag, &parts)])
}

fn entry(id: u32, dn: &str, attribute: &str, values: &[&[u8]]) -> Vec<u8> {
    let values: Vec<_> = values.iter().map(|value| element(OCTET_STRING, value)).collect();
    let attribute = [element(OCTET_STRING, attribute.as_bytes()), constructed(0x31, &values)];
    let attributes = constructed(SEQUENCE, &[constructed(SEQUENCE, &attribute)]);
    let found = constructed(FOUND, &[element(OCTET_STRING, dn.as_bytes()), attributes]);
    constructed(SEQUENCE, &[integer(2, id), found])
}

fn log_in(user: &str, password: &[u8]) -> LogIn {
    LogIn {
        user: user.into(),
        password: password.into(),
        certified: Certified::default(),
        address: None,
        protocol: "mqtt",
        client_id: None,
    }
}

fn ask(settings: LdapSettings, user: &str, password: &[u8]) -> Answer {
    Ldap::open(settings).unwrap().ask(&log_in(user, password))
}

fn allowed(roles: &[&str]) -> Answer {
    let roles = roles.iter().map(|role| (*role).into()).collect();
    Answer::Allowed(Arc::new(Proof { is_external: true, roles, ..Proof::default() }))
}

#[test]
fn results_of_a_bind() {
    for (code, expected) in [
        (0, allowed(&[])),
        (49, Answer::Denied),
        (32, Answer::Denied),
        (53, Answer::Denied),
        (19, Answer::Denied),
        (51, Answer::Unavailable),
        (10, Answer::Unavailable),
        (13, Answer::Unavailable),
        // saslBindInProgress: nothing has been proven.
        (14, Answer::Unavailable),
    ] {
        let (url, server) = directory(vec![result(1, BOUND, code)]);
        assert_eq!(ask(settings(url), "alice", b"secret"), expected, "{code}");
        assert_eq!(server.join().unwrap(), [0x60, 0x42], "a bind and an unbind");
    }
}

/// A directory that cannot decide about one user is asked about others, and one that fails is not.
#[test]
fn what_one_user_brings_about_keeps_nobody_else_out() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ldap://{}", listener.local_addr().unwrap());
    let limits =
        ServiceLimits { failures_max: 1, pause: Duration::from_hours(1), ..settings(url.clone()).limits };
    let ldap = Ldap::open(LdapSettings { limits, ..settings(url) }).unwrap();
    let accepting = listener.try_clone().unwrap();
    let serve = move || {
        for code in [10, 14, 19, 0, 52] {
            let (mut client, _) = accepting.accept().unwrap();
            request(&mut client).unwrap();
            client.write_all(&result(1, BOUND, code)).unwrap();
        }
    };
    let server = std::thread::spawn(serve);
    let answer = || ldap.ask(&log_in("alice", b"secret"));
    let answers: Vec<_> = (0..5).map(|_| answer()).collect();
    let (yes, no, unknown) = (allowed(&[]), Answer::Denied, Answer::Unavailable);
    assert_eq!(answers, [unknown.clone(), unknown.clone(), no, yes, unknown.clone()]);
    server.join().unwrap();
    assert_eq!(answer(), unknown);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "it is not asked");
}

#[test]
fn what_binds_as_nobody_is_refused_unasked() {
    // There is no directory at this port: an attempt to reach it would be answered differently.
    for (user, password) in [("alice", &b""[..]), ("", b"secret"), ("a\nb", b"secret"), ("a", &[b'x'; 4097])]
    {
        assert_eq!(ask(settings("ldap://127.0.0.1:1".into()), user, password), Answer::Denied, "{user:?}");
    }
    assert_eq!(ask(settings("ldap://127.0.0.1:1".into()), "alice", b"secret"), Answer::Unavailable);
}

#[test]
fn an_entry_must_have_exactly_the_name_of_the_user() {
    let one = |dn: &str, name: &[u8]| vec![[entry(1, dn, "uid", &[name]), result(1, DONE, 0)].concat()];
    for (answers, expected) in [
        (one("uid=alice,o=x", b"alice"), allowed(&[])),
        (one("uid=alice,o=x", b"Alice"), Answer::Denied),
        (one("uid=alice,o=x", b"alice "), Answer::Denied),
        (one("", b"alice"), Answer::Denied),
        (vec![result(1, DONE, 0)], Answer::Denied),
        (vec![result(1, DONE, 32)], Answer::Unavailable),
    ] {
        let is_denied = expected == Answer::Denied;
        let answers = [answers, vec![result(2, BOUND, 0)]].concat();
        let (url, server) = directory(answers);
        assert_eq!(ask(with_search(url), "alice", b"secret"), expected);
        let has_bound = server.join().unwrap().contains(&0x60);
        assert!(!is_denied || !has_bound, "nobody else's entry is tried");
    }
    let two =
        [entry(1, "a", "uid", &[b"alice"]), entry(1, "b", "uid", &[b"alice"]), result(1, DONE, 0)].concat();
    let (url, _server) = directory(vec![two, result(2, BOUND, 0)]);
    assert_eq!(ask(with_search(url), "alice", b"secret"), Answer::Unavailable, "it could be either");
}

#[test]
fn all_groups_are_roles_or_nobody_logs_in() {
    let names: Vec<String> = (0..=MAX_ROLES).map(|number| format!("group-{number}")).collect();
    let all = |names: &[String]| {
        let mut answer: Vec<u8> =
            names.iter().flat_map(|name| entry(2, "g", "cn", &[name.as_bytes()])).collect();
        answer.extend(result(2, DONE, 0));
        answer
    };
    let most: Vec<&str> = names[..MAX_ROLES].iter().map(String::as_str).collect();
    for (answer, expected) in [
        (result(2, DONE, 0), allowed(&[])),
        (all(&names[..2]), allowed(&["group-0", "group-1"])),
        (all(&names[..MAX_ROLES]), allowed(&most)),
        (all(&names), Answer::Unavailable),
        ([entry(2, "g", "cn", &[b"a"]), result(2, DONE, 4)].concat(), Answer::Unavailable),
        ([entry(2, "g", "cn", &[b"a\0"]), result(2, DONE, 0)].concat(), Answer::Unavailable),
        ([entry(2, "g", "cn", &[b"\xFF"]), result(2, DONE, 0)].concat(), Answer::Unavailable),
        (result(2, DONE, 50), Answer::Unavailable),
        (result(2, DONE, 32), Answer::Unavailable),
    ] {
        let (url, _server) = directory(vec![result(1, BOUND, 0), answer]);
        assert_eq!(ask(with_groups(url), "alice", b"secret"), expected);
    }
}

#[test]
fn what_is_no_answer_lets_nobody_in() {
    // A parser that follows it goes down 15,000 levels.
    let nested = b"\x30\x82\xFF\xFF".repeat(15_000);
    for (what, answer) in [
        ("another protocol", b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
        (
            "an indefinite length",
            b"\x30\x80\x02\x01\x01\x61\x07\x0A\x01\x00\x04\x00\x04\x00\x00\x00".to_vec(),
        ),
        ("two GiB", b"\x30\x84\x7F\xFF\xFF\xFF".to_vec()),
        ("an empty message", b"\x30\x00".to_vec()),
        ("an answer to another request", result(2, BOUND, 0)),
        ("an answer to a search", result(1, DONE, 0)),
        ("a notice of disconnection", result(0, 0x78, 0)),
        ("a negative result", b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\xFF\x04\x00\x04\x00".to_vec()),
        ("endless nesting", element(SEQUENCE, &nested)),
    ] {
        let (url, _server) = directory(vec![answer]);
        assert_eq!(ask(settings(url), "alice", b"secret"), Answer::Unavailable, "{what}");
    }
}

#[test]
fn a_directory_that_sends_a_byte_at_a_time_gets_no_more_time() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("ldap://{}", listener.local_addr().unwrap());
    let serve = move || {
        let (mut client, _) = listener.accept().unwrap();
        // The client closes at its deadline: until then, there is always a byte to read.
        client.write_all(b"\x30\x83\x0F\x00\x00").unwrap();
        while client.write_all(b"\x02").is_ok() {
            std::thread::yield_now();
        }
    };
    let server = std::thread::spawn(serve);
    let began = Instant::now();
    let slow = LdapSettings { timeout: Duration::from_millis(100), ..settings(url) };
    assert_eq!(ask(slow, "alice", b"secret"), Answer::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(20));
    server.join().unwrap();
}

#[test]
fn settings_that_would_let_in_everybody_are_refused() {
    let url = || "ldap://localhost".to_owned();
    let name = |text: &str| LdapSettings { user: UserEntry::Name(text.into()), ..settings(url()) };
    let filter = |text: &str| {
        let user = UserEntry::Search { base: "o=x".into(), scope: Scope::Base, filter: text.into() };
        LdapSettings { user, ..settings(url()) }
    };
    let group = |text: &str| {
        let groups = with_groups(url()).groups.map(|groups| GroupSettings { filter: text.into(), ..groups });
        LdapSettings { groups, ..settings(url()) }
    };
    let account = LdapSettings { account: Some(("cn=broker".into(), Vec::new())), ..settings(url()) };
    let attribute = LdapSettings { user_attribute: Some("a b".into()), ..settings(url()) };
    for (settings, key) in [
        (name("uid=admin,o=x"), "ldap.user_dn"),
        (name("uid=${user},${dn}"), "ldap.user_dn"),
        (filter("(uid=admin)"), "ldap.user_filter"),
        (filter("(uid=${dn})"), "ldap.user_filter"),
        (filter("(uid=${user}"), "ldap.user_filter"),
        (group("(cn=*)"), "ldap.group_filter"),
        (account, "ldap.bind_password_file"),
        (attribute, "ldap.user_attribute"),
        (settings("ldap://ldap.example.com".into()), "ldap.url"),
    ] {
        let error = Ldap::open(settings).unwrap_err();
        assert!(error.starts_with(key), "{error}");
    }
}
