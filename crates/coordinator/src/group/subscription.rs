//! The formats of clients that a coordinator reads and writes: subscriptions and assignments of the protocol type
//! `consumer`, as the classic protocol carries them.
//!
//! Both start with a version. Fields of later versions follow those of earlier ones, so a version that is not known yet
//! can be read, too. Nothing is allocated for a claimed length.

/// Version of subscriptions from which on they list the partitions that the member owns.
const OWNED_PARTITIONS: i16 = 1;

/// A topic with partitions.
pub(super) type NamedPartitions<'a> = (&'a str, Vec<i32>);

/// Topics of a subscription; `None` if the metadata is not one.
pub(super) fn topics(metadata: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let mut fields = Fields(metadata);
    fields.int16()?;
    Some(fields.topics()?.into_iter())
}

/// What a member says about itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MemberSubscription<'a> {
    pub(super) version: i16,
    pub(super) topics: Vec<&'a str>,
    /// The partitions that it owns; none if it has given up all before it joins.
    pub(super) owned: Vec<NamedPartitions<'a>>,
}

/// A subscription with all that is of interest; `None` if the metadata is not one.
pub(super) fn read(metadata: &[u8]) -> Option<MemberSubscription<'_>> {
    let mut fields = Fields(metadata);
    let version = fields.int16()?;
    let topics = fields.topics()?;
    let owned = if version < OWNED_PARTITIONS {
        Vec::new()
    } else {
        fields.nullable_bytes()?;
        fields.partitions()?
    };
    Some(MemberSubscription { version, topics, owned })
}

/// The partitions of an assignment; `None` if the bytes are not one. A member without an assignment has no bytes.
pub(super) fn read_assignment(assignment: &[u8]) -> Option<Vec<NamedPartitions<'_>>> {
    if assignment.is_empty() {
        return Some(Vec::new());
    }
    let mut fields = Fields(assignment);
    fields.int16()?;
    fields.partitions()
}

/// An assignment in the version of the member's subscription, without user data.
pub(super) fn write_assignment(version: i16, topics: &[(String, Vec<i32>)]) -> Vec<u8> {
    let length = |length: usize| i32::try_from(length).unwrap_or(i32::MAX).to_be_bytes();
    let mut bytes = version.to_be_bytes().to_vec();
    bytes.extend(length(topics.len()));
    for (name, partitions) in topics {
        bytes.extend(i16::try_from(name.len()).unwrap_or(i16::MAX).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(length(partitions.len()));
        bytes.extend(partitions.iter().flat_map(|partition| partition.to_be_bytes()));
    }
    bytes.extend((-1_i32).to_be_bytes());
    bytes
}

/// Fields that are left of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn int16(&mut self) -> Option<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn int32(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.int16()?).ok()?;
        str::from_utf8(self.bytes(length)?).ok()
    }

    fn nullable_bytes(&mut self) -> Option<()> {
        if let Ok(length) = usize::try_from(self.int32()?) {
            self.bytes(length)?;
        }
        Some(())
    }

    /// An array whose elements take `element_bytes` at least.
    fn array<T>(&mut self, element_bytes: usize, element: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.int32()?).ok()?;
        let mut elements = Vec::with_capacity(count.min(self.0.len() / element_bytes));
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Some(elements)
    }

    fn topics(&mut self) -> Option<Vec<&'a str>> {
        self.array(2, Self::text)
    }

    fn partitions(&mut self) -> Option<Vec<NamedPartitions<'a>>> {
        self.array(6, |fields| Some((fields.text()?, fields.array(4, Self::int32)?)))
    }
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
            assert!(read(metadata).is_none(), "{metadata:?}");
        }
    }

    #[test]
    fn reads_what_a_member_owns() {
        let version_0 = b"\x00\x00\x00\x00\x00\x01\x00\x01a\xff\xff\xff\xff";
        let expected = MemberSubscription { version: 0, topics: vec!["a"], owned: Vec::new() };
        assert_eq!(read(version_0), Some(expected));
        let version_1 = b"\x00\x01\x00\x00\x00\x01\x00\x01a\x00\x00\x00\x01x\
            \x00\x00\x00\x01\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x05more";
        let owned = vec![("a", vec![0, 5])];
        assert_eq!(read(version_1), Some(MemberSubscription { version: 1, topics: vec!["a"], owned }));
        assert_eq!(read(&version_1[..30]), None);
    }

    #[test]
    fn assignments_are_read_as_written() {
        let topics = [("a".to_owned(), vec![0, 2]), ("b".to_owned(), Vec::new())];
        let bytes = write_assignment(3, &topics);
        assert_eq!(bytes[..2], [0, 3]);
        assert_eq!(read_assignment(&bytes), Some(vec![("a", vec![0, 2]), ("b", Vec::new())]));
        assert_eq!(read_assignment(b""), Some(Vec::new()));
        assert_eq!(read_assignment(&bytes[..bytes.len() - 9]), None);
        assert_eq!(read_assignment(b"\x00\x00\x7f\xff\xff\xff"), None);
    }
}
