//! The contract suite: tests that every [`Store`] implementation must pass.
//!
//! [`run`] executes [`CASES`], one guarantee each. [`run_steps`] applies random steps to a store and to a reference
//! implementation and compares the two. Both panic at the first violation.
//!
//! `harness` drives a store and checks ticket order · `cases` · `reference` the reference log · `steps` random steps.

mod cases;
mod harness;
mod reference;
mod steps;

pub use cases::CASES;
pub use reference::{ReferenceLog, batch};
pub use steps::{Step, run_steps};

use crate::Store;

/// Creates the stores under test.
pub trait StoreFactory {
    /// Returns an empty store that shares no state with earlier ones.
    fn fresh(&mut self) -> Box<dyn Store>;

    /// Returns the same store after a clean restart of its process, or `None` if it is not persistent.
    fn reopen(&mut self, store: Box<dyn Store>) -> Option<Box<dyn Store>>;

    /// Waits until completions may have arrived. Returns `false` if none can arrive between calls, as in a store that
    /// does all its work inside its calls.
    fn wait(&mut self) -> bool {
        false
    }
}

/// Runs each of [`CASES`] against a fresh store of `factory`.
///
/// # Panics
/// If a guarantee is violated. The last line printed names the case.
pub fn run(factory: &mut dyn StoreFactory) {
    for (name, case) in CASES {
        println!("{name}");
        case(factory);
    }
}
