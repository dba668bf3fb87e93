//! `DeleteTopics` (key 20): deletes topics, by name or by id.

use crate::Uuid;

request!(DeleteTopicsRequest => DeleteTopicsResponse, key 20, versions 1..=6, flexible 4..);

message! {
    pub struct DeleteTopicsRequest {
        topics: Vec<DeleteTopicState>, in 6..;
        topic_names: Vec<String>, in ..=5;
        timeout_ms: i32;
    }
}

message! {
    pub struct DeleteTopicState {
        name: Option<String>;
        topic_id: Uuid;
    }
}

message! {
    pub struct DeleteTopicsResponse {
        throttle_time_ms: i32;
        responses: Vec<DeletableTopicResult>;
    }
}

message! {
    pub struct DeletableTopicResult {
        name: Option<String>, null 6..;
        topic_id: Uuid, in 6..;
        error_code: i16;
        error_message: Option<String>, in 5..;
    }
}
