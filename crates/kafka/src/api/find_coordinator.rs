//! `FindCoordinator`: finds the coordinator of groups or transactions.

api! {
    FindCoordinator, key 10, versions 0..=6, flexible 3..;

    request FindCoordinatorRequest {
        key: String, in ..=3;
        key_type: i8, in 1..;
        coordinator_keys: Vec<String>, in 4..;
    }

    response FindCoordinatorResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16, in ..=3;
        error_message: Option<String>, in 1..=3;
        node_id: i32, in ..=3;
        host: String, in ..=3;
        port: i32, in ..=3;
        coordinators: Vec<Coordinator>, in 4..;
    }

    struct Coordinator {
        key: String;
        node_id: i32;
        host: String;
        port: i32;
        error_code: i16;
        error_message: Option<String>;
    }
}
