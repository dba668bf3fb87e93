//! The suite that every [`Store`](crate::Store) passes: what a store promises, as tests against any of them.
