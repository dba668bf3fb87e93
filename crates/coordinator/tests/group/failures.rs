//! Groups of both protocols under failed writes, slow writes and restarts at bad moments, and what single requests may
//! cause.

use crate::consumer::{Consumer, TopicTable, error, request, settle};
use crate::harness::{GROUP, Harness, MemberSpec, new_member};
use crate::migration::{Classic, assignment, classic_group, settle_mixed};
use mainstem_coordinator::Error;
use mainstem_coordinator::group::{ConsumerHeartbeat, Effect, GroupConfig, OwnedTopic, Response};

/// The tombstone of the classic group is lost with the write that failed.
#[test]
fn a_failed_upgrade_write_leaves_one_kind_of_group() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    harness.log_rejects_writes = true;
    new.join(&mut harness, &topics).unwrap();
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    harness.restart_compacted();
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    // The group changes back.
    new.leave(&mut harness, &topics, -1).unwrap();
    assert_eq!(harness.groups.describe(GROUP).unwrap().members.len(), 2);
    (first.must_join, second.must_join) = (true, true);
    let (one, two) = (first.send(&mut harness), second.send(&mut harness));
    assert_eq!(first.receive(&mut harness, one), Ok(true));
    assert_eq!(second.receive(&mut harness, two), Ok(true));
}

/// The tombstones of the consumer group are lost with the write that failed.
#[test]
fn a_failed_downgrade_write_leaves_one_kind_of_group() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    harness.log_rejects_writes = true;
    new.leave(&mut harness, &topics, -1).unwrap();
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    (first.must_join, second.must_join) = (true, true);
    let (one, two) = (first.send(&mut harness), second.send(&mut harness));
    assert_eq!(first.receive(&mut harness, one), Ok(true));
    assert_eq!(second.receive(&mut harness, two), Ok(true));
    let (leader, follower) = if first.leads { (&mut first, &mut second) } else { (&mut second, &mut first) };
    leader.sync(&mut harness, &[]).unwrap();
    follower.sync(&mut harness, &[]).unwrap();
    harness.restart_compacted();
    // The group was a stable classic one.
    assert!(harness.groups.describe(GROUP).is_ok(), "it is a classic group");
    assert_eq!(harness.heartbeat_as(&first.spec(), first.generation), Ok(()));
    assert_eq!(harness.heartbeat_as(&second.spec(), second.generation), Ok(()));
}

/// The group left the consumer protocol while it was empty, and that tombstone was lost.
#[test]
fn a_failed_tombstone_of_an_empty_consumer_group() {
    let mut harness = Harness::default();
    harness.topics = TopicTable::of(&[("a", 4)]);
    let topics = TopicTable::of(&[("a", 4)]);
    let mut only = Consumer::of("only", &["a"]);
    only.join(&mut harness, &topics).unwrap();
    only.leave(&mut harness, &topics, -1).unwrap();
    harness.log_rejects_writes = true;
    let mut classic = Classic { instance_id: Some("i".into()), ..Classic::of(&["a"], true) };
    let caller = classic.send(&mut harness);
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    assert_eq!(classic.receive(&mut harness, caller), Ok(true));
    classic.sync(&mut harness, &[]).unwrap();
    harness.restart_compacted();
    assert_eq!(harness.heartbeat_as(&classic.spec(), classic.generation), Ok(()));
}

/// A repeated heartbeat is answered before the step that its first copy took is durable.
#[test]
fn a_repeated_heartbeat_waits_for_the_first_one() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[("a", 4)]);
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    first.beat(&mut harness, &topics).unwrap();
    assert_eq!(first.epoch, 1);
    // The store is slow from here on: effects are looked at, not performed.
    let owned: Vec<_> =
        first.owned.iter().map(|(id, partitions)| OwnedTopic { topic_id: *id, partitions }).collect();
    let confirm = ConsumerHeartbeat { member_id: "1", member_epoch: 1, owned: Some(owned), ..request() };
    let (one, two) = (harness.caller(), harness.caller());
    harness.groups.handle_consumer_heartbeat(harness.now_ms, &confirm, &topics, one);
    harness.groups.handle_consumer_heartbeat(harness.now_ms, &confirm, &topics, two);
    let effects: Vec<Effect> = std::iter::from_fn(|| harness.groups.poll()).collect();
    for effect in &effects {
        if let Effect::Reply { answer: Response::ConsumerHeartbeat(Ok(result)), .. } = effect {
            assert!(result.member_epoch < 2, "epoch 2 is promised before it is durable: {effects:?}");
        }
    }
}

