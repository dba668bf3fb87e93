//! Members of two consumer groups on a broker with shards over stores in memory: they join, sync, commit offsets with
//! right and wrong generations, leave, vanish; time passes, and the broker restarts.
//!
//! Each request gets one response, in order. All members of a generation see one leader and one protocol, a member gets
//! the assignment that the leader of its generation made for it, and committed offsets are those last acknowledged.

#![no_main]

#[path = "../../crates/kafka-server/tests/kit/mod.rs"]
mod kit;

use arbitrary::Arbitrary;
use kit::{Broker, Client};
use libfuzzer_sys::fuzz_target;
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_kafka::{ErrorCode, Request};
use std::collections::{HashMap, VecDeque};

const TOPIC: &str = "topic";
const GROUPS: [&str; 2] = ["one", "two"];
const PROTOCOLS: [&str; 3] = ["range", "sticky", "roundrobin"];
const PARTITIONS: usize = 2;
const MEMBERS: usize = 5;
/// Steps of one input that are played.
const STEPS_MAX: usize = 80;
/// Longer than every timeout that a step can ask for, ms.
const TIMEOUTS_MS: u64 = 70_000;
const OK: i16 = ErrorCode::None as i16;

#[derive(Arbitrary, Debug)]
struct Step {
    member: u8,
    action: Action,
    /// Whether the shards become idle before the next step.
    settles: bool,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Join { is_new: bool, instance: Option<bool>, session_s: u8, rebalance_s: u8, protocols: u8 },
    Sync { generation_delta: i8 },
    Heartbeat { generation_delta: i8 },
    Leave,
    Commit { partition: bool, offset: u16, generation_delta: i8, is_outsider: bool },
    Read,
    Delete,
    Pass { tenths: u16 },
    Reconnect { shard: u8 },
    Restart { shards: u8 },
}

/// A request without a response.
enum Pending {
    Join,
    Sync { generation: i32, member_id: String },
    Heartbeat,
    Leave,
    Commit { key: (usize, usize), offset: i64, change: u64, is_alone: bool },
    Read { changes: [u64; PARTITIONS] },
    Delete { changes: [u64; PARTITIONS] },
}

/// A member as it sees itself.
struct Member {
    client: Client,
    group: usize,
    id: String,
    instance: Option<String>,
    generation: i32,
    /// Of its generation, if it leads.
    members: Vec<String>,
    pending: VecDeque<Pending>,
}

/// A committed offset.
#[derive(Clone, Copy, Default)]
struct Committed {
    /// Number of changes requested so far.
    changes: u64,
    /// Commits without a response; shards may serve them in any order.
    outstanding: usize,
    /// The offset after the last change, if that is certain; -1 for none.
    offset: Option<i64>,
}

struct World {
    broker: Broker,
    shards: usize,
    members: Vec<Member>,
    /// Leader and protocol of each generation.
    generations: HashMap<(usize, i32), (String, Option<String>)>,
    committed: [[Committed; PARTITIONS]; 2],
}

fuzz_target!(|steps: Vec<Step>| {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, PARTITIONS as i32);
    let member = |number: usize| Member {
        client: broker.connect(number % 2),
        group: number % 2,
        id: String::new(),
        instance: None,
        generation: -1,
        members: Vec::new(),
        pending: VecDeque::new(),
    };
    let members = (0..MEMBERS).map(member).collect();
    let none = Committed { offset: Some(-1), ..Committed::default() };
    let mut world =
        World { broker, shards: 2, members, generations: HashMap::new(), committed: [[none; PARTITIONS]; 2] };
    for step in steps.iter().take(STEPS_MAX) {
        world.play(usize::from(step.member) % MEMBERS, &step.action);
        if step.settles {
            world.broker.run();
        } else {
            world.broker.turn(1);
        }
        world.collect();
    }
    world.broker.pass(TIMEOUTS_MS);
    world.collect();
    for member in &world.members {
        assert!(member.pending.is_empty(), "{} requests without response", member.pending.len());
    }
});

