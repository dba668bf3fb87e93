//! Where tests plant bugs: between the broker and its stores, and between queues and those who ask them.

use std::sync::Arc;

use mainstem_queue::{Reply, Request};

use crate::machine::Wrap;

/// Something that is wrong with a broker. The one that does nothing is right.
pub trait Flaw {
    /// What each store is wrapped in.
    fn wrap(&self) -> Wrap {
        Arc::new(|store| store)
    }

    /// What a queue is asked: it may be changed.
    fn request(&mut self, _queue: &str, _request: &mut Request) {}

    /// What a subscriber says of a message: it may be changed.
    fn puback(&mut self, _frame: &mut Vec<u8>) {}

    /// What a publisher says: it may be changed, or become several packets or none.
    fn publisher_says(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }

    /// What a publisher is told: it may be changed.
    fn publisher_hears(&mut self, _frame: &mut Vec<u8>) {}

    /// What a queue answers to what it was asked at first: it may be changed.
    fn reply(&mut self, _queue: &str, _request: &Request, _reply: &mut Reply) {}
}

impl Flaw for crate::Sound {}
