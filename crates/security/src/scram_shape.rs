//! What a client sees of stored SCRAM keys before it has proven anything, so that unknown users look like others.
//!
//! The first message of a server names the salt and the number of iterations. The broker's own keys have one form,
//! those that clients of Kafka have set have others: their number of iterations, and a salt that is a number in base
//! 36. So an unknown user gets the form of a user that a keyed hash of the name picks: each form is as frequent among
//! unknown users as among users, and a name keeps its form as long as the users' keys stay the same.

use std::collections::BTreeMap;

use crate::password::SALT_BYTES;
use crate::scram::{SCRAM_ITERATIONS, ScramAlgorithm, ScramKeys};
use crate::user::User;

/// Bits of the number that is the salt of Kafka's clients.
const KAFKA_SALT_BITS: usize = 130;
/// Lengths of such a number in base 36; shorter ones are too rare to matter.
const KAFKA_SALT_CHARS: std::ops::RangeInclusive<usize> = 24..=26;

/// The form of a salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SaltForm {
    /// Random bytes, so many.
    Bytes(usize),
    /// Printable characters, so many.
    Printable(usize),
    /// A random number in base 36.
    Kafka,
}

/// The form of stored keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScramShape {
    iterations: u32,
    salt: SaltForm,
}

/// The form of keys that the broker derives from a password.
impl Default for ScramShape {
    fn default() -> Self {
        Self { iterations: SCRAM_ITERATIONS, salt: SaltForm::Bytes(SALT_BYTES) }
    }
}

impl ScramShape {
    fn of(keys: &ScramKeys) -> Self {
        let salt = keys.salt();
        let is_base36 = salt.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
        let salt = if is_base36 && KAFKA_SALT_CHARS.contains(&salt.len()) {
            SaltForm::Kafka
        } else if salt.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            SaltForm::Printable(salt.len())
        } else {
            SaltForm::Bytes(salt.len())
        };
        Self { iterations: keys.iterations(), salt }
    }

    /// Keys of this form that no client can match, for an exchange with an unknown user: the salt depends on `secret`
    /// and the name only, so that it does not differ between attempts.
    ///
    /// # Panics
    /// Never: the parameters are those of keys.
    pub fn keys_of_unknown_user(self, algorithm: ScramAlgorithm, secret: &[u8], name: &str) -> ScramKeys {
        let seed = algorithm.hmac(secret, name.as_bytes());
        let key = algorithm.hmac(secret, &seed);
        let salt = self.salt(algorithm, &seed);
        let server_key = algorithm.hash(&key);
        let keys = ScramKeys::from_keys(algorithm, &salt, self.iterations, key, server_key);
        keys.expect("the parameters are those of keys")
    }

    /// A salt of this form that depends on `seed` only.
    fn salt(self, algorithm: ScramAlgorithm, seed: &[u8]) -> Vec<u8> {
        match self.salt {
            SaltForm::Bytes(length) => expanded(algorithm, seed, length),
            SaltForm::Printable(length) => {
                // The bias of the remainder is too small to be seen in the few salts of a name.
                let printable = |byte: u8| b' ' + byte % (b'~' - b' ' + 1);
                expanded(algorithm, seed, length).into_iter().map(printable).collect()
            }
            SaltForm::Kafka => base36(expanded(algorithm, seed, KAFKA_SALT_BITS.div_ceil(8))),
        }
    }
}

/// So many bytes that depend on `seed` only.
fn expanded(algorithm: ScramAlgorithm, seed: &[u8], length: usize) -> Vec<u8> {
    let blocks = (0..length.div_ceil(algorithm.key_bytes()) as u32)
        .flat_map(|block| algorithm.hmac(seed, &block.to_be_bytes()));
    blocks.take(length).collect()
}

/// The number of `KAFKA_SALT_BITS` in these bytes, in base 36.
fn base36(mut number: Vec<u8>) -> Vec<u8> {
    number[0] &= 0xff >> (number.len() * 8 - KAFKA_SALT_BITS);
    let mut digits = Vec::new();
    while number.iter().any(|byte| *byte != 0) {
        let mut rest = 0;
        for byte in &mut number {
            let value = rest << 8 | u32::from(*byte);
            (*byte, rest) = ((value / 36) as u8, value % 36);
        }
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[rest as usize]);
    }
    digits.reverse();
    digits
}

/// How many users have keys of each form.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScramShapes {
    sha_256: BTreeMap<ScramShape, u64>,
    sha_512: BTreeMap<ScramShape, u64>,
}

impl ScramShapes {
    fn of(&mut self, algorithm: ScramAlgorithm) -> &mut BTreeMap<ScramShape, u64> {
        match algorithm {
            ScramAlgorithm::Sha256 => &mut self.sha_256,
            ScramAlgorithm::Sha512 => &mut self.sha_512,
        }
    }