impl World {
    fn play(&mut self, who: usize, action: &Action) {
        match *action {
            Action::Join { is_new, instance, session_s, rebalance_s, protocols } => {
                self.join(who, is_new, instance, [session_s, rebalance_s], protocols);
            }
            Action::Sync { generation_delta } => self.sync(who, generation_delta),
            Action::Heartbeat { generation_delta } => {
                let member = &self.members[who];
                let request = HeartbeatRequest {
                    group_id: GROUPS[member.group].into(),
                    generation_id: member.generation.saturating_add(delta(generation_delta)),
                    member_id: member.id.clone(),
                    group_instance_id: member.instance.clone(),
                };
                self.send(who, 4, &request, Pending::Heartbeat);
            }
            Action::Leave => {
                let member = &self.members[who];
                let leaving = MemberIdentity { member_id: member.id.clone(), ..MemberIdentity::default() };
                let group_id = GROUPS[member.group].into();
                let request =
                    LeaveGroupRequest { group_id, members: vec![leaving], ..LeaveGroupRequest::default() };
                self.send(who, 5, &request, Pending::Leave);
            }
            Action::Commit { partition, offset, generation_delta, is_outsider } => {
                self.commit(who, partition.into(), offset.into(), generation_delta, is_outsider);
            }
            Action::Read => self.read(who),
            Action::Delete => {
                let group = self.members[who].group;
                let changes = std::array::from_fn(|partition| self.change(group, partition));
                let request = DeleteGroupsRequest { groups_names: vec![GROUPS[group].into()] };
                self.send(who, 2, &request, Pending::Delete { changes });
            }
            Action::Pass { tenths } => self.broker.pass(u64::from(tenths % 300) * 100),
            Action::Reconnect { shard } => {
                self.broker.hang_up(self.members[who].client);
                // What was sent takes effect before anything else, or not at all.
                self.broker.run();
                for pending in std::mem::take(&mut self.members[who].pending) {
                    if let Pending::Commit { key: (group, partition), .. } = pending {
                        self.committed[group][partition].outstanding -= 1;
                    }
                }
                self.members[who].client = self.broker.connect(usize::from(shard) % self.shards);
            }
            Action::Restart { shards } => self.restart(usize::from(shards % 3) + 1),
        }
    }

    /// Notes a requested change of a committed offset, whose result is uncertain until it is acknowledged.
    fn change(&mut self, group: usize, partition: usize) -> u64 {
        let committed = &mut self.committed[group][partition];
        committed.changes += 1;
        committed.offset = None;
        committed.changes
    }

    fn send<R: Request>(&mut self, who: usize, version: i16, request: &R, pending: Pending) {
        let member = &mut self.members[who];
        if self.broker.is_open(member.client) {
            self.broker.send(member.client, version, request);
            if let Pending::Commit { key: (group, partition), .. } = pending {
                self.committed[group][partition].outstanding += 1;
            }
            member.pending.push_back(pending);
        }
    }

    fn join(&mut self, who: usize, is_new: bool, instance: Option<bool>, seconds: [u8; 2], protocols: u8) {
        let [session_s, rebalance_s] = seconds.map(|seconds| i32::from(seconds % 60));
        let member = &mut self.members[who];
        if is_new {
            member.id.clear();
        }
        member.instance = instance.map(|instance| format!("instance-{instance}"));
        let offered = (0..PROTOCOLS.len()).filter(|bit| protocols >> bit & 1 == 1);
        let protocol =
            |bit: usize| JoinGroupRequestProtocol { name: PROTOCOLS[bit].into(), metadata: vec![1] };
        let request = JoinGroupRequest {
            group_id: GROUPS[member.group].into(),
            session_timeout_ms: session_s * 1_000,
            rebalance_timeout_ms: rebalance_s * 1_000,
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            protocol_type: "consumer".into(),
            protocols: offered.map(protocol).collect(),
            ..JoinGroupRequest::default()
        };
        self.send(who, 9, &request, Pending::Join);
    }

    fn sync(&mut self, who: usize, generation_delta: i8) {
        let member = &self.members[who];
        let generation = member.generation.saturating_add(delta(generation_delta));
        let assign = |id: &String| SyncGroupRequestAssignment {
            member_id: id.clone(),
            assignment: assignment(generation, id),
        };
        let request = SyncGroupRequest {
            group_id: GROUPS[member.group].into(),
            generation_id: generation,
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            assignments: member.members.iter().map(assign).collect(),
            ..SyncGroupRequest::default()
        };
        let pending = Pending::Sync { generation, member_id: member.id.clone() };
        self.send(who, 4, &request, pending);
    }

