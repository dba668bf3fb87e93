//! Offsets: who commits them, who sees them, and when they go.

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    Answer, OffsetCommit, OffsetDelete, OffsetFetch, OffsetToDelete, OffsetsOf, Settings, State, Topic,
    TransactionEnd,
};

use crate::desk::{Desk, GROUP, TOPIC, Who, member, newcomer, one, subscription};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

#[test]
fn a_consumer_outside_of_the_protocol_makes_a_group_of_offsets() {
    let mut desk = Desk::default();
    assert_eq!(desk.fetch(0), None);
    assert_eq!(desk.commit_alone(0, 5), Ok(()));
    assert_eq!(desk.commit_alone(0, 7), Ok(()));
    assert_eq!(desk.fetch(0), Some(7));
    let listed = desk.groups.list(&[], &[]);
    assert_eq!((listed[0].state, listed[0].protocol_type.as_str()), (State::Empty, ""));
}

#[test]
fn commits_are_fenced_by_member_and_generation() {
    let mut desk = Desk::default();
    assert_eq!(desk.commit("nobody", 3, 0, 1), Err(Error::GroupIdNotFound));
    let ids = desk.stable(2);
    let cases = [
        (ids[0].as_str(), 1, Ok(())),
        (&ids[1], 1, Ok(())),
        (&ids[0], 0, Err(Error::IllegalGeneration)),
        (&ids[0], 2, Err(Error::IllegalGeneration)),
        ("nobody", 1, Err(Error::UnknownMemberId)),
        ("", -1, Err(Error::UnknownMemberId)),
    ];
    for (id, generation, outcome) in cases {
        assert_eq!(desk.commit(id, generation, 0, 1), outcome, "{id} {generation}");
    }
    // Before it joins again a member may commit what it has read so far.
    let caller = desk.join(&member(&ids[0]));
    assert_eq!(desk.commit(&ids[1], 1, 0, 2), Ok(()));
    desk.join_now(&member(&ids[1])).1.unwrap();
    assert!(desk.joined(caller).is_some());
    assert_eq!(desk.commit(&ids[1], 2, 0, 3), Err(Error::RebalanceInProgress));
    assert_eq!(desk.commit(&ids[1], 1, 0, 3), Err(Error::IllegalGeneration));
    assert_eq!(desk.fetch(0), Some(2));
}

#[test]
fn a_commit_names_what_was_wrong_partition_by_partition() {
    let mut desk =
        Desk::new(Settings { offset_metadata_max_bytes: 3, offsets_max: 2, ..Settings::default() });
    let mut commit = |partition, metadata, exists| {
        let mut topics = one(partition, 1, metadata);
        topics[0].partitions[0].exists = exists;
        let caller = desk.caller();
        let request = OffsetCommit {
            group_id: GROUP,
            member_id: "",
            instance_id: None,
            generation: -1,
            retention_ms: None,
            no_group: Error::IllegalGeneration,
            topics,
        };
        desk.groups.handle_offset_commit(desk.now_ms, &request, caller);
        desk.committed_outcome(caller)
    };
    assert_eq!(commit(0, "four", true), Err(Error::OffsetMetadataTooLarge));
    assert_eq!(commit(0, "", false), Err(Error::UnknownTopicOrPartition));
    assert_eq!(commit(0, "two", true), Ok(()));
    assert_eq!(commit(1, "", true), Ok(()));
    assert_eq!(commit(2, "", true), Err(Error::InvalidCommitOffsetSize));
    assert_eq!(commit(1, "new", true), Ok(()));
    assert_eq!(desk.fetch_with(1, false).unwrap().unwrap().metadata, "new");
}

#[test]
fn a_group_that_was_only_refused_is_not_made() {
    let mut desk = Desk::new(Settings { offsets_max: 0, ..Settings::default() });
    assert_eq!(desk.commit_alone(0, 1), Err(Error::InvalidCommitOffsetSize));
    assert!(desk.groups.is_empty());
}

#[test]
fn all_offsets_of_several_groups_are_fetched_at_once() {
    let mut desk = Desk::default();
    desk.commit_alone(1, 11).unwrap();
    desk.commit_alone(0, 10).unwrap();
    let caller = desk.caller();
    let groups = ["other", GROUP].map(|group_id| OffsetsOf { group_id, topics: None }).into();
    desk.groups.handle_offset_fetch(&OffsetFetch { groups, require_stable: true }, caller);
    let Some(Answer::Fetch(groups)) = desk.answer(caller) else { panic!("no answer") };
    assert_eq!(groups[0].outcome, Ok(vec![]));
    let topics = groups[1].outcome.as_ref().unwrap();
    assert_eq!(topics[0].name, TOPIC);
    let offsets: Vec<i64> =
        topics[0].partitions.iter().map(|p| p.outcome.as_ref().unwrap().as_ref().unwrap().offset).collect();
    assert_eq!(offsets, [10, 11]);
}

