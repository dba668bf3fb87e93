//! The in-memory store passes the contract suite.

use mainstem_log::contract::{self, StoreFactory};
use mainstem_log::{MemoryStore, Store};
use proptest::prelude::*;

struct InMemory;

impl StoreFactory for InMemory {
    fn fresh(&mut self) -> Box<dyn Store> {
        Box::new(MemoryStore::new())
    }

    fn reopen(&mut self, _: Box<dyn Store>) -> Option<Box<dyn Store>> {
        None
    }
}

#[test]
fn passes_the_contract() {
    contract::run(&mut InMemory);
}

proptest! {
    #[test]
    fn matches_the_reference_log(steps in prop::collection::vec(any::<contract::Step>(), 0..120)) {
        contract::run_steps(&mut InMemory, &steps);
    }
}
