//! Random values for every protocol type, for tests.
//!
//! The declarations of the messages also derive their random values, so the tests cover a new API without further code.

use crate::message::Request;
use crate::uuid::Uuid;
use crate::wire::Form;

/// Pseudorandom numbers (SplitMix64): the same seed gives the same messages.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, end: usize) -> bool {
        self.below(end) == 0
    }

    /// Mostly short; occasionally so long that the length takes two bytes.
    fn len(&mut self) -> usize {
        if self.one_in(20) { self.below(300) } else { self.below(10) }
    }
}

/// A type with random values. Fields that the version does not have keep their defaults.
pub(crate) trait Sample {
    fn sample(random: &mut Random, form: Form) -> Self;
}

/// Visits every API with message types that have random values.
pub(crate) trait SampleVisitor {
    fn visit<R: Request<Response: Sample> + Sample>(&mut self);
}

macro_rules! numbers {
    ($($number:ident)*) => {
        $(impl Sample for $number {
            fn sample(random: &mut Random, _: Form) -> Self {
                match random.below(8) {
                    0 => 0,
                    1 => Self::MIN,
                    2 => Self::MAX,
                    3 => (0 as Self).wrapping_sub(1),
                    _ => {
                        let bytes = random.next().to_le_bytes();
                        Self::from_le_bytes(*bytes.first_chunk().expect("no number is larger"))
                    }
                }
            }
        })*
    };
}

numbers!(i8 i16 u16 i32 i64);

impl Sample for f64 {
    fn sample(random: &mut Random, _: Form) -> Self {
        Self::from(random.next() as u32) / 16.0
    }
}

impl Sample for bool {
    fn sample(random: &mut Random, _: Form) -> Self {
        random.one_in(2)
    }
}

impl Sample for Uuid {
    fn sample(random: &mut Random, _: Form) -> Self {
        if random.one_in(4) {
            return Self::ZERO;
        }
        Self((u128::from(random.next()) << 64 | u128::from(random.next())).to_be_bytes())
    }
}

impl Sample for String {
    fn sample(random: &mut Random, _: Form) -> Self {
        let letters = ['a', 'Z', '.', '-', '7', 'é', '漢', '🦀'];
        (0..random.len()).map(|_| letters[random.below(letters.len())]).collect()
    }
}

impl Sample for Vec<u8> {
    fn sample(random: &mut Random, _: Form) -> Self {
        (0..random.len()).map(|_| random.next() as u8).collect()
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(random: &mut Random, form: Form) -> Self {
        (0..random.below(4)).map(|_| T::sample(random, form)).collect()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(random: &mut Random, form: Form) -> Self {
        let null = form.nullable && random.one_in(4);
        if null { None } else { Some(T::sample(random, form)) }
    }
}