#[test]
fn offsets_of_a_group_without_members_go_seven_days_after_the_last_has_left() {
    let mut desk = Desk::default();
    let ids = desk.stable(1);
    desk.commit(&ids[0], 1, 0, 1).unwrap();
    for _ in 0..20 {
        for _ in 0..DAY_MS / 8_000 {
            desk.now_ms += 8_000;
            assert_eq!(desk.heartbeat(&ids[0], 1), Ok(()));
        }
        desk.groups.tick(desk.now_ms);
    }
    assert_eq!(desk.fetch(0), Some(1), "while there are members, nothing goes");
    desk.leave(&[(&ids[0], None)]);
    desk.wait(7 * DAY_MS - 1);
    assert_eq!(desk.fetch(0), Some(1));
    desk.wait(600_000);
    assert_eq!(desk.fetch(0), None);
    assert!(desk.groups.is_empty());
    desk.restart();
    assert!(desk.groups.is_empty(), "nor does it come back");
}

#[test]
fn offsets_of_consumers_outside_of_the_protocol_go_one_by_one() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    desk.wait(4 * DAY_MS);
    desk.commit_alone(1, 1).unwrap();
    desk.wait(3 * DAY_MS + 600_000);
    assert_eq!((desk.fetch(0), desk.fetch(1)), (None, Some(1)));
    desk.wait(4 * DAY_MS);
    assert!(desk.groups.is_empty());
}

#[test]
fn a_request_may_say_itself_how_long_its_offsets_last() {
    let mut desk = Desk::default();
    let caller = desk.caller();
    let request = OffsetCommit {
        group_id: GROUP,
        member_id: "",
        instance_id: None,
        generation: -1,
        retention_ms: Some(1_000_000),
        no_group: Error::IllegalGeneration,
        topics: one(0, 1, ""),
    };
    desk.groups.handle_offset_commit(desk.now_ms, &request, caller);
    desk.wait(999_999);
    assert_eq!(desk.fetch(0), Some(1));
    desk.wait(600_000);
    assert_eq!(desk.fetch(0), None);
}

/// A member that reads so many topics, stable; its identifier.
fn reader(desk: &mut Desk, topics: &[&str]) -> String {
    let metadata = subscription(topics);
    let (id, _) = desk.join_now(&newcomer());
    desk.join_now(&Who { protocols: vec![("range", &metadata)], ..member(&id) }).1.unwrap();
    let caller = desk.sync(&id, 1, &[]);
    assert!(desk.assignment(caller).is_some());
    id
}

#[test]
fn offsets_of_topics_that_nobody_reads_any_longer_go_while_there_are_members_kip_211() {
    let mut desk = Desk::default();
    let id = reader(&mut desk, &["other"]);
    desk.commit(&id, 1, 0, 1).unwrap();
    for _ in 0..8 * DAY_MS / 8_000 {
        desk.wait(8_000);
        desk.heartbeat(&id, 1).unwrap();
    }
    assert_eq!(desk.fetch(0), None);
    assert_eq!(desk.groups.len(), 1);
}

fn delete_offset(desk: &mut Desk, exists: bool) -> Result<Result<(), Error>, Error> {
    let caller = desk.caller();
    let partitions = vec![OffsetToDelete { partition: 0, exists }];
    let topics = vec![Topic { name: TOPIC, id: [0; 16], partitions }];
    desk.groups.handle_offset_delete(&OffsetDelete { group_id: GROUP, topics }, caller);
    match desk.answer(caller) {
        Some(Answer::OffsetDelete(outcome)) => outcome.map(|topics| topics[0].partitions[0].outcome),
        other => panic!("{other:?} is no answer to OffsetDelete"),
    }
}

#[test]
fn offsets_are_deleted_if_nobody_reads_the_topic() {
    let mut desk = Desk::default();
    assert_eq!(delete_offset(&mut desk, true), Err(Error::GroupIdNotFound));
    desk.commit_alone(0, 1).unwrap();
    assert_eq!(delete_offset(&mut desk, false), Ok(Err(Error::UnknownTopicOrPartition)));
    assert_eq!(delete_offset(&mut desk, true), Ok(Ok(())));
    assert_eq!(desk.fetch(0), None);

    for (topics, outcome) in [(&[TOPIC], Err(Error::GroupSubscribedToTopic)), (&["other"], Ok(()))] {
        let mut desk = Desk::default();
        let id = reader(&mut desk, topics);
        desk.commit(&id, 1, 0, 1).unwrap();
        assert_eq!(delete_offset(&mut desk, true), Ok(outcome));
    }

    let mut desk = Desk::default();
    let connect = Who { protocol_type: "connect", needs_member_id: false, ..newcomer() };
    desk.join_now(&connect).1.unwrap();
    assert_eq!(delete_offset(&mut desk, true), Err(Error::NonEmptyGroup));
}

