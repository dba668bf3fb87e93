//! Exchanges with a client written from the RFCs, the example of RFC 7677, and messages that an attacker alters.

mod kit;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use kit::Client;
use mainstem_sasl::{Exchange, Failure, Mechanism, NONCE_BYTES, Step, TOKEN_BYTES_MAX};
use mainstem_security::{SCRAM_ITERATIONS, SCRAM_ITERATIONS_MIN, ScramAlgorithm, ScramKeys, ScramShape};
use proptest::prelude::*;

const SECRET: &[u8] = &[9; 32];
const NONCE: [u8; NONCE_BYTES] = [5; NONCE_BYTES];
const SCRAM: [Mechanism; 2] = [Mechanism::ScramSha256, Mechanism::ScramSha512];

fn client<'a>(mechanism: Mechanism, user: &'a str, password: &'a str) -> Client<'a> {
    Client {
        algorithm: mechanism.scram_algorithm().unwrap(),
        user,
        password,
        nonce: "fyko+d2lbbFgONRv",
        gs2_header: "n,,",
    }
}

fn keys(algorithm: ScramAlgorithm, password: &str, salt: &[u8], iterations: u32) -> ScramKeys {
    ScramKeys::derive(algorithm, password.as_bytes(), salt, iterations).unwrap()
}

