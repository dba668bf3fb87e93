//! The part of the consumer protocol that a coordinator needs: topic subscriptions in member metadata.
//!
//! A subscription starts with a version and the topic names; fields of later versions follow and are ignored.

/// Topics of a subscription; `None` if the metadata is not one.
pub(super) fn topics(metadata: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let (_version, rest) = metadata.split_at_checked(2)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let count = usize::try_from(i32::from_be_bytes(*count)).ok()?;
    // Each name takes at least two bytes, for its length.
    let mut topics = Vec::with_capacity(count.min(rest.len() / 2));
    for _ in 0..count {
        let (length, rest_after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, rest_after) = rest_after.split_at_checked(length)?;
        topics.push(str::from_utf8(name).ok()?);
        rest = rest_after;
    }
    Some(topics.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_fields_after_the_topics() {
        let metadata = b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x03bcd\xff\xff\xff\xff";
        assert_eq!(topics(metadata).unwrap().collect::<Vec<_>>(), ["a", "bcd"]);
        assert_eq!(topics(b"\x00\x00\x00\x00\x00\x00").unwrap().count(), 0);
    }

    #[test]
    fn rejects_metadata_that_is_not_a_subscription() {
        for metadata in [
            &b""[..],
            b"range",
            b"\x00\x00\x7f\xff\xff\xff\x00\x01a",
            b"\x00\x00\xff\xff\xff\xff",
            b"\x00\x00\x00\x00\x00\x01\x00\x02a",
            b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
        ] {
            assert!(topics(metadata).is_none(), "{metadata:?}");
        }
    }
}
