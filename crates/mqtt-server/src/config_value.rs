//! Values of configuration keys: numbers with or without a unit, and error messages for people.
//!
//! The unit of a number is part of its key, as in `max_queued_bytes` or `connect_timeout_ms`. Such a key takes a plain
//! number in that unit, or text with a unit of its own: `"16MiB"`, `"30s"`. A value that the unit of the key cannot
//! express exactly is refused, not rounded.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Unexpected, Visitor};

/// What the number of a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    /// Time, in units of so many nanoseconds.
    Time(i128),
}

const MICROSECOND: i128 = 1_000;
const MILLISECOND: i128 = 1_000_000;
const SECOND: i128 = 1_000_000_000;

/// Units of size, in bytes.
const SIZES: [(&str, i128); 9] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Units of time, in nanoseconds.
const TIMES: [(&str, i128); 7] = [
    ("us", MICROSECOND),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("min", 60 * SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];

impl Unit {
    fn of(key: &str) -> Option<Self> {
        key.split('_').find_map(|word| match word {
            "bytes" => Some(Self::Bytes),
            "us" => Some(Self::Time(MICROSECOND)),
            "ms" => Some(Self::Time(MILLISECOND)),
            "s" => Some(Self::Time(SECOND)),
            _ => None,
        })
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Bytes => "a number of bytes, or a size such as \"64KiB\", \"16MiB\" or \"2GB\"",
            Self::Time(MICROSECOND) => "a number of microseconds, or a duration such as \"500us\" or \"2ms\"",
            Self::Time(MILLISECOND) => {
                "a number of milliseconds, or a duration such as \"500ms\", \"30s\", \"10min\", \"12h\" or \"7d\""
            }
            Self::Time(_) => {
                "a number of seconds, or a duration such as \"30s\", \"10min\", \"12h\" or \"7d\""
            }
        }
    }
}

/// Converts text with a unit to a number in the unit of the key. `None` if the key has no unit.
///
/// # Errors
/// What is expected, if the text is no such value, or the unit of the key cannot express it exactly.
pub fn parse_quantity(key: &str, text: &str) -> Option<Result<i128, String>> {
    let unit = Unit::of(key)?;
    Some(quantity(unit, text).ok_or_else(|| format!("{text:?}: expected {}", unit.expected())))
}

fn quantity(unit: Unit, text: &str) -> Option<i128> {
    let text = text.trim();
    let (digits, name) =
        text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let number: i128 = digits.parse().ok()?;
    let name = name.trim_start().to_ascii_lowercase();
    let (units, divisor): (&[(&str, i128)], i128) = match unit {
        Unit::Bytes => (&SIZES, 1),
        Unit::Time(nanoseconds) => (&TIMES, nanoseconds),
    };
    let (_, factor) = units.iter().find(|(known, _)| *known == name)?;
    let total = number.checked_mul(*factor)?;
    (total % divisor == 0).then_some(total / divisor)
}

/// Type of the values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number, or text with a unit if the name of the key has one.
    Number,
    /// True or false.
    Flag,
    /// Text.
    Text,
    /// An array of texts.
    Texts,
    /// One of the values that the bounds of its key lists.
    Choice,
}

/// The value of a configuration key.
pub trait ConfigValue: Sized {
    /// What kind of value it is.
    const KIND: Kind;

    /// The value as written in TOML, numbers in the unit of their key.
    fn literal(&self) -> String;

    /// Deserializes the value of `key`.
    ///
    /// # Errors
    /// The value has another type, unit or range.
    fn deserialize<'de, D: Deserializer<'de>>(key: &'static str, deserializer: D) -> Result<Self, D::Error>;
}

/// A number of type `T`.
struct Number<T> {
    key: &'static str,
    value: PhantomData<T>,
}

impl<T: TryFrom<i128>> Visitor<'_> for Number<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Unit::of(self.key).map_or("a number", Unit::expected))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_i128(i128::from(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_i128(i128::from(number))
    }

    fn visit_i128<E: Error>(self, number: i128) -> Result<T, E> {
        T::try_from(number)
            .map_err(|_| E::custom(format!("{number} is out of range; docs/configuration.md has the bounds")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        match parse_quantity(self.key, text) {
            Some(Ok(number)) => self.visit_i128(number),
            Some(Err(what)) => Err(E::custom(what)),
            None => Err(E::invalid_type(Unexpected::Str(text), &self)),
        }
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {$(
        impl ConfigValue for $type {
            const KIND: Kind = Kind::Number;

            fn literal(&self) -> String {
                self.to_string()
            }

            fn deserialize<'de, D: Deserializer<'de>>(key: &'static str, deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Number { key, value: PhantomData })
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64, i64);

/// A visitor for true or false.
struct Flag;

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }
}

/// A visitor for text.
struct Text;

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotation marks")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
        Ok(value.to_owned())
    }
}

impl ConfigValue for bool {
    const KIND: Kind = Kind::Flag;

    fn literal(&self) -> String {
        self.to_string()
    }

    fn deserialize<'de, D: Deserializer<'de>>(_: &'static str, deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Flag)
    }
}

impl ConfigValue for String {
    const KIND: Kind = Kind::Text;

    fn literal(&self) -> String {
        text_literal(self)
    }

    fn deserialize<'de, D: Deserializer<'de>>(_: &'static str, deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text)
    }
}

impl ConfigValue for Vec<String> {
    const KIND: Kind = Kind::Texts;

    fn literal(&self) -> String {
        let texts: Vec<String> = self.iter().map(|text| text_literal(text)).collect();
        format!("[{}]", texts.join(", "))
    }

    fn deserialize<'de, D: Deserializer<'de>>(_: &'static str, deserializer: D) -> Result<Self, D::Error> {
        serde::Deserialize::deserialize(deserializer)
    }
}

/// Text as a basic string of TOML.
pub fn text_literal(text: &str) -> String {
    let mut literal = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => literal.push_str("\\\""),
            '\\' => literal.push_str("\\\\"),
            control if control.is_control() => {
                literal.extend(format!("\\u{:04X}", u32::from(control)).chars());
            }
            other => literal.push(other),
        }
    }
    literal.push('"');
    literal
}

