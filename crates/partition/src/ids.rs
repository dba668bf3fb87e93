//! Identifiers of topics, partitions and pending requests.

/// Identifier of a topic (KIP-516). It never changes, and a topic that is deleted and created again gets a new one.
/// The default, all zero, is no topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// The identifier in names of logs and keys: 32 hexadecimal digits.
    pub fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Parses the digits that [`Self::to_hex`] writes.
    pub fn from_hex(digits: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = u128::from_str_radix(digits, 16).ok()?;
        (digits.len() == 32 && digits.bytes().all(is_digit)).then_some(Self(number.to_be_bytes()))
    }
}

/// Identifies a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId {
    /// The topic.
    pub topic: TopicId,
    /// Partition number within the topic.
    pub index: i32,
}

/// What precedes a partition in the name of its log.
const LOG_PREFIX: &str = "p-";

impl PartitionId {
    /// The name of the partition's log.
    pub fn log_name(self) -> String {
        format!("{LOG_PREFIX}{}-{}", self.topic.to_hex(), self.index)
    }

    /// The partition whose log has this name; `None` if it is another log.
    pub fn from_log_name(name: &str) -> Option<Self> {
        let (topic, index) = name.strip_prefix(LOG_PREFIX)?.split_once('-')?;
        Some(Self { topic: TopicId::from_hex(topic)?, index: index.parse().ok()? })
    }
}

/// Identifies a pending request: the shard that has it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobId {
    /// The shard of the request.
    pub shard: usize,
    /// Its number on that shard.
    pub job: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_names_round_trip() {
        let id = PartitionId { topic: TopicId([0xa5; 16]), index: 12 };
        assert_eq!(PartitionId::from_log_name(&id.log_name()), Some(id));
        for other in ["kafka-catalogue", "p-", "p-12-0", "p-a5-x", "journal"] {
            assert_eq!(PartitionId::from_log_name(other), None, "{other}");
        }
    }
}
