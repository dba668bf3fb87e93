//! `ConsumerGroupHeartbeat`: joins or leaves a consumer group, renews the membership, and receives the assignment
//! (KIP-848).

use crate::Uuid;

api! {
    ConsumerGroupHeartbeat, key 68, versions 0..=1, flexible 0..;

    request ConsumerGroupHeartbeatRequest {
        group_id: String;
        member_id: String;
        member_epoch: i32;
        instance_id: Option<String>;
        rack_id: Option<String>;
        rebalance_timeout_ms: i32 = -1;
        subscribed_topic_names: Option<Vec<String>>;
        subscribed_topic_regex: Option<String>, in 1..;
        server_assignor: Option<String>;
        topic_partitions: Option<Vec<TopicPartitions>>;
    }

    struct TopicPartitions {
        topic_id: Uuid;
        partitions: Vec<i32>;
    }

    response ConsumerGroupHeartbeatResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        member_id: Option<String>;
        member_epoch: i32;
        heartbeat_interval_ms: i32;
        assignment: Option<Assignment>;
    }

    struct Assignment {
        topic_partitions: Vec<TopicPartitions>;
    }
}
