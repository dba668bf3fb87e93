//! Clients that wait for messages, and go.

use std::time::Duration;

use mainstem_admin::Settings;
use mainstem_queue::{Request, Verdict};
use serde_json::json;

use crate::client::{Connection, Door};

fn is_receive(request: &Request) -> bool {
    matches!(request, Request::Receive { .. })
}

fn is_leave(request: &Request) -> bool {
    matches!(request, Request::Leave { .. })
}

fn is_end_of_wait(request: &Request) -> bool {
    matches!(request, Request::StopWaiting { .. })
}

fn is_release(request: &Request) -> bool {
    matches!(request, Request::Settle { settlements, .. } if settlements[0].verdict == Verdict::Release)
}

fn wait(door: &Door, query: &str) -> Connection {
    let mut connection = door.connect();
    connection.send("POST", &format!("/v1/queues/q/receive?wait_ms=60000&{query}"), "", b"");
    connection
}

fn consumer(request: &Request) -> u64 {
    match request {
        Request::Receive { consumer, .. }
        | Request::Leave { consumer, .. }
        | Request::StopWaiting { consumer, .. } => *consumer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_is_answered_when_a_message_comes() {
    let door = Door::open();
    let mut first = wait(&door, "");
    door.fake.wait_for(is_receive);
    let mut second = wait(&door, "");
    let asked = door.fake.wait_for_several(2, is_receive);
    assert_ne!(consumer(&asked[0]), consumer(&asked[1]), "each has a number of its own");
    door.fake.put(&[b"a", b"b"]);
    assert_eq!(first.answer().is(200).json()["messages"][0]["body"], "a");
    assert_eq!(second.answer().is(200).json()["messages"][0]["body"], "b");
    // Both connections are good for more.
    first.ask("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-1-0000002a"] }"#).is(200);
    second.ask("POST", "/v1/queues/q/ack", r#"{ "receipts": ["1-1-0000002a"] }"#).is(200);
}

#[test]
fn a_client_that_goes_waits_no_longer() {
    let door = Door::open();
    let client = wait(&door, "");
    let asked = door.fake.wait_for(is_receive);
    drop(client);
    let left = door.fake.wait_for(is_leave);
    assert_eq!(consumer(&asked), consumer(&left));
    door.fake.put(&[b"a"]);
    let answer = door.ask("POST", "/v1/queues/q/receive", "").is(200).json();
    assert_eq!(answer["messages"][0]["delivery_count"], 1, "nobody else was given it");
}

#[test]
fn what_a_client_cannot_be_given_any_more_is_released() {
    let settings = Settings { body_bytes_max: 1 << 30, ..Settings::default() };
    let door = Door::open_with(settings);
    // More than any kernel takes for a client that does not read.
    let large = vec![b'x'; 24 << 20];
    door.fake.put(&[&large]);
    let client = wait(&door, "");
    door.fake.wait_for(is_receive);
    drop(client);
    door.fake.wait_for(is_release);
    let answer = door.ask("POST", "/v1/queues/q/receive?wait_ms=60000", "").is(200).json();
    assert_eq!(answer["messages"][0]["delivery_count"], 2);
    door.ask("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-2-0000002a"] }"#).is(200);
}

#[test]
fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    let patience = Duration::from_secs(1);
    let door = Door::open_with(Settings { body_bytes_max: 1 << 30, patience, ..Settings::default() });
    door.fake.put(&[&vec![b'x'; 24 << 20]]);
    let client = wait(&door, "");
    door.fake.wait_for(is_release);
    drop(client);
}

#[test]
fn who_waits_for_messages_is_not_too_slow() {
    let patience = Duration::from_secs(1);
    let door = Door::open_with(Settings { patience, ..Settings::default() });
    let mut client = wait(&door, "");
    door.fake.wait_for(is_receive);
    let mut idle = door.connect();
    idle.ask("GET", "/v1/health/live", "").is(200);
    assert!(idle.try_answer().is_none(), "it is closed when patience is over");
    door.fake.put(&[b"a"]);
    assert_eq!(client.answer().is(200).json()["messages"][0]["body"], "a");
}

#[test]
fn what_a_client_has_is_not_released_when_it_goes() {
    let door = Door::open();
    door.fake.put(&[b"a"]);
    let mut client = wait(&door, "");
    client.answer().is(200);
    drop(client);
    door.ask("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-1-0000002a"] }"#).is(200);
}

#[test]
fn a_consumer_with_a_name_has_one_number_and_one_request() {
    let door = Door::open();
    let mut older = wait(&door, "consumer=worker");
    door.fake.wait_for(is_receive);
    let mut newer = wait(&door, "consumer=worker");
    assert_eq!(older.answer().is(200).json(), json!({ "messages": [] }));
    let asked = door.fake.wait_for_several(2, is_receive);
    assert_eq!(consumer(&asked[0]), consumer(&asked[1]));
    drop(older);
    assert_eq!(door.fake.count(is_leave) + door.fake.count(is_end_of_wait), 0, "it is still there");
    let mut other = wait(&door, "consumer=other");
    let asked = door.fake.wait_for_several(3, is_receive);
    assert_ne!(consumer(&asked[0]), consumer(&asked[2]));
    door.fake.put(&[b"a", b"b"]);
    assert_eq!(newer.answer().is(200).json()["messages"][0]["body"], "a");
    assert_eq!(other.answer().is(200).json()["messages"][0]["body"], "b");
}

#[test]
fn a_consumer_with_a_name_does_not_leave_with_its_connection() {
    let door = Door::open();
    let client = wait(&door, "consumer=worker");
    let asked = door.fake.wait_for(is_receive);
    drop(client);
    let ended = door.fake.wait_for(is_end_of_wait);
    assert_eq!(consumer(&asked), consumer(&ended));
    assert_eq!(door.fake.count(is_leave), 0, "the name is the consumer");
}

#[test]
fn who_waits_is_answered_when_the_broker_ends() {
    let mut door = Door::open();
    let mut client = wait(&door, "");
    door.fake.wait_for(is_receive);
    door.drain();
    assert_eq!(client.answer().is(200).json(), json!({ "messages": [] }));
    // And nobody waits from then on.
    client.send("POST", "/v1/queues/q/receive?wait_ms=60000", "", b"");
    assert_eq!(client.answer().is(200).json(), json!({ "messages": [] }));
    door.end();
    assert!(client.try_answer().is_none());
}
