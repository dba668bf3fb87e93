//! Where tests plant bugs: between the broker and its stores, and between the broker and its clients.

use std::sync::Arc;

use crate::machine::Wrap;

/// Something that is wrong with a broker. The one that does nothing is right.
pub trait Flaw {
    /// What each store is wrapped in.
    fn wrap(&self) -> Wrap {
        Arc::new(|store| store)
    }

    /// A client's request, as a frame: what arrives of it.
    fn request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }

    /// The body of a response to this version of an API: it may be changed.
    fn response(&mut self, _api_key: i16, _version: i16, _body: &mut Vec<u8>) {}

    /// A packet of a publisher: what arrives of it.
    fn packet(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        vec![frame]
    }
}

impl Flaw for crate::Sound {}
