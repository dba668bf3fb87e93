//! What members of a consumer group tell each other through the broker, and who gets which partitions.

use std::collections::BTreeMap;

use mainstem_kafka::{DecodeError, Reader};

use super::cluster::Partition;

/// The way of assigning that is offered: as `RangeAssignor` of the Java client.
pub(super) const PROTOCOL: &str = "range";

/// What a member wants to read, in version 0 of the format: all versions begin like it.
pub(super) fn subscription(topics: &[String]) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    put_len(topics.len(), &mut bytes);
    for topic in topics {
        put_text(topic, &mut bytes);
    }
    put_no_user_data(&mut bytes);
    bytes
}

/// The topics of a member's subscription.
///
/// # Errors
/// If it is malformed.
pub(super) fn subscribed_topics(bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
    let mut reader = Reader::new(bytes);
    take_version(&mut reader)?;
    take_list(&mut reader, take_text)
}

/// What a member is to read, in version 0 of the format.
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

/// The partitions of an assignment; none if there are no bytes.
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

/// Deals out the partitions: of each topic, every member that wants it gets a run of them, the first ones one more
/// if they do not divide. `wishes` are members and their topics, `counts` the partitions of each topic.
pub(super) fn deal(
    wishes: &BTreeMap<String, Vec<String>>,
    counts: &BTreeMap<String, u32>,
) -> BTreeMap<String, Vec<Partition>> {
    let mut dealt: BTreeMap<String, Vec<Partition>> =
        wishes.keys().map(|member| (member.clone(), Vec::new())).collect();
    for (topic, count) in counts {
        let takers: Vec<&String> =
            wishes.iter().filter(|(_, topics)| topics.contains(topic)).map(|(member, _)| member).collect();
        let each = takers.len() as u32;
        let mut next = 0;
        for (place, member) in (0_u32..).zip(&takers) {
            let run = count / each + u32::from(place < count % each);
            let partitions = dealt.get_mut(*member).expect("a member with a wish");
            partitions.extend((next..next + run).map(|index| (topic.clone(), index.cast_signed())));
            next += run;
        }
    }
    dealt
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
    if version < 0 { Err(DecodeError::Malformed("a version below zero")) } else { Ok(version) }
}

fn take_list<T>(
    reader: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let len = i32::from_be_bytes(reader.array()?);
    // Grows as items come, whatever the length claims.
    (0..len).map(|_| item(reader)).collect()
}

fn take_text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let len = u16::from_be_bytes(reader.array()?);
    let bytes = reader.bytes(len.into())?;
    String::from_utf8(bytes.into()).map_err(|_| DecodeError::Malformed("a name is no UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn subscriptions_and_assignments_are_read_as_they_were_written() {
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
    fn a_subscription_of_a_later_version_has_more_behind() {
        let mut bytes = subscription(&names(&["t"]));
        bytes[1] = 3;
        bytes.extend_from_slice(&[0; 9]);
        assert_eq!(subscribed_topics(&bytes), Ok(names(&["t"])));
    }

    #[test]
    fn every_partition_goes_to_one_member_that_wants_it() {
        let wishes = [("m1", names(&["a", "b"])), ("m2", names(&["a"])), ("m3", names(&["a", "c"]))];
        let wishes = wishes.map(|(member, topics)| (member.to_owned(), topics)).into();
        let counts = [("a".to_owned(), 5), ("b".to_owned(), 2), ("c".to_owned(), 1)].into();
        let dealt = deal(&wishes, &counts);
        let of = |member: &str| {
            let names: Vec<String> =
                dealt[member].iter().map(|(topic, index)| format!("{topic}{index}")).collect();
            names.join(" ")
        };
        assert_eq!([of("m1"), of("m2"), of("m3")], ["a0 a1 b0 b1", "a2 a3", "a4 c0"]);
    }
}
