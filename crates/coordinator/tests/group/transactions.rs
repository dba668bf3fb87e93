//! Offsets of transactions: nobody's until they are committed, and nobody's if they are aborted.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::TransactionEnd::{Abort, Commit};

use crate::desk::{Desk, member};

#[test]
fn a_transaction_s_offsets_count_from_its_end() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    desk.commit_in_transaction(7, None, 0, 2).unwrap();
    assert_eq!(desk.fetch(0), Some(1));
    assert_eq!(desk.fetch_with(0, true), Err(Error::UnstableOffsetCommit));
    desk.end_transaction(7, Commit);
    assert_eq!(desk.fetch_with(0, true).unwrap().unwrap().offset, 2);
    desk.commit_in_transaction(7, None, 0, 3).unwrap();
    desk.end_transaction(7, Abort);
    assert_eq!(desk.fetch(0), Some(2));
    desk.end_transaction(7, Commit);
    assert_eq!(desk.fetch(0), Some(2), "an end without offsets does nothing");
}

#[test]
fn what_was_said_last_counts_whoever_ends_first() {
    for (first, second) in [(1, 2), (2, 1)] {
        for restart in [false, true] {
            let mut desk = Desk::default();
            desk.commit_in_transaction(1, None, 0, 10).unwrap();
            desk.commit_in_transaction(2, None, 0, 20).unwrap();
            desk.end_transaction(first, Commit);
            if restart {
                desk.restart_compacted();
            }
            desk.end_transaction(second, Commit);
            assert_eq!(desk.fetch(0), Some(20), "{first} before {second}");
        }
    }
}

#[test]
fn a_commit_outside_of_the_transaction_that_came_later_stays() {
    let mut desk = Desk::default();
    desk.commit_in_transaction(1, None, 0, 10).unwrap();
    desk.commit_alone(0, 5).unwrap();
    desk.end_transaction(1, Commit);
    assert_eq!(desk.fetch(0), Some(5));
}

#[test]
fn open_transactions_outlive_the_process() {
    let mut desk = Desk::default();
    desk.commit_in_transaction(1, None, 0, 10).unwrap();
    desk.restart();
    assert_eq!(desk.fetch_with(0, true), Err(Error::UnstableOffsetCommit));
    desk.end_transaction(1, Commit);
    desk.restart_compacted();
    assert_eq!(desk.fetch_with(0, true).unwrap().unwrap().offset, 10);
}

#[test]
fn members_are_fenced_in_transactions_too_kip_447() {
    let mut desk = Desk::default();
    assert_eq!(desk.commit_in_transaction(1, Some(("nobody", 1)), 0, 1), Err(Error::IllegalGeneration));
    let ids = desk.stable(2);
    let cases = [
        (Some((ids[0].as_str(), 1)), Ok(())),
        (Some((&ids[0], 0)), Err(Error::IllegalGeneration)),
        (Some(("nobody", 1)), Err(Error::UnknownMemberId)),
        (None, Ok(())),
    ];
    for (who, outcome) in cases {
        assert_eq!(desk.commit_in_transaction(1, who, 0, 1), outcome, "{who:?}");
    }
    desk.join(&member(&ids[0]));
    desk.join(&member(&ids[1]));
    assert_eq!(
        desk.commit_in_transaction(1, Some((&ids[0], 2)), 0, 1),
        Ok(()),
        "not even while the leader assigns is a transaction refused"
    );
}

#[test]
fn offsets_do_not_expire_while_a_transaction_would_change_them() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    desk.commit_in_transaction(1, None, 0, 2).unwrap();
    desk.wait(8 * 24 * 60 * 60 * 1_000);
    assert_eq!(desk.fetch(0), Some(1));
    desk.end_transaction(1, Abort);
    desk.wait(600_000);
    assert!(desk.groups.is_empty());
}
