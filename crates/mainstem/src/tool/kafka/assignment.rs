//! Subscriptions and assignments of consumer group members, and range assignment of partitions.
//!
//! The broker passes both formats through without reading them. They are those of Kafka's consumer, so that this tool
//! can share a group with other clients.

use std::collections::BTreeMap;

use mainstem_kafka::{DecodeError, Reader};

use super::cluster::Partition;

/// The supported assignment protocol: that of `RangeAssignor` in the Java client.
pub(super) const PROTOCOL: &str = "range";

/// Encodes a member's subscription in version 0, which is a prefix of all later versions.
pub(super) fn subscription(topics: &[String]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    put_len(topics.len(), &mut bytes);
    for topic in topics {
        put_text(topic, &mut bytes);
    }
    put_no_user_data(&mut bytes);
    bytes
}

/// Decodes the topics of a member's subscription.
///
/// # Errors
/// If it is malformed.
pub(super) fn subscribed_topics(bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
    let mut reader = Reader::new(bytes);
    take_version(&mut reader)?;
    take_list(&mut reader, take_text)
}

/// Encodes a member's assignment in version 0.
pub(super) fn assignment(partitions: &[Partition]) -> Vec<u8> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, index) in partitions {
        topics.entry(topic).or_default().push(*index);
    }
    let mut bytes = vec![0, 0];
    put_len(topics.len(), &mut bytes);
    for (topic, indexes) in topics {
        put_text(topic, &mut bytes);
        put_len(indexes.len(), &mut bytes);
        for index in indexes {
            bytes.extend_from_slice(&index.to_be_bytes());
        }
    }
    put_no_user_data(&mut bytes);
    bytes
}

/// Decodes the partitions of an assignment. Empty bytes are an empty assignment.
///
/// # Errors
/// If it is malformed.
pub(super) fn assigned_partitions(bytes: &[u8]) -> Result<Vec<Partition>, DecodeError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut reader = Reader::new(bytes);
    take_version(&mut reader)?;
    let topics = take_list(&mut reader, |reader| {
        let topic = take_text(reader)?;
        let indexes = take_list(reader, |reader| reader.array().map(i32::from_be_bytes))?;
        Ok((topic, indexes))
    })?;
    let named =
        |(topic, indexes): (String, Vec<i32>)| indexes.into_iter().map(move |index| (topic.clone(), index));
    Ok(topics.into_iter().flat_map(named).collect())
}

/// Assigns partitions to members: each member gets a contiguous range of every topic it subscribes to. If a topic's
/// partitions do not divide evenly, the first members get one more. `subscriptions` has the topics of each member,
/// `counts` the number of partitions of each topic.
pub(super) fn assign_ranges(
    subscriptions: &BTreeMap<String, Vec<String>>,
    counts: &BTreeMap<String, u32>,
) -> BTreeMap<String, Vec<Partition>> {
    let mut assigned: BTreeMap<String, Vec<Partition>> =
        subscriptions.keys().map(|member| (member.clone(), Vec::new())).collect();
    for (topic, count) in counts {
        let subscribers: Vec<&String> = subscriptions
            .iter()
            .filter(|(_, topics)| topics.contains(topic))
            .map(|(member, _)| member)
            .collect();
        let member_count = subscribers.len() as u32;
        let mut next = 0;
        for (place, member) in (0_u32..).zip(&subscribers) {
            let len = count / member_count + u32::from(place < count % member_count);
            let partitions = assigned.get_mut(*member).expect("every member has an entry");
            partitions.extend((next..next + len).map(|index| (topic.clone(), index.cast_signed())));
            next += len;
        }
    }
    assigned
}

fn put_len(len: usize, into: &mut Vec<u8>) {
    into.extend_from_slice(&(len as u32).to_be_bytes());
}

fn put_text(text: &str, into: &mut Vec<u8>) {
    into.extend_from_slice(&(text.len() as u16).to_be_bytes());
    into.extend_from_slice(text.as_bytes());
}

fn put_no_user_data(into: &mut Vec<u8>) {
    into.extend_from_slice(&(-1_i32).to_be_bytes());
}

fn take_version(reader: &mut Reader<'_>) -> Result<i16, DecodeError> {
    let version = i16::from_be_bytes(reader.array()?);
    if version < 0 { Err(DecodeError::Malformed("negative version")) } else { Ok(version) }
}

fn take_list<T>(
    reader: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = i32::from_be_bytes(reader.array()?);
    // Allocates as items are decoded; the length is not trusted.
    (0..len).map(|_| item(reader)).collect()
}

fn take_text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let len = u16::from_be_bytes(reader.array()?);
    let bytes = reader.bytes(len.into())?;
    String::from_utf8(bytes.into()).map_err(|_| DecodeError::Malformed("a topic name is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn encodings_survive_a_round_trip() {
        let topics = names(&["b", "a"]);
        assert_eq!(subscribed_topics(&subscription(&topics)), Ok(topics));
        let partitions = vec![("a".to_owned(), 3), ("a".to_owned(), 0), ("b".to_owned(), 7)];
        let bytes = assignment(&partitions);
        assert_eq!(assigned_partitions(&bytes), Ok(partitions));
        assert_eq!(assigned_partitions(&[]), Ok(vec![]));
        for end in 1..bytes.len() - 4 {
            assert_eq!(assigned_partitions(&bytes[..end]), Err(DecodeError::Truncated));
        }
    }

    #[test]
    fn ignores_fields_of_later_subscription_versions() {
        let mut bytes = subscription(&names(&["t"]));
        bytes[1] = 3;
        bytes.extend_from_slice(&[0; 9]);
        assert_eq!(subscribed_topics(&bytes), Ok(names(&["t"])));
    }

    #[test]
    fn assigns_each_partition_to_one_subscriber() {
        let subscriptions = [("m1", names(&["a", "b"])), ("m2", names(&["a"])), ("m3", names(&["a", "c"]))];
        let subscriptions = subscriptions.map(|(member, topics)| (member.to_owned(), topics)).into();
        let counts = [("a".to_owned(), 5), ("b".to_owned(), 2), ("c".to_owned(), 1)].into();
        let assigned = assign_ranges(&subscriptions, &counts);
        let of = |member: &str| {
            let names: Vec<String> =
                assigned[member].iter().map(|(topic, index)| format!("{topic}{index}")).collect();
            names.join(" ")
        };
        assert_eq!([of("m1"), of("m2"), of("m3")], ["a0 a1 b0 b1", "a2 a3", "a4 c0"]);
    }
}
