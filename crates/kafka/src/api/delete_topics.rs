//! `DeleteTopics`: deletes topics, by name or by id.

use crate::Uuid;

api! {
    DeleteTopics, key 20, versions 1..=6, flexible 4..;

    request DeleteTopicsRequest {
        topics: Vec<DeleteTopicState>, in 6..;
        topic_names: Vec<String>, in ..=5;
        timeout_ms: i32;
    }

    struct DeleteTopicState {
        name: Option<String>;
        topic_id: Uuid;
    }

    response DeleteTopicsResponse {
        throttle_time_ms: i32;
        responses: Vec<DeletableTopicResult>;
    }

    struct DeletableTopicResult {
        name: Option<String>, null 6..;
        topic_id: Uuid, in 6..;
        error_code: i16;
        error_message: Option<String>, in 5..;
    }
}
