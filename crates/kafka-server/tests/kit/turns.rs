//! Turns of a broker while a long request is handled.

use mainstem_kafka::Request;
use mainstem_kafka::api::describe_groups::DescribeGroupsRequest;

use super::{Broker, Client};

/// About 1.5 ms of a core. One opening of a log is 3,000 units, and a request may do 5,000 at once.
pub(crate) const TURN_UNITS_MAX: u64 = 15_000;

/// Runs turns until a client has its response. Returns the turns.
#[track_caller]
pub(crate) fn turns_until<R: Request>(
    broker: &mut Broker,
    client: Client,
    version: i16,
    mut each: impl FnMut(&mut Broker),
) -> (R::Response, u32) {
    for turns in 1..100_000 {
        broker.turn(1);
        each(broker);
        if let Some(response) = broker.take::<R>(client, version) {
            return (response, turns);
        }
    }
    panic!("no response")
}

#[track_caller]
pub(crate) fn check_turn(broker: &mut Broker) {
    (0..2).for_each(|shard| check_shard(broker, shard));
}

#[track_caller]
pub(crate) fn check_shard(broker: &mut Broker, shard: usize) {
    let units = broker.charged(shard);
    assert!(units <= TURN_UNITS_MAX, "a turn of {units} units");
}

/// Sends a request over many topics or groups from a connection of the second shard. While it is handled, a client of
/// the first shard, which handles it, must be served. Returns the response.
#[track_caller]
pub(crate) fn ask_in_parts<R: Request>(broker: &mut Broker, version: i16, request: &R) -> R::Response {
    let (large, small) = (broker.connect(1), broker.connect(0));
    broker.send(large, version, request);
    broker.turn(2);
    let heartbeat =
        DescribeGroupsRequest { groups: vec!["group".into()], ..DescribeGroupsRequest::default() };
    let mut served = 0;
    broker.send(small, 5, &heartbeat);
    let (response, turns) = turns_until::<R>(broker, large, version, |broker| {
        if broker.take::<DescribeGroupsRequest>(small, 5).is_some() {
            served += 1;
            broker.send(small, 5, &heartbeat);
        }
        check_turn(broker);
    });
    assert!(turns >= 4, "{} is handled in several turns, not in {turns}", R::NAME);
    assert!(served * 5 >= turns, "{}: others are served {served} times in {turns} turns", R::NAME);
    response
}
