//! Consumer groups, seen from outside: what goes in, and what comes out when.

mod desk;
mod format;
mod join;
mod limits;
mod model;
mod offsets;
mod rebalance;
mod restart;
mod statics;
mod transactions;
