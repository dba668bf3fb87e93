//! The client's side of a log-in by SASL: which mechanism, and the messages of each (RFC 4616, RFC 5802).
//!
//! Without `--mechanism`, the tools take the strongest one that the broker offers. They never send a password over a
//! connection that others can read unless they are told to: whoever is in between could offer nothing but PLAIN.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use mainstem_sasl::Mechanism;
use mainstem_security::{SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN, ScramAlgorithm};

use crate::cli::KafkaArgs;
use crate::tool::failure::Failure;

/// The GS2 header: no channel binding, no other identity.
const GS2_HEADER: &str = "n,,";
/// Random bytes of a nonce.
const NONCE_BYTES: usize = 18;

/// A user and its password.
pub(super) struct Credentials {
    pub(super) user: String,
    password: String,
    /// The only mechanism to use; `None` for the strongest.
    mechanism: Option<Mechanism>,
    /// Whether a flag asks for the log-in. The environment also serves tools for brokers and listeners without users.
    pub(super) is_required: bool,
}

impl Credentials {
    /// The credentials of the flags, or of the environment; `None` if there is no user.
    ///
    /// # Errors
    /// There is a user without a password.
    pub(super) fn of(args: &KafkaArgs) -> Result<Option<Self>, Failure> {
        let or_env = |flag: &Option<String>, name: &str| flag.clone().or_else(|| std::env::var(name).ok());
        let Some(user) = or_env(&args.username, "MAINSTEM_USERNAME") else { return Ok(None) };
        let password = or_env(&args.password, "MAINSTEM_PASSWORD");
        let password = password.ok_or_else(|| {
            Failure::new(format!("user {user:?} needs a password: --password or MAINSTEM_PASSWORD"))
        })?;
        let is_required = args.username.is_some();
        Ok(Some(Self { user, password, mechanism: args.mechanism, is_required }))
    }

    /// The mechanism to try first.
    pub(super) fn first_choice(&self) -> Mechanism {
        self.mechanism.unwrap_or(Mechanism::ScramSha512)
    }

    /// The mechanism to try after the broker has said what it offers.
    ///
    /// # Errors
    /// The broker offers none that may be used.
    pub(super) fn choose(&self, offered: &[String], is_encrypted: bool) -> Result<Mechanism, Failure> {
        let is_offered = |mechanism: &Mechanism| offered.iter().any(|name| name == mechanism.name());
        let by_strength = [Mechanism::ScramSha512, Mechanism::ScramSha256, Mechanism::Plain];
        let may_use = |mechanism: &Mechanism| match self.mechanism {
            Some(only) => only == *mechanism,
            None => is_encrypted || *mechanism != Mechanism::Plain,
        };
        by_strength.into_iter().filter(may_use).find(is_offered).ok_or_else(|| {
            let offered = offered.join(", ");
            let hint = match self.mechanism {
                None if offered == Mechanism::Plain.name() => {
                    "; without TLS, --mechanism PLAIN sends the password in plain text"
                }
                _ => "",
            };
            Failure::new(format!("the broker offers other mechanisms of SASL: {offered}{hint}"))
        })
    }

    /// The message of PLAIN.
    pub(super) fn plain(&self) -> Vec<u8> {
        format!("\0{}\0{}", self.user, self.password).into_bytes()
    }

    /// Begins an exchange of SCRAM with a random nonce.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn scram(&self, algorithm: ScramAlgorithm) -> Result<Scram<'_>, Failure> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| Failure::new(format!("random numbers: {error}")))?;
        Ok(Scram::new(self, algorithm, BASE64.encode(nonce)))
    }
}

/// An exchange of SCRAM.
pub(super) struct Scram<'a> {
    password: &'a str,
    algorithm: ScramAlgorithm,
    nonce: String,
    first_bare: String,
}

/// The last message of the client, and the one that proves that the broker knows the user's keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Proof {
    pub(super) message: String,
    pub(super) expected_answer: String,
}

impl<'a> Scram<'a> {
    fn new(credentials: &'a Credentials, algorithm: ScramAlgorithm, nonce: String) -> Self {
        let name = credentials.user.replace('=', "=3D").replace(',', "=2C");
        let first_bare = format!("n={name},r={nonce}");
        Self { password: &credentials.password, algorithm, nonce, first_bare }
    }

    /// The first message.
    pub(super) fn first(&self) -> String {
        format!("{GS2_HEADER}{}", self.first_bare)
    }

