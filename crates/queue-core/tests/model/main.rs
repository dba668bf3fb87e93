//! Model test: random operations and crashes have the same effect on a [`Queue`](mainstem_queue_core::Queue) and on a
//! naive implementation, and break no rule that consumers rely on. Planted faults show that the rules are checked.

mod naive;
mod ops;
mod rules;
mod world;

use mainstem_queue_core::Config;
use ops::Op;
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestError, TestRunner};
use world::{Fault, World};

fn run(config: Config, known_max: u64, ops: &[Op], fault: Fault) -> Result<World, TestCaseError> {
    let mut world = World::new(config, known_max, fault);
    for op in ops {
        world.apply(op).map_err(|broken| TestCaseError::fail(format!("{op:?}: {broken}")))?;
    }
    Ok(world)
}

proptest! {
    #![proptest_config(Runs { failure_persistence: None, ..Runs::default() })]

    #[test]
    fn a_queue_matches_the_naive_implementation(config in ops::config(), ops in ops::ops(150)) {
        let world = run(config, ops::EVERYTHING, &ops, Fault::None)?;
        world.drain().map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_queue_with_lagging_groups_matches_the_naive_implementation(
        config in ops::config(),
        known_max in ops::known_max(),
        ops in ops::ops_of_slow_groups(200),
    ) {
        let world = run(config, known_max, &ops, Fault::None)?;
        world.drain().map_err(TestCaseError::fail)?;
    }
}

/// Runs a queue with a fault until a check fails. Returns the failure.
fn find(fault: Fault, pairs: &[(&str, &str)]) -> String {
    find_among(fault, pairs, ops::EVERYTHING, &ops::ops(100))
}

fn find_among(
    fault: Fault,
    pairs: &[(&str, &str)],
    known_max: u64,
    ops: &impl Strategy<Value = Vec<Op>>,
) -> String {
    let runs = Runs { cases: 20_000, max_shrink_iters: 0, failure_persistence: None, ..Runs::default() };
    let config = Config::from_pairs(pairs.iter().copied()).expect("they are settings");
    let found = TestRunner::new_with_rng(
        runs,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    )
    .run(ops, |ops| run(config.clone(), known_max, &ops, fault).map(drop));
    match found {
        Err(TestError::Fail(reason, _)) => reason.message().to_owned(),
        other => panic!("{fault:?} was not found: {other:?}"),
    }
}

#[test]
fn finds_a_lost_order_by_key() {
    let found = find(Fault::EarlyDurable, &[("lease-ms", "100")]);
    assert!(found.contains("order of a key"), "{found}");
}

#[test]
fn finds_a_settled_message_that_returns() {
    let found = find(Fault::LostBatch, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(found.contains("settled message returns") || found.contains("leaves again"), "{found}");
}

#[test]
fn finds_a_message_transferred_twice() {
    let found = find(Fault::LostArrival, &[("lease-ms", "100"), ("max-deliveries", "1")]);
    assert!(found.contains("leaves again"), "{found}");
}

#[test]
fn finds_two_consumers_with_one_message() {
    let found = find(Fault::EarlyLeaseEnd, &[("lease-ms", "100"), ("max-deliveries", "0")]);
    assert!(found.contains("two consumers"), "{found}");
}

#[test]
fn finds_a_delivered_duplicate() {
    let found = find(Fault::LostIdentifiers, &[("lease-ms", "100"), ("dedup-window-ms", "500")]);
    assert!(found.contains("duplicate"), "{found}");
}

#[test]
fn finds_a_lost_snapshot_part() {
    let found = find(Fault::LostParts, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(found.contains("pending"), "{found}");
}

#[test]
fn finds_a_message_withheld_from_a_lagging_group() {
    let found = find_among(Fault::WithheldMessage, &[("lease-ms", "100")], 4, &ops::ops_of_slow_groups(100));
    assert!(found.contains("withheld"), "{found}");
}

#[test]
fn finds_a_receipt_repeated_after_a_restart() {
    let found =
        find(Fault::SameIncarnation, &[("lease-ms", "100"), ("max-deliveries", "0"), ("fifo", "false")]);
    assert!(found.contains("one receipt"), "{found}");
}

#[test]
fn finds_a_lost_delivery_count() {
    let found = find(Fault::LostBatchUnseen, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(
        ["pending", "returns", "groups", "duplicates"].iter().any(|rule| found.contains(rule)),
        "{found}"
    );
}