fn delete_group(desk: &mut Desk) -> Result<(), Error> {
    let caller = desk.caller();
    desk.groups.handle_delete(desk.now_ms, &[GROUP], caller);
    match desk.answer(caller) {
        Some(Answer::Delete(deleted)) => deleted[0].outcome,
        other => panic!("{other:?} is no answer to DeleteGroups"),
    }
}

#[test]
fn a_group_is_deleted_with_its_offsets_once_it_has_no_members() {
    let mut desk = Desk::default();
    assert_eq!(delete_group(&mut desk), Err(Error::GroupIdNotFound));
    let ids = desk.stable(1);
    desk.commit(&ids[0], 1, 0, 1).unwrap();
    assert_eq!(delete_group(&mut desk), Err(Error::NonEmptyGroup));
    desk.leave(&[(&ids[0], None)]);
    desk.commit_in_transaction(1, None, 1, 1).unwrap();
    assert_eq!(delete_group(&mut desk), Ok(()));
    assert_eq!(desk.groups.describe(GROUP), Err(Error::GroupIdNotFound));
    desk.restart();
    assert!(desk.groups.is_empty());
}

#[test]
fn with_a_topic_go_its_offsets() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    desk.commit_in_transaction(1, None, 1, 1).unwrap();
    desk.groups.forget_topic("another");
    assert_eq!(desk.fetch(0), Some(1));
    desk.groups.forget_topic(TOPIC);
    assert_eq!(desk.fetch(0), None);
    assert!(desk.groups.is_empty());
    desk.restart();
    assert!(desk.groups.is_empty());
}

#[test]
fn what_could_not_be_kept_is_answered_so() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    let caller = desk.caller();
    let groups = vec![OffsetsOf { group_id: GROUP, topics: None }];
    desk.groups.handle_offset_fetch(&OffsetFetch { groups, require_stable: false }, caller);
    let Some(Answer::Fetch(groups)) = desk.answer(caller).map(|answer| answer.refused(Error::NotCoordinator))
    else {
        panic!("no answer")
    };
    assert_eq!(groups[0].outcome, Err(Error::NotCoordinator));
}

/// Whatever a log has refused of offsets is to look as if it had not been asked for: it will, after a restart.
#[test]
fn what_could_not_be_kept_of_offsets_is_taken_back() {
    let mut desk = Desk::default();
    desk.commit_alone(0, 1).unwrap();
    desk.commit_in_transaction(1, None, 1, 10).unwrap();
    desk.settle();
    desk.log_fails = true;
    desk.commit_alone(0, 2).unwrap();
    desk.commit_alone(0, 3).unwrap();
    desk.commit_alone(2, 4).unwrap();
    desk.commit_in_transaction(2, None, 3, 5).unwrap();
    desk.end_transaction(1, TransactionEnd::Commit);
    desk.tell_refused();
    desk.log_fails = false;
    let seen = |desk: &mut Desk| [0, 1, 2, 3].map(|partition| desk.fetch(partition));
    assert_eq!(seen(&mut desk), [Some(1), None, None, None]);
    // The transaction can still end, and the other never was.
    desk.end_transaction(1, TransactionEnd::Commit);
    desk.end_transaction(2, TransactionEnd::Commit);
    assert_eq!(seen(&mut desk), [Some(1), Some(10), None, None]);
    desk.log_fails = true;
    desk.groups.forget_topic(TOPIC);
    desk.tell_refused();
    desk.log_fails = false;
    assert_eq!(seen(&mut desk), [Some(1), Some(10), None, None]);
    desk.restart();
    assert_eq!(seen(&mut desk), [Some(1), Some(10), None, None]);
}

#[test]
fn what_could_not_be_kept_has_been_overtaken_by_what_was_kept_since() {
    for fails_first in [true, false] {
        let mut desk = Desk::default();
        desk.log_fails = true;
        desk.commit_alone(0, 1).unwrap();
        desk.settle();
        if fails_first {
            desk.groups.not_kept(desk.refused.pop().unwrap());
        }
        desk.log_fails = false;
        desk.commit_alone(0, 2).unwrap();
        desk.tell_refused();
        assert_eq!(desk.fetch(0), Some(2));
        desk.restart();
        assert_eq!(desk.fetch(0), Some(2));
    }
}