    /// The last message, for the first one of the broker.
    ///
    /// # Errors
    /// The broker's message is malformed, answers another message, or asks for too few or too many iterations.
    pub(super) fn last(&self, server_first: &[u8]) -> Result<Proof, Failure> {
        let malformed = || Failure::new("the broker's message of SCRAM is malformed");
        let server_first = std::str::from_utf8(server_first).map_err(|_| malformed())?;
        let mut attributes = server_first.split(',');
        let mut next =
            |name| attributes.next().and_then(|part| part.strip_prefix(name)).ok_or_else(malformed);
        let (nonce, salt, iterations) = (next("r=")?, next("s=")?, next("i=")?);
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(Failure::new("the broker's message of SCRAM does not answer that of this client"));
        }
        let salt = BASE64.decode(salt).map_err(|_| malformed())?;
        let iterations: u32 = iterations.parse().map_err(|_| malformed())?;
        // With few iterations, whoever speaks for the broker could guess the password from the proof.
        if !(SCRAM_ITERATIONS_MIN..=SCRAM_ITERATIONS_MAX).contains(&iterations) {
            let limits = format!("{SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}");
            return Err(Failure::new(format!(
                "the broker asks for {iterations} iterations, not for {limits}"
            )));
        }
        let algorithm = self.algorithm;
        let salted = algorithm.salted_password(self.password.as_bytes(), &salt, iterations);
        let client_key = algorithm.hmac(&salted, b"Client Key");
        let without_proof = format!("c={},r={nonce}", BASE64.encode(GS2_HEADER));
        let auth_message = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = algorithm.hmac(&algorithm.hash(&client_key), auth_message.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(key, mask)| key ^ mask).collect();
        let server_key = algorithm.hmac(&salted, b"Server Key");
        let verifier = algorithm.hmac(&server_key, auth_message.as_bytes());
        Ok(Proof {
            message: format!("{without_proof},p={}", BASE64.encode(proof)),
            expected_answer: format!("v={}", BASE64.encode(verifier)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(mechanism: Option<Mechanism>) -> Credentials {
        Credentials { user: "user".into(), password: "pencil".into(), mechanism, is_required: true }
    }

    /// The example of RFC 7677.
    #[test]
    fn the_messages_are_those_of_the_rfc() {
        let credentials = credentials(None);
        let scram = Scram::new(&credentials, ScramAlgorithm::Sha256, "rOprNGfwEbeRWgbNEkqO".into());
        assert_eq!(scram.first(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let proof = scram.last(format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096").as_bytes()).unwrap();
        let expected = format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
        assert_eq!(proof.message, expected);
        assert_eq!(proof.expected_answer, "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn messages_of_somebody_else_are_refused() {
        let credentials = credentials(None);
        let scram = Scram::new(&credentials, ScramAlgorithm::Sha256, "abc".into());
        for message in [
            "r=abcd,s=c2FsdA==,i=4095",
            "r=abcd,s=c2FsdA==,i=1000001",
            "r=abc,s=c2FsdA==,i=4096",
            "r=xabcd,s=c2FsdA==,i=4096",
            "r=abcd,s=?,i=4096",
            "r=abcd,i=4096",
            "",
            "m=x,r=abcd,s=c2FsdA==,i=4096",
        ] {
            assert!(scram.last(message.as_bytes()).is_err(), "{message}");
        }
        assert!(scram.last(b"r=abcd,s=c2FsdA==,i=4096").is_ok());
    }

    #[test]
    fn the_strongest_mechanism_is_chosen_and_plain_only_over_tls() {
        let choose = |only, offered: &[&str], is_encrypted| {
            let offered: Vec<String> = offered.iter().map(|name| (*name).to_owned()).collect();
            credentials(only).choose(&offered, is_encrypted).ok()
        };
        let all = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"];
        assert_eq!(choose(None, &all, false), Some(Mechanism::ScramSha512));
        assert_eq!(choose(None, &all[..2], true), Some(Mechanism::ScramSha256));
        assert_eq!(choose(None, &all[..1], true), Some(Mechanism::Plain));
        assert_eq!(choose(None, &all[..1], false), None);
        assert_eq!(choose(Some(Mechanism::Plain), &all, false), Some(Mechanism::Plain));
        assert_eq!(choose(Some(Mechanism::ScramSha512), &all[..2], true), None);
    }
}
