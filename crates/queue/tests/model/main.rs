//! Any sequence of operations and crashes does to a queue what it does to a simple version of one, and breaks no rule
//! that consumers rely upon. That the rules are watched is shown by faults that are planted and must be found.

mod naive;
mod ops;
mod rules;
mod world;

use mainstem_queue::Config;
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
    fn a_queue_does_what_a_simple_one_does(config in ops::config(), ops in ops::ops(150)) {
        let world = run(config, ops::EVERYTHING, &ops, Fault::None)?;
        world.come_to_rest().map_err(TestCaseError::fail)?;
    }

    #[test]
    fn a_queue_with_groups_that_are_behind_does_what_a_simple_one_does(
        config in ops::config(),
        known_max in ops::known_max(),
        ops in ops::ops_of_slow_groups(200),
    ) {
        let world = run(config, known_max, &ops, Fault::None)?;
        world.come_to_rest().map_err(TestCaseError::fail)?;
    }
}

/// Runs a queue in a world with a fault until a rule is broken; says which.
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
fn that_the_next_of_a_key_comes_too_early_is_found() {
    let found = find(Fault::ToldEarly, &[("lease-ms", "100")]);
    assert!(found.contains("order of a key"), "{found}");
}

#[test]
fn that_a_settled_message_returns_is_found() {
    let found = find(Fault::LosesBatch, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(found.contains("settled message returns") || found.contains("leaves again"), "{found}");
}

#[test]
fn that_a_message_leaves_twice_is_found() {
    let found = find(Fault::ForgetsArrival, &[("lease-ms", "100"), ("max-deliveries", "1")]);
    assert!(found.contains("leaves again"), "{found}");
}

#[test]
fn that_two_consumers_have_one_message_is_found() {
    let found = find(Fault::EndsLeasesEarly, &[("lease-ms", "100"), ("max-deliveries", "0")]);
    assert!(found.contains("two consumers"), "{found}");
}

#[test]
fn that_a_duplicate_is_delivered_is_found() {
    let found = find(Fault::OverlooksIdentifiers, &[("lease-ms", "100"), ("dedup-window-ms", "500")]);
    assert!(found.contains("duplicate"), "{found}");
}

#[test]
fn that_a_part_of_a_snapshot_is_lost_is_found() {
    let found = find(Fault::LosesParts, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(found.contains("pending"), "{found}");
}

#[test]
fn that_a_group_is_not_told_of_a_message_again_is_found() {
    let found = find_among(Fault::Withholds, &[("lease-ms", "100")], 4, &ops::ops_of_slow_groups(100));
    assert!(found.contains("withheld"), "{found}");
}

#[test]
fn that_receipts_of_two_lives_are_alike_is_found() {
    let found = find(Fault::LivesOn, &[("lease-ms", "100"), ("max-deliveries", "0"), ("fifo", "false")]);
    assert!(found.contains("one receipt"), "{found}");
}

#[test]
fn that_a_count_does_not_last_is_found() {
    let found = find(Fault::LosesBatchUnseen, &[("lease-ms", "100"), ("fifo", "false")]);
    assert!(
        ["pending", "returns", "groups", "duplicates"].iter().any(|rule| found.contains(rule)),
        "{found}"
    );
}
