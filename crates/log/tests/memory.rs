//! The store in memory keeps every promise of a store.

use mainstem_log::contract::{self, Subject};
use mainstem_log::{Memory, Store};
use proptest::prelude::*;

struct InMemory;

impl Subject for InMemory {
    fn fresh(&mut self) -> Box<dyn Store> {
        Box::new(Memory::new())
    }

    fn reopen(&mut self, _: Box<dyn Store>) -> Option<Box<dyn Store>> {
        None
    }
}

#[test]
fn it_keeps_the_contract() {
    contract::run(&mut InMemory);
}

proptest! {
    #[test]
    fn it_is_the_plain_version(steps in prop::collection::vec(any::<contract::Step>(), 0..120)) {
        contract::follow(&mut InMemory, &steps);
    }
}