/// The keys that a client sees of an unknown user.
fn shown(algorithm: ScramAlgorithm, user: &str) -> ScramKeys {
    ScramShape::default().keys_of_unknown_user(algorithm, SECRET, user)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Runs an exchange up to the server's first message.
fn challenge(exchange: &mut Exchange, first: &str, stored: Option<ScramKeys>) -> String {
    let Step::FindKeys { user, algorithm } = exchange.receive(first.as_bytes()) else { panic!("{first}") };
    match exchange.keys_found(stored, shown(algorithm, &user)) {
        Step::Challenge(message) => text(message),
        step => panic!("{step:?}"),
    }
}

/// The messages of RFC 7677, section 3. Its server nonce is text, so the exchange is recomputed with ours.
#[test]
fn the_example_of_rfc_7677() {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let stored = keys(ScramAlgorithm::Sha256, "pencil", &salt, 4096);
    let auth_message = "n=user,r=rOprNGfwEbeRWgbNEkqO,\
        r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
        c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let signature = ScramAlgorithm::Sha256.hmac(stored.server_key(), auth_message.as_bytes());
    assert_eq!(BASE64.encode(signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");

    let signature = ScramAlgorithm::Sha256.hmac(stored.stored_key(), auth_message.as_bytes());
    let proof = BASE64.decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").unwrap();
    let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(proof, bit)| proof ^ bit).collect();
    assert_eq!(ScramAlgorithm::Sha256.hash(&client_key), stored.stored_key());

    let client = Client { nonce: "rOprNGfwEbeRWgbNEkqO", ..client(Mechanism::ScramSha256, "user", "pencil") };
    let server_first =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    assert_eq!(client.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
    let (last, server_last) = client.last(server_first);
    assert_eq!(
        last,
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
        p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    );
    assert_eq!(server_last, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}

#[test]
fn a_right_password_succeeds_and_the_server_proves_itself() {
    for mechanism in SCRAM {
        for (user, gs2_header) in
            [("alice", "n,,"), ("alice", "y,,"), ("a,b=c", "n,a=a=2Cb=3Dc,"), ("Jürgen", "n,,")]
        {
            let client = Client { gs2_header, ..client(mechanism, user, "Straße, 5=6") };
            let stored = keys(client.algorithm, "Straße, 5=6", b"0123456789abcdef", 8_192);
            let mut exchange = Exchange::new(mechanism, NONCE);
            let server_first = challenge(&mut exchange, &client.first(), Some(stored));
            assert!(server_first.ends_with(",s=MDEyMzQ1Njc4OWFiY2RlZg==,i=8192"), "{server_first}");
            let (last, server_last) = client.last(&server_first);
            let success = Step::Success { user: user.into(), message: server_last.into_bytes() };
            assert_eq!(exchange.receive(last.as_bytes()), success);
            assert_eq!(exchange.receive(last.as_bytes()), Step::Failure(Failure::Unexpected));
        }
    }
}

/// What a client sees of a user that does not exist has the form of what it sees with a wrong password.
#[test]
fn an_unknown_user_looks_like_a_wrong_password() {
    for mechanism in SCRAM {
        let client = client(mechanism, "alice", "wrong");
        let known = keys(client.algorithm, "right", b"0123456789abcdef", SCRAM_ITERATIONS);
        // Keys of another mechanism are as good as none.
        let other = keys(other_algorithm(client.algorithm), "wrong", b"0123456789abcdef", SCRAM_ITERATIONS);
        let forms = [Some(known), Some(other), None].map(|stored| {
            let mut exchange = Exchange::new(mechanism, NONCE);
            let server_first = challenge(&mut exchange, &client.first(), stored.clone());
            let mut again = Exchange::new(mechanism, [6; NONCE_BYTES]);
            let second = challenge(&mut again, &client.first(), stored);
            let salt = |message: &str| message.split(',').nth(1).unwrap().to_owned();
            assert_eq!(salt(&server_first), salt(&second), "the salt stays the same");
            assert_ne!(server_first, second, "the nonce does not");
            let (last, _) = client.last(&server_first);
            assert_eq!(exchange.receive(last.as_bytes()), Step::Failure(Failure::Credentials));
            (server_first.len(), server_first.rsplit_once(",i=").unwrap().1.to_owned())
        });
        assert_eq!(forms[0], forms[1]);
        assert_eq!(forms[1], forms[2]);
    }
}

fn other_algorithm(algorithm: ScramAlgorithm) -> ScramAlgorithm {
    if algorithm == ScramAlgorithm::Sha256 { ScramAlgorithm::Sha512 } else { ScramAlgorithm::Sha256 }
}

#[test]
fn altered_messages_fail() {
    let client = client(Mechanism::ScramSha256, "alice", "secret");
    let stored = keys(client.algorithm, "secret", b"0123456789abcdef", SCRAM_ITERATIONS_MIN);
    let last_message = |change: &dyn Fn(String) -> String| {
        let mut exchange = Exchange::new(Mechanism::ScramSha256, NONCE);
        let server_first = challenge(&mut exchange, &client.first(), Some(stored.clone()));
        let (last, _) = client.last(&server_first);
        exchange.receive(change(last).as_bytes())
    };
    let failed = |failure| Step::Failure(failure);
    assert!(matches!(last_message(&|last| last), Step::Success { .. }));
    // Somebody removed the offer of channel binding: the client's first message said `y`, ours was changed to `n`.
    assert_eq!(last_message(&|last| last.replace("c=biws", "c=eSws")), failed(Failure::ChannelBinding));
    assert_eq!(last_message(&|last| last.replace("r=f", "r=g")), failed(Failure::Credentials));
    assert_eq!(last_message(&|last| last.replace(",p=", ",x=1,p=")), failed(Failure::Credentials));
    let short = |last: String| format!("{},p=AAAA", last.rsplit_once(",p=").unwrap().0);
    assert_eq!(last_message(&short), failed(Failure::Credentials));
    let empty = |last: String| format!("{},p=", last.rsplit_once(",p=").unwrap().0);
    assert_eq!(last_message(&empty), failed(Failure::Credentials));
}

#[test]
fn plain_asks_for_a_check_of_the_password() {
    for is_right in [true, false] {
        let mut exchange = Exchange::new(Mechanism::Plain, NONCE);
        let check = Step::CheckPassword { user: "tim".into(), password: "tanstaaftanstaaf".into() };
        assert_eq!(exchange.receive(b"\0tim\0tanstaaftanstaaf"), check);
        let outcome = if is_right {
            Step::Success { user: "tim".into(), message: Vec::new() }
        } else {
            Step::Failure(Failure::Credentials)
        };
        assert_eq!(exchange.password_checked(is_right), outcome);
        assert_eq!(exchange.password_checked(true), Step::Failure(Failure::Unexpected), "it has ended");
    }
}

#[test]
fn a_message_is_bounded_and_comes_only_when_it_is_expected() {
    for mechanism in Mechanism::ALL {
        assert_eq!(Mechanism::from_name(mechanism.name()), Some(mechanism));
        let mut exchange = Exchange::new(mechanism, NONCE);
        let long = vec![b'x'; TOKEN_BYTES_MAX + 1];
        let too_long = Step::Failure(Failure::Malformed("the message is too long"));
        assert_eq!(exchange.receive(&long), too_long);

        let first = match mechanism {
            Mechanism::Plain => "\0alice\0secret",
            Mechanism::OauthBearer => "n,,\x01auth=Bearer secret\x01\x01",
            Mechanism::ScramSha256 | Mechanism::ScramSha512 => "n,,n=alice,r=abc",
        };
        let mut exchange = Exchange::new(mechanism, NONCE);
        exchange.receive(first.as_bytes());
        let unexpected = Step::Failure(Failure::Unexpected);
        assert_eq!(exchange.receive(first.as_bytes()), unexpected, "the lookup has not been answered");
        let mut exchange = Exchange::new(mechanism, NONCE);
        exchange.receive(first.as_bytes());
        match mechanism {
            Mechanism::Plain => {
                assert_eq!(exchange.keys_found(None, shown(ScramAlgorithm::Sha256, "alice")), unexpected);
            }
            _ => assert_eq!(exchange.password_checked(true), unexpected),
        }
    }
    assert_eq!(Mechanism::from_name("plain"), None);
    assert_eq!(Mechanism::from_name("SCRAM-SHA-256-PLUS"), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whoever does not know the password gets in by no sequence of messages, and nothing panics.
    #[test]
    fn no_log_in_without_the_password(
        mechanism in 0..Mechanism::ALL.len(),
        tokens in proptest::collection::vec(token(), 0..4),
    ) {
        let mechanism = Mechanism::ALL[mechanism];
        let algorithm = mechanism.scram_algorithm().unwrap_or(ScramAlgorithm::Sha256);
        let alice = keys(algorithm, "secret", b"salt", SCRAM_ITERATIONS_MIN);
        let mut exchange = Exchange::new(mechanism, NONCE);
        for token in tokens {
            let step = match exchange.receive(&token) {
                Step::FindKeys { .. } => exchange.keys_found(Some(alice.clone()), alice.clone()),
                Step::CheckPassword { password, .. } => exchange.password_checked(password.expose() == "secret"),
                Step::CheckToken { token } => {
                    exchange.token_checked((token.expose() == "secret").then_some("alice"))
                }
                step => step,
            };
            let is_in = matches!(step, Step::Success { .. });
            prop_assert!(!is_in);
        }
    }

    #[test]
    fn names_and_passwords_are_taken_as_they_are(
        user in "[^\0]{1,20}",
        password in "[^\0]{1,20}",
        sha512: bool,
    ) {
        let mechanism = SCRAM[usize::from(sha512)];
        let client = client(mechanism, &user, &password);
        let stored = keys(client.algorithm, &password, b"salt", SCRAM_ITERATIONS_MIN);
        let mut exchange = Exchange::new(mechanism, NONCE);
        let server_first = challenge(&mut exchange, &client.first(), Some(stored));
        let (last, server_last) = client.last(&server_first);
        let success = Step::Success { user: user.clone(), message: server_last.into_bytes() };
        prop_assert_eq!(exchange.receive(last.as_bytes()), success);

        let mut exchange = Exchange::new(Mechanism::Plain, NONCE);
        let check = Step::CheckPassword { user: user.clone(), password: password.as_str().into() };
        prop_assert_eq!(exchange.receive(format!("\0{user}\0{password}").as_bytes()), check);
    }
}

/// Messages that are nearly right, and others.
fn token() -> impl Strategy<Value = Vec<u8>> {
    let nearly = "(n|y|p=x)?,(a=alice)?,n=alice,r=[a-z]{1,4}(,x=1)?";
    let last = "c=(biws|eSws),r=[a-z]{1,4}BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUF,p=[A-Za-z0-9]{43}=";
    prop_oneof![
        nearly.prop_map(String::into_bytes),
        last.prop_map(String::into_bytes),
        "\0alice\0[a-d]{0,6}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..64),
    ]
}
