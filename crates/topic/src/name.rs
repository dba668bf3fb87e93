//! Validation of topic names and topic filters, and matching of one filter against one name (section 4.7).
//!
//! Validation runs once, when a string arrives from a client; the rest of the crate relies on it. [`matches()`] is the
//! reference implementation of matching: it compares level by level without an index, and the tests compare [`Index`]
//! with it.
//!
//! [`Index`]: crate::Index

use std::fmt;

/// Maximum length of a topic name or topic filter, in bytes of UTF-8 `[MQTT-4.7.3-3]`.
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Why a string is not a valid topic name, topic filter or shared subscription.
///
/// Callers reject the string in every case; the variants are for log messages. The MQTT 5 reason codes are 0x90 (Topic
/// Name invalid) and 0x8F (Topic Filter invalid).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicError {
    /// Empty `[MQTT-4.7.3-1]`.
    Empty,
    /// Longer than [`MAX_TOPIC_BYTES`] `[MQTT-4.7.3-3]`.
    TooLong,
    /// Contains U+0000 `[MQTT-4.7.3-2]`.
    Nul,
    /// A topic name that contains `+` or `#` `[MQTT-4.7.0-1]`.
    WildcardInName,
    /// A `#` that is not alone in the last level of the filter `[MQTT-4.7.1-1]`.
    MisplacedMultiLevel,
    /// A `+` that is not alone in its level `[MQTT-4.7.1-2]`.
    MisplacedSingleLevel,
    /// `$share/` with an empty share name, or with a wildcard in it `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`.
    ShareName,
    /// `$share/<name>` without a topic filter after it `[MQTT-4.8.2-2]`.
    ShareFilterMissing,
}

impl fmt::Display for TopicError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::TooLong => "is longer than 65535 bytes",
            Self::Nul => "contains the character U+0000",
            Self::WildcardInName => "is a topic name and contains a wildcard",
            Self::MisplacedMultiLevel => "has a `#` that is not alone in the last level",
            Self::MisplacedSingleLevel => "has a `+` that is not alone in its level",
            Self::ShareName => "has an empty share name, or one with a wildcard",
            Self::ShareFilterMissing => "has a share name and no topic filter behind it",
        })
    }
}

impl std::error::Error for TopicError {}

/// Checks that `name` is a valid topic name.
///
/// # Errors
/// If it is empty, longer than [`MAX_TOPIC_BYTES`], or contains `+`, `#` or U+0000 `[MQTT-4.7.0-1]`, `[MQTT-4.7.3-1]`,
/// `[MQTT-4.7.3-2]`, `[MQTT-4.7.3-3]`.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    check_text(name)?;
    if has_wildcard(name) { Err(TopicError::WildcardInName) } else { Ok(()) }
}

/// Checks that `filter` is a valid topic filter. `$share/…` counts as a plain filter here; see
/// [`parse_subscription`](crate::parse_subscription).
///
/// # Errors
/// If it is empty, longer than [`MAX_TOPIC_BYTES`], contains U+0000, or has a misplaced wildcard `[MQTT-4.7.1-1]`,
/// `[MQTT-4.7.1-2]`, `[MQTT-4.7.3-1]`, `[MQTT-4.7.3-2]`, `[MQTT-4.7.3-3]`.
pub fn check_filter(filter: &str) -> Result<(), TopicError> {
    check_text(filter)?;
    if !has_wildcard(filter) {
        return Ok(());
    }
    let bytes = filter.as_bytes();
    let last = bytes.len() - 1;
    for (at, &byte) in bytes.iter().enumerate() {
        let starts_level = at == 0 || bytes[at - 1] == b'/';
        let ends_level = at == last || bytes[at + 1] == b'/';
        match byte {
            b'#' if !starts_level || at != last => return Err(TopicError::MisplacedMultiLevel),
            b'+' if !starts_level || !ends_level => return Err(TopicError::MisplacedSingleLevel),
            _ => {}
        }
    }
    Ok(())
}

/// The checks common to names and filters.
fn check_text(text: &str) -> Result<(), TopicError> {
    if text.is_empty() {
        Err(TopicError::Empty)
    } else if text.len() > MAX_TOPIC_BYTES {
        Err(TopicError::TooLong)
    } else if any_byte(text, |byte| byte == 0) {
        Err(TopicError::Nul)
    } else {
        Ok(())
    }
}

/// Returns the number of levels of a topic name or filter: the number of `/` plus one. An empty string has one level.
pub fn level_count(topic: &str) -> usize {
    1 + topic.bytes().filter(|&byte| byte == b'/').count()
}