/// After a restart the topics are resolved with the rights of nobody.
#[test]
fn a_restart_keeps_what_a_regular_expression_may_select() {
    let mut harness = Harness::default();
    let mut all = TopicTable::of(&[("a1", 2), ("a2", 2)]);
    all.create("b", 1);
    let mut visible = TopicTable::of(&[("a1", 2), ("a2", 2)]);
    visible.delete("a2");
    harness.topics = all;
    let mut only = Consumer { regex: Some("a.*".into()), ..Consumer::of("only", &[]) };
    only.join(&mut harness, &visible).unwrap();
    assert_eq!(only.owns(&visible), visible.all(&["a1"]));
    harness.restart();
    only.beat(&mut harness, &visible).unwrap();
    only.beat(&mut harness, &visible).unwrap();
    assert_eq!(only.owns(&visible), visible.all(&["a1"]));
}

/// A member of both protocols with one id, whose two session timers end in the same millisecond.
#[test]
fn session_timers_of_one_id_in_one_millisecond() {
    let mut harness = Harness::default();
    harness.topics = TopicTable::of(&[("a", 4)]);
    let topics = TopicTable::of(&[("a", 4)]);
    // MEMBER_ID_REQUIRED with the session timeout of Java, 45 s.
    let (id, _) = harness.join_now(&MemberSpec { session_ms: 45_000, ..new_member() });
    let mut only = Consumer::of(&id, &["a"]);
    only.join(&mut harness, &topics).unwrap();
    harness.wait(100_000);
    assert_eq!(
        harness.groups.describe_consumer_group(GROUP).unwrap().members.len(),
        0,
        "its session has ended"
    );
}

/// A heartbeat with the epoch before revives a static member that has left.
#[test]
fn a_static_member_that_has_left_is_not_revived_by_an_old_epoch() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[("a", 4)]);
    let mut first = Consumer::of("1", &["a"]).with_instance("i");
    let mut second = Consumer::of("2", &["a"]);
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    assert_eq!(first.epoch, 2);
    first.leave(&mut harness, &topics, -2).unwrap();
    assert_eq!(error(first.send(&mut harness, &topics, 1, false)), Error::FencedMemberEpoch);
}

/// Any member id is taken for that of a member that was told to join with it.
#[test]
fn joins_with_long_member_ids_are_refused() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[("a", 4)]);
    harness.topics = TopicTable::of(&[("a", 4)]);
    let mut only = Consumer::of("only", &["a"]);
    only.join(&mut harness, &topics).unwrap();
    let mut classic = Classic { id: "x".repeat(5_000_000), ..Classic::of(&["a"], true) };
    let caller = classic.send(&mut harness);
    assert!(classic.receive(&mut harness, caller).is_err());
}

/// The last client of the consumer protocol pauses for a session timeout during a rolling upgrade.
#[test]
fn a_member_that_was_away_while_the_group_changed_back_can_join_again() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    for _ in 0..10 {
        harness.wait(5_000);
        for member in [&first, &second] {
            let _outcome = harness.heartbeat_as(&member.spec(), member.generation);
        }
    }
    assert!(harness.groups.describe(GROUP).is_ok());
    assert_eq!(error(new.beat(&mut harness, &topics)), Error::UnknownMemberId);
}

/// The write of a configuration failed; a later one of the same group succeeded.
#[test]
fn a_failed_write_does_not_undo_a_later_configuration() {
    let mut harness = Harness::default();
    let config = |ms| GroupConfig { session_timeout_ms: Some(ms), ..GroupConfig::default() };
    harness.log_rejects_writes = true;
    let caller = harness.caller();
    harness.groups.handle_configure(GROUP, config(50_000), caller);
    harness.settle();
    harness.log_rejects_writes = false;
    let caller = harness.caller();
    harness.groups.handle_configure(GROUP, config(60_000), caller);
    harness.settle();
    harness.fail_rejected_writes();
    assert_eq!(harness.groups.configuration(GROUP), config(60_000));
}

