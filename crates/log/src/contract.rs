//! The suite that every [`Store`] passes: what a store promises, as tests against any of them.
//!
//! [`run`] runs [`CASES`], all that can be said in a few lines each; [`follow`] does random steps with the store
//! and with the plain version of it, and compares. Both panic at the first promise that is not kept.
//!
//! `bench` drives a store and watches its tickets · `cases` · `plain` the plain version · `steps` random steps.

mod bench;
mod cases;
mod plain;
mod steps;

pub use cases::CASES;
pub use plain::{Plain, batch};
pub use steps::{Step, follow};

use crate::Store;

/// Makes the stores that are tested.
pub trait Subject {
    /// An empty store, that shares nothing with those made before.
    fn fresh(&mut self) -> Box<dyn Store>;

    /// The same store after its process has ended in good order and begun anew; nothing if it does not last.
    fn reopen(&mut self, store: Box<dyn Store>) -> Option<Box<dyn Store>>;

    /// Waits until completions may have arrived. Whether any can: not in a store that does all its work when it
    /// is called.
    fn wait(&mut self) -> bool {
        false
    }
}

/// Runs every one of [`CASES`] against a fresh store of `subject`.
///
/// # Panics
/// If a promise is not kept. What was printed last is the name of the case.
pub fn run(subject: &mut dyn Subject) {
    for (name, case) in CASES {
        println!("{name}");
        case(subject);
    }
}
