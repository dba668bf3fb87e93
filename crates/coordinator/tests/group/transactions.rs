//! Offsets of transactions: pending until commit, dropped on abort.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::TransactionEnd::{Abort, Commit};

use crate::harness::{Harness, member};

#[test]
fn pending_offsets_take_effect_at_commit() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.commit_in_transaction(7, None, 0, 2).unwrap();
    assert_eq!(harness.fetch(0), Some(1));
    assert_eq!(harness.fetch_with(0, true), Err(Error::UnstableOffsetCommit));
    harness.end_transaction(7, Commit);
    assert_eq!(harness.fetch_with(0, true).unwrap().unwrap().offset, 2);
    harness.commit_in_transaction(7, None, 0, 3).unwrap();
    harness.end_transaction(7, Abort);
    assert_eq!(harness.fetch(0), Some(2));
    harness.end_transaction(7, Commit);
    assert_eq!(harness.fetch(0), Some(2), "ending a transaction without offsets does nothing");
}

#[test]
fn last_txn_offset_commit_wins_regardless_of_commit_order() {
    for (first, second) in [(1, 2), (2, 1)] {
        for restart in [false, true] {
            let mut harness = Harness::default();
            harness.commit_in_transaction(1, None, 0, 10).unwrap();
            harness.commit_in_transaction(2, None, 0, 20).unwrap();
            harness.end_transaction(first, Commit);
            if restart {
                harness.restart_compacted();
            }
            harness.end_transaction(second, Commit);
            assert_eq!(harness.fetch(0), Some(20), "{first} before {second}");
        }
    }
}

#[test]
fn later_plain_commit_overrides_a_pending_offset() {
    let mut harness = Harness::default();
    harness.commit_in_transaction(1, None, 0, 10).unwrap();
    harness.commit_simple(0, 5).unwrap();
    harness.end_transaction(1, Commit);
    assert_eq!(harness.fetch(0), Some(5));
}

#[test]
fn pending_offsets_survive_a_restart() {
    let mut harness = Harness::default();
    harness.commit_in_transaction(1, None, 0, 10).unwrap();
    harness.restart();
    assert_eq!(harness.fetch_with(0, true), Err(Error::UnstableOffsetCommit));
    harness.end_transaction(1, Commit);
    harness.restart_compacted();
    assert_eq!(harness.fetch_with(0, true).unwrap().unwrap().offset, 10);
}

#[test]
fn members_are_fenced_in_transactions_too_kip_447() {
    let mut harness = Harness::default();
    assert_eq!(harness.commit_in_transaction(1, Some(("nobody", 1)), 0, 1), Err(Error::IllegalGeneration));
    let ids = harness.stable(2);
    let cases = [
        (Some((ids[0].as_str(), 1)), Ok(())),
        (Some((&ids[0], 0)), Err(Error::IllegalGeneration)),
        (Some(("nobody", 1)), Err(Error::UnknownMemberId)),
        (None, Ok(())),
    ];
    for (who, outcome) in cases {
        assert_eq!(harness.commit_in_transaction(1, who, 0, 1), outcome, "{who:?}");
    }
    harness.join(&member(&ids[0]));
    harness.join(&member(&ids[1]));
    assert_eq!(
        harness.commit_in_transaction(1, Some((&ids[0], 2)), 0, 1),
        Ok(()),
        "accepted even while the leader assigns"
    );
}

#[test]
fn offsets_with_a_pending_transaction_do_not_expire() {
    let mut harness = Harness::default();
    harness.commit_simple(0, 1).unwrap();
    harness.commit_in_transaction(1, None, 0, 2).unwrap();
    harness.wait(8 * 24 * 60 * 60 * 1_000);
    assert_eq!(harness.fetch(0), Some(1));
    harness.end_transaction(1, Abort);
    harness.wait(600_000);
    assert!(harness.groups.is_empty());
}