    fn commit(&mut self, who: usize, partition: usize, offset: i64, generation_delta: i8, is_outsider: bool) {
        let group = self.members[who].group;
        let change = self.change(group, partition);
        let member = &self.members[who];
        let (generation, member_id) = match is_outsider {
            true => (-1, String::new()),
            false => (member.generation.saturating_add(delta(generation_delta)), member.id.clone()),
        };
        let committed = OffsetCommitRequestPartition {
            partition_index: partition as i32,
            committed_offset: offset,
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![committed],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: GROUPS[group].into(),
            generation_id_or_member_epoch: generation,
            member_id,
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let is_alone = self.committed[group][partition].outstanding == 0;
        self.send(who, 9, &request, Pending::Commit { key: (group, partition), offset, change, is_alone });
    }

    fn read(&mut self, who: usize) {
        let group = self.members[who].group;
        let topic = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            partition_indexes: (0..PARTITIONS as i32).collect(),
            ..OffsetFetchRequestTopics::default()
        };
        let asked = OffsetFetchRequestGroup {
            group_id: GROUPS[group].into(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![asked], ..OffsetFetchRequest::default() };
        let changes = self.committed[group].map(|committed| committed.changes);
        self.send(who, 9, &request, Pending::Read { changes });
    }

    /// Acknowledged state survives; connections and requests do not.
    fn restart(&mut self, shards: usize) {
        self.shards = shards;
        self.broker.crash(shards);
        // A generation that no member has synced need not survive, and may be used again.
        self.generations.clear();
        self.committed.iter_mut().flatten().for_each(|committed| committed.outstanding = 0);
        for (number, member) in self.members.iter_mut().enumerate() {
            member.client = self.broker.connect(number % shards);
            member.pending.clear();
        }
    }

    /// Handles all responses that have arrived.
    fn collect(&mut self) {
        for who in 0..MEMBERS {
            while let Some(pending) = self.members[who].pending.pop_front() {
                if let Some(pending) = self.handle(who, pending) {
                    self.members[who].pending.push_front(pending);
                    break;
                }
            }
        }
    }

    /// Handles the response to a request. Returns the request if there is none yet.
    fn handle(&mut self, who: usize, pending: Pending) -> Option<Pending> {
        let client = self.members[who].client;
        match &pending {
            Pending::Join => match self.broker.take::<JoinGroupRequest>(client, 9) {
                Some(response) => self.joined(who, response),
                None => return Some(pending),
            },
            Pending::Sync { generation, member_id } => {
                let Some(response) = self.broker.take::<SyncGroupRequest>(client, 4) else {
                    return Some(pending);
                };
                if response.error_code == OK && !response.assignment.is_empty() {
                    assert_eq!(response.assignment, assignment(*generation, member_id));
                }
            }
            Pending::Heartbeat => {
                if self.broker.take::<HeartbeatRequest>(client, 4).is_none() {
                    return Some(pending);
                }
            }
            Pending::Leave => {
                if self.broker.take::<LeaveGroupRequest>(client, 5).is_none() {
                    return Some(pending);
                }
            }
            Pending::Commit { key: (group, partition), offset, change, is_alone } => {
                let Some(response) = self.broker.take::<OffsetCommitRequest>(client, 9) else {
                    return Some(pending);
                };
                let is_ok = response.topics[0].partitions[0].error_code == OK;
                let committed = &mut self.committed[*group][*partition];
                committed.outstanding -= 1;
                if is_ok && *is_alone && committed.changes == *change {
                    committed.offset = Some(*offset);
                }
            }
            Pending::Read { changes } => {
                let Some(response) = self.broker.take::<OffsetFetchRequest>(client, 9) else {
                    return Some(pending);
                };
                let group = &response.groups[0];
                let known = self.committed[self.members[who].group];
                for partition in group.topics.iter().flat_map(|topic| &topic.partitions) {
                    let index = partition.partition_index as usize;
                    if let Some(offset) = known[index].offset
                        && known[index].changes == changes[index]
                        && group.error_code == OK
                        && partition.error_code == OK
                    {
                        assert_eq!(partition.committed_offset, offset, "partition {index}");
                    }
                }
            }
            Pending::Delete { changes } => {
                let Some(response) = self.broker.take::<DeleteGroupsRequest>(client, 2) else {
                    return Some(pending);
                };
                let group = self.members[who].group;
                for (committed, change) in self.committed[group].iter_mut().zip(changes) {
                    let is_certain = committed.changes == *change && committed.outstanding == 0;
                    if response.results[0].error_code == OK && is_certain {
                        committed.offset = Some(-1);
                    }
                }
            }
        }
        None
    }

    fn joined(&mut self, who: usize, response: JoinGroupResponse) {
        let member = &mut self.members[who];
        if response.error_code == ErrorCode::MemberIdRequired as i16 {
            member.id = response.member_id;
            return;
        }
        if response.error_code != OK {
            return;
        }
        member.id.clone_from(&response.member_id);
        member.generation = response.generation_id;
        member.members = response.members.iter().map(|member| member.member_id.clone()).collect();
        let leads = response.leader == response.member_id;
        assert!(leads || member.members.is_empty(), "only the leader learns the members");
        assert!(!leads || member.members.contains(&member.id) || response.skip_assignment);
        let seen = (response.leader, response.protocol_name);
        // A static member that returns keeps the generation and replaces its member id, also as the leader.
        if member.instance.is_none() {
            let known =
                self.generations.entry((member.group, member.generation)).or_insert_with(|| seen.clone());
            assert_eq!(known.1, seen.1, "one protocol per generation");
        }
    }
}

/// Mostly 0.
fn delta(delta: i8) -> i32 {
    match delta {
        100.. => 1,
        ..=-100 => -1,
        _ => 0,
    }
}

fn assignment(generation: i32, member_id: &str) -> Vec<u8> {
    format!("{generation}/{member_id}").into_bytes()
}
