//! Where tests plant bugs: between the broker and its stores, and between the broker and its clients.

use std::sync::Arc;

use crate::machine::Wrap;

/// Something that is wrong with a broker. The one that does nothing is right.
pub trait Flaw {
    /// What each store is wrapped in.
    fn wrap(&self) -> Wrap {
        Arc::new(|store| store)
    }

    /// A packet from the broker for a client: what becomes of it, and who gets it.
    fn to_client(&mut self, client: usize, frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        vec![(client, frame)]
    }

    /// A packet from a client.
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }
}

/// No flaw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sound;

impl Flaw for Sound {}
