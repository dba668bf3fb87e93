//! `ConsumerGroupDescribe`: reports state, members and assignments of consumer groups (KIP-848, KIP-1099).

use crate::Uuid;

api! {
    ConsumerGroupDescribe, key 69, versions 0..=1, flexible 0..;

    request ConsumerGroupDescribeRequest {
        group_ids: Vec<String>;
        include_authorized_operations: bool;
    }

    response ConsumerGroupDescribeResponse {
        throttle_time_ms: i32;
        groups: Vec<DescribedGroup>;
    }

    struct DescribedGroup {
        error_code: i16;
        error_message: Option<String>;
        group_id: String;
        group_state: String;
        group_epoch: i32;
        assignment_epoch: i32;
        assignor_name: String;
        members: Vec<Member>;
        authorized_operations: i32 = i32::MIN;
    }

    struct Member {
        member_id: String;
        instance_id: Option<String>;
        rack_id: Option<String>;
        member_epoch: i32;
        client_id: String;
        client_host: String;
        subscribed_topic_names: Vec<String>;
        subscribed_topic_regex: Option<String>;
        assignment: Assignment;
        target_assignment: Assignment;
        member_type: i8 = -1, in 1..;
    }

    struct Assignment {
        topic_partitions: Vec<TopicPartitions>;
    }

    struct TopicPartitions {
        topic_id: Uuid;
        topic_name: String;
        partitions: Vec<i32>;
    }
}
