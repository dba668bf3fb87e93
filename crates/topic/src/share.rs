//! Shared subscriptions: `$share/<group>/<filter>` (MQTT 5, section 4.8.2).
//!
//! A shared subscription is recognized by its prefix alone and split once, on arrival. The index stores only the plain
//! filter; the group belongs to the value of the filter.

use crate::name::{MAX_TOPIC_BYTES, TopicError, check_filter};

/// A subscription string of a SUBSCRIBE packet: a filter, with a group if it is a shared subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subscription<'a> {
    /// The share name; `None` for a plain subscription.
    pub group: Option<&'a str>,
    /// The topic filter without `$share/<group>/`, validated by [`check_filter`].
    pub filter: &'a str,
}

/// Splits and validates a subscription string of SUBSCRIBE or UNSUBSCRIBE.
///
/// A string that starts with `$share/` is always a shared subscription. `$share` alone and `$sharex/…` are plain
/// filters. MQTT 3.1.1 has no shared subscriptions; the caller decides whether to offer them to such clients.
///
/// # Errors
/// Any error of [`check_filter`] for the filter; an empty share name or one with a wildcard `[MQTT-4.8.2-1]`,
/// `[MQTT-4.8.2-2]`; no filter after the share name `[MQTT-4.8.2-2]`; a string longer than [`MAX_TOPIC_BYTES`] in
/// total.
pub fn parse_subscription(text: &str) -> Result<Subscription<'_>, TopicError> {
    let Some(shared) = text.strip_prefix("$share/") else {
        check_filter(text)?;
        return Ok(Subscription { group: None, filter: text });
    };
    if text.len() > MAX_TOPIC_BYTES {
        return Err(TopicError::TooLong);
    }
    let (group, filter) = match shared.split_once('/') {
        Some((group, filter)) => (group, Some(filter)),
        None => (shared, None),
    };
    if group.is_empty() || group.contains(['+', '#']) {
        return Err(TopicError::ShareName);
    }
    if group.contains('\0') {
        return Err(TopicError::Nul);
    }
    match filter {
        None | Some("") => Err(TopicError::ShareFilterMissing),
        Some(filter) => {
            check_filter(filter)?;
            Ok(Subscription { group: Some(group), filter })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [MQTT5-4.8.2-1] [MQTT5-4.8.2-2]
    #[test]
    fn shared_subscriptions_are_split_and_checked() {
        let plain = |filter| Ok(Subscription { group: None, filter });
        let shared = |group, filter| Ok(Subscription { group: Some(group), filter });
        let too_long = format!("$share/g/{}", "x".repeat(MAX_TOPIC_BYTES));
        let table = [
            ("a/+", plain("a/+")),
            ("$share", plain("$share")),
            ("$sharex/g/a", plain("$sharex/g/a")),
            ("$SHARE/g/a", plain("$SHARE/g/a")),
            ("/$share/g/a", plain("/$share/g/a")),
            ("$share/consumer1/sport/tennis/+", shared("consumer1", "sport/tennis/+")),
            ("$share/consumer1//finance", shared("consumer1", "/finance")),
            ("$share/g/#", shared("g", "#")),
            ("$share/g//", shared("g", "/")),
            ("$share/g/$share/h/a", shared("g", "$share/h/a")),
            ("$share/$g /a", shared("$g ", "a")),
            ("", Err(TopicError::Empty)),
            ("a#", Err(TopicError::MisplacedMultiLevel)),
            ("$share/", Err(TopicError::ShareName)),
            ("$share//a", Err(TopicError::ShareName)),
            ("$share/+/a", Err(TopicError::ShareName)),
            ("$share/g#/a", Err(TopicError::ShareName)),
            ("$share/#", Err(TopicError::ShareName)),
            ("$share/g\0/a", Err(TopicError::Nul)),
            ("$share/g", Err(TopicError::ShareFilterMissing)),
            ("$share/g/", Err(TopicError::ShareFilterMissing)),
            ("$share/g/a+", Err(TopicError::MisplacedSingleLevel)),
            ("$share/g/#/a", Err(TopicError::MisplacedMultiLevel)),
            ("$share/g/\0", Err(TopicError::Nul)),
            (&too_long, Err(TopicError::TooLong)),
        ];
        for (text, expected) in table {
            assert_eq!(parse_subscription(text), expected, "{text:.40?}");
        }
    }
}
