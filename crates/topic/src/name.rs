//! What a topic name and a topic filter may be, and whether one filter matches one name (section 4.7).

use std::fmt;

/// Longest topic name or topic filter, in bytes of UTF-8 `[MQTT-4.7.3-3]`.
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Why a string is not a topic name, a topic filter or a shared subscription.
///
/// The caller can do one thing with each of them, which is to refuse; the variants are for its log line. MQTT 5 has
/// the reason codes 0x90 (Topic Name invalid) and 0x8F (Topic Filter invalid) to answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicError {
    /// Empty `[MQTT-4.7.3-1]`.
    Empty,
    /// Longer than [`MAX_TOPIC_BYTES`] `[MQTT-4.7.3-3]`.
    TooLong,
    /// Contains U+0000 `[MQTT-4.7.3-2]`.
    Nul,
    /// A topic name with `+` or `#` in it `[MQTT-4.7.0-1]`.
    WildcardInName,
    /// `#` that is not alone in the last level of its filter `[MQTT-4.7.1-1]`.
    MisplacedMultiLevel,
    /// `+` that is not alone in its level `[MQTT-4.7.1-2]`.
    MisplacedSingleLevel,
    /// `$share/` without a share name, or with a wildcard in it `[MQTT-4.8.2-1]`, `[MQTT-4.8.2-2]`.
    ShareName,
    /// `$share/<name>` without a topic filter behind it `[MQTT-4.8.2-2]`.
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

/// Checks that `name` can be published to.
///
/// # Errors
/// Empty, longer than [`MAX_TOPIC_BYTES`], or with `+`, `#` or U+0000 in it `[MQTT-4.7.0-1]`, `[MQTT-4.7.3-1]`,
/// `[MQTT-4.7.3-2]`, `[MQTT-4.7.3-3]`.
pub fn check_name(name: &str) -> Result<(), TopicError> {
    check_text(name)?;
    if has_wildcard(name) { Err(TopicError::WildcardInName) } else { Ok(()) }
}

/// Checks that `filter` can be subscribed to; `$share/…` is a plain filter here, see
/// [`parse_subscription`](crate::parse_subscription).
///
/// # Errors
/// Empty, longer than [`MAX_TOPIC_BYTES`], with U+0000 in it, or with a wildcard out of place `[MQTT-4.7.1-1]`,
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

/// What holds for names and filters alike.
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

/// The number of levels of a topic name or filter: one more than its separators, so an empty string has one.
pub fn level_count(topic: &str) -> usize {
    1 + topic.bytes().filter(|&byte| byte == b'/').count()
}

/// Whether a valid filter has a wildcard, which is whether it can match more than the one name it spells.
pub fn has_wildcard(filter: &str) -> bool {
    any_byte(filter, |byte| byte == b'+' || byte == b'#')
}

/// Looks at every byte, without an early exit: that way the compiler compares many at a time, and what is looked
/// for is nearly never there.
fn any_byte(text: &str, is_wanted: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |found, byte| found | is_wanted(byte))
}

/// Whether a valid filter matches a valid name (section 4.7).
///
/// Levels are compared byte by byte `[MQTT-4.7.3-4]`. An empty level is a level; `a/#` matches `a` as well (4.7.1.2);
/// a filter that starts with a wildcard does not match a name that starts with `$` `[MQTT-4.7.2-1]`. A string that
/// [`check_filter`] or [`check_name`] refuses gets some answer, in linear time.
pub fn matches(filter: &str, name: &str) -> bool {
    if name.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut levels = name.split('/');
    for wanted in filter.split('/') {
        if wanted == "#" {
            return true;
        }
        match levels.next() {
            Some(level) if wanted == "+" || wanted == level => {}
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
        // Two bytes each: the limit is on bytes, not on characters.
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
            // And beside them.
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
    fn levels_are_counted() {
        for (topic, expected) in [("a", 1), ("", 1), ("/", 2), ("a/b/c", 3), ("a//b/", 4), ("+/#", 2)] {
            assert_eq!(level_count(topic), expected, "{topic:?}");
        }
        assert_eq!(level_count(&"/".repeat(MAX_TOPIC_BYTES)), MAX_TOPIC_BYTES + 1);
    }

    #[test]
    fn wildcards_are_found() {
        for (filter, expected) in
            [("a", false), ("a/b", false), ("#", true), ("a/+/b", true), ("$SYS/#", true)]
        {
            assert_eq!(has_wildcard(filter), expected, "{filter:?}");
        }
    }

    /// Filter, name, whether they match: shared with the test of the index.
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
