//! The attacks as data. To add one, write a function in `attacks/` and an entry here.

use super::attacker::{Attack, Attacker, Protocol};
use super::attacks::{connections, http, kafka, packets, sessions};
use Protocol::{Http, Kafka, Mqtt};
use std::io;

const fn attack(
    name: &'static str,
    protocol: Protocol,
    attackers: usize,
    about: &'static str,
    round: fn(&mut Attacker<'_>) -> io::Result<()>,
) -> Attack {
    Attack { name, about, protocol, attackers, memory: false, smoke: false, round }
}

/// Aims at memory.
const fn on_memory(attack: Attack) -> Attack {
    Attack { memory: true, ..attack }
}

/// An attack that the smoke run includes.
const fn smoke(attack: Attack) -> Attack {
    Attack { smoke: true, ..attack }
}

/// All attacks, in the order of a run.
pub(super) const ATTACKS: &[Attack] = &[
    // Work that one packet causes.
    attack(
        "overlapping-filters",
        Mqtt,
        1,
        "9,900 filters of 30 levels that all match, then tiny publishes",
        sessions::overlapping_filters,
    ),
    attack(
        "repeated-filter",
        Mqtt,
        1,
        "SUBSCRIBE of 16 MiB with 4 million copies of one filter",
        packets::repeated_filter,
    ),
    attack(
        "repeated-unsubscribe",
        Mqtt,
        1,
        "UNSUBSCRIBE of 16 MiB with 5 million copies of one filter",
        packets::repeated_unsubscribe,
    ),
    attack(
        "most-filters",
        Mqtt,
        1,
        "SUBSCRIBE and UNSUBSCRIBE with 131,072 filters each, in a loop",
        packets::most_filters,
    ),
    attack(
        "most-filters-gone",
        Mqtt,
        4,
        "SUBSCRIBE with 131,072 filters of clients that leave at once",
        packets::most_filters_gone,
    ),
    attack(
        "vanishing-subscribers",
        Mqtt,
        1,
        "20 clients with 9,900 subscriptions disconnect at once",
        sessions::vanishing_subscribers,
    ),
    smoke(attack("deep-topic", Mqtt, 2, "a topic of 65,536 levels, a filter of 32,768", packets::deep_topic)),
    smoke(attack(
        "truncated-subscribe",
        Mqtt,
        4,
        "SUBSCRIBE that ends inside its last filter",
        packets::truncated_subscribe,
    )),
    smoke(attack(
        "publish-without-id",
        Mqtt,
        4,
        "PUBLISH at QoS 1 without a packet identifier",
        packets::publish_without_id,
    )),
    smoke(attack(
        "subscribe-without-options",
        Mqtt,
        4,
        "SUBSCRIBE without an options byte",
        packets::subscribe_without_options,
    )),
    attack(
        "connect-properties",
        Mqtt,
        2,
        "CONNECT with a million user properties",
        packets::connect_properties,
    ),
    smoke(attack(
        "topic-aliases",
        Mqtt,
        2,
        "topic aliases, each set to new topics of 60 kB",
        packets::topic_aliases,
    )),
    attack(
        "subscription-churn",
        Mqtt,
        2,
        "subscribe to and unsubscribe from 1,000 filters",
        packets::subscription_churn,
    ),
    smoke(attack(
        "unreleased-qos2",
        Mqtt,
        2,
        "QoS 2 publishes that are never released",
        packets::unreleased_qos2,
    )),
    // Floods.
    smoke(attack("ping-flood", Mqtt, 2, "PINGREQ without end", packets::ping_flood)),
    smoke(attack("tiny-packets", Mqtt, 2, "PUBLISH of five bytes without end", packets::tiny_packets)),
    // The edge.
    attack(
        "garbage-4",
        Mqtt,
        4,
        "4 attackers write garbage after a refusal",
        connections::garbage_after_refusal,
    ),
    attack(
        "garbage-20",
        Mqtt,
        20,
        "20 attackers write garbage after a refusal",
        connections::garbage_after_refusal,
    ),
    smoke(attack(
        "huge-first-packet",
        Mqtt,
        4,
        "a first packet that claims 256 MiB",
        connections::huge_first_packet,
    )),
    attack(
        "session-churn",
        Mqtt,
        4,
        "connect, subscribe to 100 filters, publish to them, disconnect",
        sessions::session_churn,
    ),
    attack("connect-storm", Mqtt, 4, "connect, send CONNECT, leave", connections::connect_storm),
    smoke(attack("never-connect", Mqtt, 4, "800 connections without CONNECT", connections::never_connect)),
    attack(
        "slow-connect",
        Mqtt,
        2,
        "400 connections that send CONNECT byte by byte",
        connections::slow_connect,
    ),
    // Sessions.
    attack("slow-reader-qos0", Mqtt, 1, "20 subscribers that never read, QoS 0", sessions::slow_reader_qos0),
    attack("slow-reader-qos1", Mqtt, 1, "20 subscribers that never read, QoS 1", sessions::slow_reader_qos1),
    attack("slow-reader-qos2", Mqtt, 1, "20 subscribers that never read, QoS 2", sessions::slow_reader_qos2),
    attack(
        "retained-flood",
        Mqtt,
        3,
        "50,000 retained messages, and `#` subscribed in a loop",
        sessions::retained_flood,
    ),
    attack(
        "retained-visits",
        Mqtt,
        3,
        "50,000 retained messages, and filters that visit all and match none",
        sessions::retained_visits,
    ),
    attack(
        "in-flight-reconnect",
        Mqtt,
        2,
        "sessions with 60,000 unacknowledged messages that reconnect again and again",
        sessions::in_flight_reconnect,
    ),
    attack(
        "trickling-readers",
        Mqtt,
        1,
        "20 subscribers at QoS 0 that read a tenth of what they could get",
        sessions::trickling_readers,
    ),
    attack("wide-fan-out", Mqtt, 1, "tiny publishes to 500 subscribers", sessions::wide_fan_out),
    smoke(attack("take-over", Mqtt, 4, "4 clients with one client identifier", sessions::take_over)),
    attack(
        "will-loop",
        Mqtt,
        2,
        "100 clients that receive each other's wills vanish and return",
        sessions::will_loop,
    ),
    // Memory.
    on_memory(attack(
        "queued-properties",
        Mqtt,
        1,
        "600 queued messages of 1 byte with 975 kB of user properties",
        sessions::queued_properties,
    )),
    on_memory(attack(
        "retained-properties",
        Mqtt,
        1,
        "600 retained messages of 1 byte with 975 kB of user properties",
        sessions::retained_properties,
    )),
    on_memory(attack("large-filters", Mqtt, 1, "9,900 filters of 60 kB", sessions::large_filters)),
    on_memory(attack("large-wills", Mqtt, 4, "40 wills of 14 MB", sessions::large_wills)),
    on_memory(attack(
        "unfinished-requests",
        Kafka,
        1,
        "20 unfinished requests of 40 MB",
        kafka::unfinished_requests,
    )),
    on_memory(attack("zstd-bomb", Kafka, 2, "batches that decompress to 200 MiB, zstd", kafka::zstd_bomb)),
    on_memory(attack("lz4-bomb", Kafka, 2, "batches that decompress to 200 MiB, lz4", kafka::lz4_bomb)),
    on_memory(attack(
        "deep-json",
        Http,
        2,
        "JSON of 8 MiB: nested, and millions of messages",
        http::deep_json,
    )),
    // Kafka.
    attack(
        "fresh-partitions",
        Kafka,
        1,
        "a Produce request that opens 8,000 partitions",
        kafka::fresh_partitions,
    ),
    attack("topic-deletion", Kafka, 1, "deletion of 1,000 topics", kafka::topic_deletion),
    attack("wide-fetch", Kafka, 2, "Fetch from 4,000 partitions without end", kafka::wide_fetch),
    attack("metadata", Kafka, 2, "Metadata of 1,000 topics without end", kafka::metadata),
    attack("many-names", Kafka, 1, "Metadata of 500,000 names, without end", kafka::many_names),
    attack("many-groups", Kafka, 1, "DescribeGroups of 500,000 groups, without end", kafka::many_groups),
    attack("many-deletions", Kafka, 1, "DeleteTopics of 500,000 topics, without end", kafka::many_deletions),
    attack("many-partitions", Kafka, 1, "Produce to 500,000 partitions, without end", kafka::many_partitions),
    attack("many-offsets", Kafka, 1, "OffsetCommit of 500,000 partitions, without end", kafka::many_offsets),
    attack(
        "many-offset-deletions",
        Kafka,
        1,
        "OffsetDelete of 500,000 partitions, without end",
        kafka::many_offset_deletions,
    ),
    attack(
        "many-participants",
        Kafka,
        1,
        "AddPartitionsToTxn with 500,000 partitions, without end",
        kafka::many_participants,
    ),
    smoke(attack("api-versions", Kafka, 4, "ApiVersions without end", kafka::api_versions)),
    smoke(attack("kafka-garbage", Kafka, 4, "frames of random bytes", kafka::garbage_frames)),
    smoke(attack("kafka-lengths", Kafka, 2, "frames of negative and absurd lengths", kafka::frame_lengths)),
    // HTTP and work queues.
    smoke(attack("idle-http", Http, 1, "256 idle HTTP connections", connections::idle_http)),
    attack("snapshots", Http, 1, "a snapshot every 50 ms, for a backup that is never made", http::snapshots),
    attack("long-polls", Http, 1, "250 requests that wait for messages", http::long_polls),
    attack("slow-bodies", Http, 1, "100 request bodies that arrive byte by byte", http::slow_bodies),
    attack("receive-loop", Http, 4, "receive from an empty queue without end", http::receive_loop),
    attack("nack-storm", Http, 2, "receive 1,000 messages and refuse them, without end", http::nack_storm),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = ATTACKS.iter().map(|attack| attack.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ATTACKS.len());
        assert!(ATTACKS.iter().all(|attack| attack.attackers > 0));
    }

    #[test]
    fn smoke_covers_every_protocol() {
        for protocol in [Mqtt, Kafka, Http] {
            assert!(ATTACKS.iter().any(|attack| attack.smoke && attack.protocol == protocol), "{protocol:?}");
        }
    }
}