    pub(crate) fn add(&mut self, user: &User) {
        for algorithm in [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512] {
            if let Some(keys) = user.scram(algorithm) {
                *self.of(algorithm).entry(ScramShape::of(keys)).or_default() += 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, user: &User) {
        for algorithm in [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512] {
            let Some(keys) = user.scram(algorithm) else { continue };
            let (counts, shape) = (self.of(algorithm), ScramShape::of(keys));
            if let Some(count) = counts.get_mut(&shape) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&shape);
                }
            }
        }
    }

    /// The form of an unknown user's keys. `hash` picks it.
    pub(crate) fn pick(&self, algorithm: ScramAlgorithm, hash: u64) -> ScramShape {
        let counts = match algorithm {
            ScramAlgorithm::Sha256 => &self.sha_256,
            ScramAlgorithm::Sha512 => &self.sha_512,
        };
        let total: u64 = counts.values().sum();
        // A share of the range of hashes for each: when the counts change, few names change their form.
        let mut at = ((u128::from(hash) * u128::from(total)) >> 64) as u64;
        for (shape, count) in counts {
            match at.checked_sub(*count) {
                None => return *shape,
                Some(left) => at = left,
            }
        }
        ScramShape::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(salt: &[u8], iterations: u32) -> ScramKeys {
        ScramKeys::from_salted_password(ScramAlgorithm::Sha256, &[7; 32], salt, iterations).unwrap()
    }

    fn user(name: &str, salt: &[u8], iterations: u32) -> User {
        let mut user = User::new(name).unwrap();
        user.set_scram(ScramAlgorithm::Sha256, Some(keys(salt, iterations)));
        user
    }

    /// Printed by `new BigInteger(130, random).toString(36)`.
    const OF_KAFKA: [&[u8]; 3] =
        [b"1k3f8vqzlm0dpr72ynx5ts9cha", b"w1p0zk4mh8q6y2xv9tb3c7rjn", b"k0zm4x8q6y2w9tb3c7rjn1vh5"];

    #[test]
    fn a_salt_has_the_form_that_it_imitates() {
        for (salt, iterations) in
            [(OF_KAFKA[0], 8192), (b"salt of the user".as_slice(), 4096), ([0xf0; 16].as_slice(), 16_384)]
        {
            let shape = ScramShape::of(&keys(salt, iterations));
            for seed in 0_u32..200 {
                let made = shape.salt(ScramAlgorithm::Sha256, &seed.to_be_bytes());
                let imitation = ScramShape::of(&keys(&made, iterations));
                assert_eq!(imitation, shape, "{made:?}");
                assert_eq!(made, shape.salt(ScramAlgorithm::Sha256, &seed.to_be_bytes()));
                // 130 bits: with 26 digits, the first one is 1.
                let is_long = shape.salt == SaltForm::Kafka && made.len() == 26;
                assert!(!is_long || made[0] == b'1', "{made:?}");
            }
        }
    }

    #[test]
    fn the_keys_of_an_unknown_user_stay_the_same() {
        for algorithm in [ScramAlgorithm::Sha256, ScramAlgorithm::Sha512] {
            let unknown = |name| ScramShape::default().keys_of_unknown_user(algorithm, b"key", name);
            assert_eq!(unknown("mallory"), unknown("mallory"));
            assert_ne!(unknown("mallory").salt(), unknown("trudy").salt());
            assert_eq!(unknown("mallory").salt().len(), SALT_BYTES);
            assert!(!unknown("mallory").verify_password(b"key"));
        }
    }

    #[test]
    fn the_number_is_written_in_base_36() {
        let mut number = vec![0; 17];
        number[16] = 36;
        assert_eq!(base36(number), b"10");
        // 2^130 - 1.
        assert_eq!(base36(vec![0xff; 17]), b"1omfro7zwmumr3umxudzyj6scf");
    }

    #[test]
    fn forms_are_as_frequent_among_unknown_users_as_among_users() {
        let mut shapes = ScramShapes::default();
        assert_eq!(shapes.pick(ScramAlgorithm::Sha256, u64::MAX), ScramShape::default());
        let ours: Vec<User> = (0..3).map(|n| user(&format!("a{n}"), &[0xf0; 16], SCRAM_ITERATIONS)).collect();
        let kafkas = user("k", OF_KAFKA[1], 8192);
        for user in ours.iter().chain([&kafkas]) {
            shapes.add(user);
        }
        let share = |shapes: &ScramShapes| {
            let hashes = (0..1000_u64).map(|n| n * (u64::MAX / 1000));
            hashes.filter(|hash| shapes.pick(ScramAlgorithm::Sha256, *hash).iterations == 8192).count()
        };
        assert!((240..=260).contains(&share(&shapes)), "{}", share(&shapes));
        assert_eq!(shapes.pick(ScramAlgorithm::Sha512, 5), ScramShape::default());
        for user in &ours {
            shapes.remove(user);
        }
        assert_eq!(share(&shapes), 1000);
        shapes.remove(&kafkas);
        assert_eq!(shapes.pick(ScramAlgorithm::Sha256, 5), ScramShape::default());
    }
}
