//! Consumer groups, tested through the public interface: requests in, effects out.

mod consumer;
mod consumer_model;
mod failures;
mod format;
mod harness;
mod join;
mod limits;
mod migration;
mod migration_model;
mod model;
mod offsets;
mod rebalance;
mod restart;
mod static_members;
mod transactions;
