//! A SASL exchange with a client that alters or replaces its messages, and with a user store that knows the user or
//! does not: nothing panics, only the client that knows the password and alters nothing gets in, and it always does.

#![no_main]

#[path = "../../crates/sasl/tests/kit/mod.rs"]
mod kit;

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use kit::Client;
use libfuzzer_sys::fuzz_target;
use mainstem_sasl::{Exchange, Mechanism, NONCE_BYTES, Step};
use mainstem_security::{SCRAM_ITERATIONS_MIN, ScramAlgorithm, ScramKeys};

/// Messages of one exchange that are sent. A complete one has two.
const MESSAGES_MAX: usize = 4;
const NAMES: [&str; 4] = ["alice", "a,b=c", "=2C", "Jürgen"];
const HEADERS: [&str; 4] = ["n,,", "y,,", "n,a=alice,", "p=tls-unique,,"];
const PASSWORD: &str = "secret";

#[derive(Arbitrary, Debug)]
struct Input {
    mechanism: u8,
    name: u8,
    header: u8,
    knows_password: bool,
    user_exists: bool,
    messages: Vec<Change>,
}

/// What happens to the client's next message.
#[derive(Arbitrary, Debug)]
enum Change {
    None,
    Byte { at: u16, value: u8 },
    Cut { at: u16 },
    Insert { at: u16, bytes: Vec<u8> },
    Replace(Vec<u8>),
}

impl Change {
    fn apply(&self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        match self {
            Self::None => {}
            Self::Byte { at, value } => {
                if let Some(byte) = message.get_mut(usize::from(*at)) {
                    *byte = *value;
                }
            }
            Self::Cut { at } => message.truncate(usize::from(*at)),
            Self::Insert { at, bytes } => {
                let at = usize::from(*at).min(message.len());
                message.splice(at..at, bytes.iter().copied());
            }
            Self::Replace(bytes) => message.clone_from(bytes),
        }
        message
    }
}

/// The keys of the user, which take long to derive.
fn stored(algorithm: ScramAlgorithm) -> ScramKeys {
    static KEYS: LazyLock<[ScramKeys; 2]> = LazyLock::new(|| {
        [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512].map(|algorithm| {
            let keys = ScramKeys::derive(algorithm, PASSWORD.as_bytes(), b"salt", SCRAM_ITERATIONS_MIN);
            keys.expect("the parameters are valid")
        })
    });
    KEYS[usize::from(algorithm == ScramAlgorithm::Sha512)].clone()
}

fuzz_target!(|input: Input| {
    let mechanism = Mechanism::ALL[usize::from(input.mechanism) % Mechanism::ALL.len()];
    let algorithm = mechanism.scram_algorithm().unwrap_or(ScramAlgorithm::Sha256);
    let user = NAMES[usize::from(input.name) % NAMES.len()];
    let gs2_header = HEADERS[usize::from(input.header) % HEADERS.len()];
    let password = if input.knows_password { PASSWORD } else { "guess" };
    let client = Client { algorithm, user, password, nonce: "abc", gs2_header };
    let mut next = match mechanism {
        Mechanism::Plain => format!("\0{user}\0{password}"),
        Mechanism::OauthBearer => format!("{gs2_header}\x01auth=Bearer {password}\x01\x01"),
        Mechanism::ScramSha256 | Mechanism::ScramSha512 => client.first(),
    };
    let mut is_altered = false;
    let mut exchange = Exchange::new(mechanism, [1; NONCE_BYTES]);
    let mut server_last = String::new();
    for change in input.messages.iter().take(MESSAGES_MAX) {
        let message = change.apply(next.as_bytes());
        is_altered |= message != next.as_bytes();
        let step = match exchange.receive(&message) {
            Step::FindKeys { user: found, .. } => {
                let is_known = input.user_exists && found == user;
                let shape = mainstem_security::ScramShape::default();
                let shown = shape.keys_of_unknown_user(algorithm, b"secret of the server", &found);
                exchange.keys_found(is_known.then(|| stored(algorithm)), shown)
            }
            Step::CheckPassword { user: found, password } => {
                exchange.password_checked(input.user_exists && found == user && password.expose() == PASSWORD)
            }
            Step::CheckToken { token } => {
                exchange.token_checked((input.user_exists && token.expose() == PASSWORD).then_some(user))
            }
            step => step,
        };
        match step {
            Step::Challenge(_) if mechanism == Mechanism::OauthBearer => next = "\x01".to_owned(),
            Step::Challenge(message) => {
                let server_first = String::from_utf8(message).expect("SCRAM is text");
                // An altered first message may have another nonce, which the client would refuse.
                if !server_first.starts_with("r=abcAQEB") {
                    return;
                }
                (next, server_last) = client.last(&server_first);
            }
            Step::Success { user: found, message } => {
                assert!(input.user_exists && found == user);
                // PLAIN and OAUTHBEARER may be altered into the right one, SCRAM only by one who can compute the proof.
                assert!(mechanism.scram_algorithm().is_none() || input.knows_password);
                assert!(is_altered || message == server_last.as_bytes());
                return;
            }
            Step::Failure(failure) => {
                let is_allowed = match gs2_header {
                    "n,," | "y,," => true,
                    "n,a=alice," => user == "alice",
                    _ => mechanism == Mechanism::Plain,
                };
                let should_succeed = !is_altered && input.user_exists && input.knows_password && is_allowed;
                assert!(!should_succeed, "{failure}");
                return;
            }
            step => panic!("{step:?}"),
        }
    }
});