/// Returns whether a valid filter contains a wildcard. Without one, it matches only the name equal to it.
pub fn has_wildcard(filter: &str) -> bool {
    any_byte(filter, |byte| byte == b'+' || byte == b'#')
}

/// Returns whether any byte satisfies `predicate`. Has no early exit, so that the compiler can vectorize it; a match is
/// rare in valid input.
fn any_byte(text: &str, predicate: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |found, byte| found | predicate(byte))
}

/// Returns whether a valid filter matches a valid name (section 4.7).
///
/// Levels are compared byte by byte `[MQTT-4.7.3-4]`. An empty level is a level; `a/#` also matches `a` (4.7.1.2); a
/// filter that starts with a wildcard does not match a name that starts with `$` `[MQTT-4.7.2-1]`. For strings that
/// [`check_filter`] or [`check_name`] reject the result is unspecified, but returned in linear time.
pub fn matches(filter: &str, name: &str) -> bool {
    if name.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = name.split('/');
    for pattern in filter.split('/') {
        if pattern == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if pattern == "+" || pattern == level => {}
            _ => return false,
        }
    }
    levels.next().is_none()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    // [MQTT5-4.7.0-1] [MQTT3-4.7.1-1] [MQTT5-4.7.3-1] [MQTT3-4.7.3-1] [MQTT5-4.7.3-2] [MQTT3-4.7.3-2]
    // [MQTT5-4.7.3-3] [MQTT3-4.7.3-3]
    #[test]
    fn names_are_checked() {
        let longest = "x".repeat(MAX_TOPIC_BYTES);
        let too_long = "x".repeat(MAX_TOPIC_BYTES + 1);
        // Two bytes per character: the limit is in bytes, not in characters.
        let too_many_bytes = "é".repeat(MAX_TOPIC_BYTES / 2 + 1);
        let table: &[(&str, Result<(), TopicError>)] = &[
            ("/", Ok(())),
            ("/finance", Ok(())),
            ("ACCOUNTS", Ok(())),
            ("Accounts payable", Ok(())),
            ("a//b/", Ok(())),
            ("$SYS/broker", Ok(())),
            ("$share/a/b", Ok(())),
            ("größe/температура/温度", Ok(())),
            (&longest, Ok(())),
            ("", Err(TopicError::Empty)),
            (&too_long, Err(TopicError::TooLong)),
            (&too_many_bytes, Err(TopicError::TooLong)),
            ("a\0b", Err(TopicError::Nul)),
            ("#", Err(TopicError::WildcardInName)),
            ("+", Err(TopicError::WildcardInName)),
            ("a/b#", Err(TopicError::WildcardInName)),
            ("a+b/c", Err(TopicError::WildcardInName)),
        ];
        for &(name, expected) in table {
            assert_eq!(check_name(name), expected, "{name:.40?}");
        }
    }

    // [MQTT5-4.7.1-1] [MQTT3-4.7.1-2] [MQTT5-4.7.1-2] [MQTT3-4.7.1-3] [MQTT5-4.7.3-1] [MQTT3-4.7.3-1]
    // [MQTT5-4.7.3-2] [MQTT3-4.7.3-2] [MQTT5-4.7.3-3] [MQTT3-4.7.3-3]
    #[test]
    fn filters_are_checked() {
        let longest = format!("{}#", "/".repeat(MAX_TOPIC_BYTES - 1));
        let too_long = "+/".repeat(MAX_TOPIC_BYTES / 2 + 1);
        let table: &[(&str, Result<(), TopicError>)] = &[
            // The examples of 4.7.1.2 and 4.7.1.3.
            ("#", Ok(())),
            ("sport/tennis/#", Ok(())),
            ("sport/tennis#", Err(TopicError::MisplacedMultiLevel)),
            ("sport/tennis/#/ranking", Err(TopicError::MisplacedMultiLevel)),
            ("+", Ok(())),
            ("+/tennis/#", Ok(())),
            ("sport+", Err(TopicError::MisplacedSingleLevel)),
            ("sport/+/player1", Ok(())),
            // Further cases.
            ("/", Ok(())),
            ("+/+", Ok(())),
            ("/+", Ok(())),
            ("+/", Ok(())),
            ("/#", Ok(())),
            ("a//+//b", Ok(())),
            ("$SYS/#", Ok(())),
            ("$share/g/a", Ok(())),
            (&longest, Ok(())),
            ("", Err(TopicError::Empty)),
            (&too_long, Err(TopicError::TooLong)),
            ("a/\0/#", Err(TopicError::Nul)),
            ("##", Err(TopicError::MisplacedMultiLevel)),
            ("#/", Err(TopicError::MisplacedMultiLevel)),
            ("#a", Err(TopicError::MisplacedMultiLevel)),
            ("a/#b", Err(TopicError::MisplacedMultiLevel)),
            ("a/+#", Err(TopicError::MisplacedSingleLevel)),
            ("++", Err(TopicError::MisplacedSingleLevel)),
            ("+a/b", Err(TopicError::MisplacedSingleLevel)),
            ("a/b+/c", Err(TopicError::MisplacedSingleLevel)),
        ];
        for &(filter, expected) in table {
            assert_eq!(check_filter(filter), expected, "{filter:.40?}");
        }
    }

    #[test]
    fn counts_levels() {
        for (topic, expected) in [("a", 1), ("", 1), ("/", 2), ("a/b/c", 3), ("a//b/", 4), ("+/#", 2)] {
            assert_eq!(level_count(topic), expected, "{topic:?}");
        }
        assert_eq!(level_count(&"/".repeat(MAX_TOPIC_BYTES)), MAX_TOPIC_BYTES + 1);
    }

    #[test]
    fn finds_wildcards() {
        for (filter, expected) in
            [("a", false), ("a/b", false), ("#", true), ("a/+/b", true), ("$SYS/#", true)]
        {
            assert_eq!(has_wildcard(filter), expected, "{filter:?}");
        }
    }

    /// Filter, name, and whether they match. Also used by the tests of the index.
    pub(crate) const MATCH_TABLE: &[(&str, &str, bool)] = &[
        // 4.7.1.2, the multi-level wildcard.
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
        ("sport/tennis/player1/#", "sport/tennis/player2", false),
        ("sport/#", "sport", true),
        ("sport/#", "sports", false),
        ("sport/#", "sport/", true),
        ("#", "sport", true),
        ("#", "sport/tennis/player1", true),
        ("#", "/", true),
        // 4.7.1.3, the single-level wildcard.
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player2", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+/tennis/#", "sport/tennis", true),
        ("+/tennis/#", "sport/tennis/player1/ranking", true),
        ("+/tennis/#", "sport/golf", false),
        ("sport/+/player1", "sport/tennis/player1", true),
        ("sport/+/player1", "sport/tennis/player2", false),
        ("sport/+/player1", "sport/tennis/doubles/player1", false),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("+", "/finance", false),
        // 4.7.2, names that begin with `$`.
        ("#", "$SYS/monitor/Clients", false),
        ("+/monitor/Clients", "$SYS/monitor/Clients", false),
        ("+/#", "$SYS/monitor/Clients", false),
        ("+", "$SYS", false),
        ("$SYS/#", "$SYS/monitor/Clients", true),
        ("$SYS/#", "$SYS", true),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", true),
        ("$SYS/+/Clients", "$SYS/monitor/Clients", true),
        ("#", "a/$SYS", true),
        ("a/+", "a/$SYS", true),
        ("/#", "/$SYS", true),
        ("$SYS", "$SYS", true),
        // 4.7.3, semantics: case, spaces, separators at the ends.
        ("ACCOUNTS", "Accounts", false),
        ("Accounts payable", "Accounts payable", true),
        ("/finance", "finance", false),
        ("finance", "/finance", false),
        ("finance/", "finance", false),
        ("/", "/", true),
        ("+/+", "/", true),
        ("+", "/", false),
        ("a//b", "a//b", true),
        ("a/+/b", "a//b", true),
        ("a/b", "a//b", false),
        ("a/+", "a/b/", false),
        ("a/#", "a//", true),
        ("a/b/#", "a", false),
        // No normalisation: the same letter, precomposed and combined.
        ("caf\u{e9}/+", "cafe\u{301}/x", false),
        ("caf\u{e9}/+", "caf\u{e9}/x", true),
    ];

    // [MQTT5-4.7.2-1] [MQTT3-4.7.2-1] [MQTT5-4.7.3-4] [MQTT3-4.7.3-4]
    #[test]
    fn the_examples_of_the_specification_match() {
        for &(filter, name, expected) in MATCH_TABLE {
            assert_eq!(check_filter(filter), Ok(()), "{filter:?}");
            assert_eq!(check_name(name), Ok(()), "{name:?}");
            assert_eq!(matches(filter, name), expected, "{filter:?} against {name:?}");
        }
    }
}
