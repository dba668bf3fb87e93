//! Where tests plant bugs: between a broker and its stores, and between a broker and its clients.

use std::sync::Arc;

use mainstem_queue_core::{Reply, Request};

use crate::WrapStore;

/// A bug of a broker, made of hooks on what enters and leaves it. By default, every hook passes on what it is given.
pub trait FaultInjector {
    /// Returns the function that wraps each store.
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| store)
    }

    /// A packet of an MQTT client: returns what the broker receives.
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }

    /// A packet for an MQTT client: returns what is received, and by which client. Only the MQTT scenario delivers to
    /// another client than the broker intended.
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        vec![(client, frame)]
    }

    /// The frame of a Kafka client's request: returns what the broker receives.
    fn kafka_request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }

    /// The body of a Kafka response.
    fn kafka_response(&mut self, _api_key: i16, _version: i16, _body: &mut Vec<u8>) {}

    /// A request to a queue.
    fn queue_request(&mut self, _queue: &str, _request: &mut Request) {}

    /// The reply of a queue to a request as it was before [`FaultInjector::queue_request`].
    fn queue_reply(&mut self, _queue: &str, _request: &Request, _reply: &mut Reply) {}
}

/// No bug.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFault;

impl FaultInjector for NoFault {}