/// The name of an enum variant, as `Debug` prints it, as a string of TOML in kebab case.
pub fn choice_literal(variant: &str) -> String {
    let mut text = String::from("\"");
    for (index, letter) in variant.char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text.push('"');
    text
}

/// Deserializes a key of a section: one of a list.
pub struct KeySeed(pub &'static [&'static str]);

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<&'static str, E> {
        if let Some(known) = self.0.iter().find(|known| **known == key) {
            return Ok(known);
        }
        let hint = similar(self.0, key).map_or(String::new(), |known| format!("; did you mean `{known}`?"));
        Err(E::custom(format!("unknown key `{key}`{hint} (docs/configuration.md lists all keys)")))
    }
}

/// Deserializes the value of a key.
pub struct ValueSeed<T> {
    key: &'static str,
    value: PhantomData<T>,
}

impl<T> ValueSeed<T> {
    /// For the value of `key`.
    pub fn new(key: &'static str) -> Self {
        Self { key, value: PhantomData }
    }
}

impl<'de, T: ConfigValue> DeserializeSeed<'de> for ValueSeed<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(self.key, deserializer)
    }
}

/// Reads all keys of a section; `set` sets the value of one.
///
/// # Errors
/// An unknown key, or an invalid value.
pub fn read_section<'de, A: MapAccess<'de>>(
    map: &mut A,
    keys: &'static [&'static str],
    mut set: impl FnMut(&'static str, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    while let Some(key) = map.next_key_seed(KeySeed(keys))? {
        set(key, map)?;
    }
    Ok(())
}

/// The name that was probably meant, if one is similar to `name`.
pub fn similar<'a>(known: &[&'a str], name: &str) -> Option<&'a str> {
    let nearest = known.iter().min_by_key(|known| distance(known, name));
    nearest.copied().filter(|known| distance(known, name) <= name.len().div_ceil(3))
}

/// Number of letters to insert, remove or replace to turn one text into the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let cost = (diagonal + usize::from(a != b)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str, text: &str) -> Result<i128, String> {
        parse_quantity(key, text).expect("the key has a unit")
    }

    #[test]
    fn sizes_and_durations_are_converted_to_the_unit_of_the_key() {
        for (key, text, number) in [
            ("max_queued_bytes", "16MiB", 16 << 20),
            ("max_queued_bytes", "16mb", 16_000_000),
            ("max_queued_bytes", "64 KiB", 65_536),
            ("max_queued_bytes", "7B", 7),
            ("connect_timeout_ms", "30s", 30_000),
            ("retention_ms", "7d", 604_800_000),
            ("keep_alive_s_max", "5min", 300),
            ("coalesce_us", "2ms", 2_000),
        ] {
            assert_eq!(parse(key, text), Ok(number), "{key} = {text:?}");
        }
        assert_eq!(parse_quantity("max_sessions", "5"), None);
    }

    #[test]
    fn what_cannot_be_converted_exactly_is_refused() {
        for (key, text) in [
            ("max_queued_bytes", "16"),
            ("max_queued_bytes", "16K"),
            ("max_queued_bytes", "1.5MiB"),
            ("max_queued_bytes", "-1KiB"),
            ("max_queued_bytes", "30s"),
            ("max_queued_bytes", "99999999999999999999999999999999999999TiB"),
            ("sys_interval_s", "1500ms"),
            ("sys_interval_s", "MiB"),
            ("sys_interval_s", ""),
        ] {
            let error = parse(key, text).expect_err(text);
            assert!(error.starts_with(&format!("{text:?}: expected a number of ")), "{error}");
        }
    }

    #[test]
    fn literals_are_toml() {
        assert_eq!("a \"b\" c:\\d\u{7}".to_owned().literal(), r#""a \"b\" c:\\d\u0007""#);
        assert_eq!(vec!["a".to_owned(), "b".to_owned()].literal(), r#"["a", "b"]"#);
        assert_eq!(
            (7_u16.literal(), true.literal(), choice_literal("DropOldest")),
            ("7".into(), "true".into(), "\"drop-oldest\"".into())
        );
    }

    #[test]
    fn distance_counts_the_edits() {
        for (one, other, edits) in
            [("", "abc", 3), ("abc", "abc", 0), ("abcd", "abd", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (edits, edits), "{one} {other}");
        }
    }
}