/// The broker ends after a downgrade, when the members have joined but the leader has not assigned.
#[test]
fn nobody_goes_on_in_the_generation_that_a_downgrade_has_stored() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    new.leave(&mut harness, &topics, -1).unwrap();
    let (one, two) = (first.send(&mut harness), second.send(&mut harness));
    assert_eq!(first.receive(&mut harness, one), Ok(true));
    assert_eq!(second.receive(&mut harness, two), Ok(true));
    harness.restart();
    // Clients repeat SyncGroup when they have lost the connection.
    let halves = [assignment(&[("a", &[0, 1])]), assignment(&[("a", &[2, 3])])];
    let ids = [first.id.clone(), second.id.clone()];
    let plan: Vec<(&str, &[u8])> =
        ids.iter().map(|id| &**id).zip(halves.iter().map(|half| &**half)).collect();
    let (leader, follower) = if first.leads { (&mut first, &mut second) } else { (&mut second, &mut first) };
    let outcome = leader.sync(&mut harness, &plan);
    let _outcome = follower.sync(&mut harness, &[]);
    assert!(
        outcome.is_err() || leader.owns().len() + follower.owns().len() == 4,
        "nobody has some partitions"
    );
}

/// A lost tombstone of a static member, step by step.
#[test]
fn a_static_member_is_not_fenced_by_its_predecessor_after_a_restart() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[("a", 4)]);
    harness.topics = TopicTable::of(&[("a", 4)]);
    let mut old = Consumer::of("old", &["a"]).with_instance("i");
    old.join(&mut harness, &topics).unwrap();
    old.leave(&mut harness, &topics, -2).unwrap();
    harness.log_rejects_writes = true;
    let mut new = Consumer::of("new", &["a"]).with_instance("i");
    new.join(&mut harness, &topics).unwrap();
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    new.beat(&mut harness, &topics).unwrap();
    harness.restart_compacted();
    new.beat(&mut harness, &topics).unwrap();
}

/// While the disk is full, each heartbeat serializes the whole group.
#[test]
fn heartbeats_on_a_full_disk_stay_cheap() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[("a", 4)]);
    let mut members: Vec<Consumer> = (0..500).map(|at| Consumer::of(&format!("m{at:03}"), &["a"])).collect();
    for member in &mut members {
        member.join(&mut harness, &topics).unwrap();
    }
    for _ in 0..3 {
        for member in &mut members {
            member.beat(&mut harness, &topics).unwrap();
        }
    }
    harness.log_rejects_writes = true;
    let caller = harness.caller();
    harness.groups.handle_configure(
        GROUP,
        GroupConfig { session_timeout_ms: Some(50_000), heartbeat_interval_ms: None },
        caller,
    );
    harness.fail_rejected_writes();
    let mut written = Vec::new();
    for member in &members[..5] {
        let caller = harness.caller();
        let beat = ConsumerHeartbeat { member_id: &member.id, member_epoch: member.epoch, ..request() };
        harness.groups.handle_consumer_heartbeat(harness.now_ms, &beat, &topics, caller);
        while let Some(effect) = harness.groups.poll() {
            if let Effect::Persist { keep, records } = effect {
                written.push(records.len());
                harness.groups.write_failed(keep);
            }
        }
    }
    assert!(written.iter().sum::<usize>() <= 600, "{written:?}");
}

/// Topics are created after members have joined that select all of them.
#[test]
fn what_a_group_selects_is_bounded_when_topics_are_created() {
    let mut harness = Harness::default();
    let mut topics = TopicTable::of(&[("t", 1)]);
    let mut members: Vec<Consumer> = (0..600)
        .map(|at| Consumer {
            regex: Some("t.*".into()),
            ..Consumer::of(&format!("m{at}"), &[&format!("x{at}")])
        })
        .collect();
    for member in &mut members {
        member.join(&mut harness, &topics).unwrap();
    }
    for at in 0..100 {
        topics.create(&format!("t{at}"), 1);
    }
    let mut owned = 0;
    for _ in 0..3 {
        owned = 0;
        for member in &mut members {
            member.beat(&mut harness, &topics).unwrap();
            owned += member.owns(&topics).len();
        }
    }
    assert_eq!(owned, 101, "each of them has room for all topics of some subscriptions");
}

/// What members that have left have used is free again.
#[test]
fn a_group_has_a_few_regular_expressions() {
    let (mut harness, topics) = (Harness::default(), TopicTable::of(&[("a", 1)]));
    let of = |at: usize| Consumer { regex: Some(format!("{at}.*")), ..Consumer::of(&format!("m{at}"), &[]) };
    let mut members: Vec<Consumer> = (0..10).map(of).collect();
    for member in &mut members {
        member.join(&mut harness, &topics).unwrap();
    }
    assert_eq!(error(of(10).join(&mut harness, &topics)), Error::PolicyViolation);
    let mut again = Consumer { id: "again".into(), ..of(9) };
    again.join(&mut harness, &topics).unwrap();
    members[0].leave(&mut harness, &topics, -1).unwrap();
    of(10).join(&mut harness, &topics).unwrap();
}
