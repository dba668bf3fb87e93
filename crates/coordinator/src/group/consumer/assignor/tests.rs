//! Assignors: examples by hand, and random groups whose assignments are checked against the guarantees.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, Default)]
struct Member {
    id: String,
    instance_id: Option<String>,
    topics: BTreeSet<[u8; 16]>,
    target: Partitions,
}

#[derive(Clone, Debug, Default)]
struct Group {
    members: Vec<Member>,
    topics: BTreeMap<[u8; 16], i32>,
}

fn topic(number: u8) -> [u8; 16] {
    [number; 16]
}

fn partitions(ranges: &[(u8, Range<i32>)]) -> Partitions {
    let of_topic = |(number, range): &(u8, Range<i32>)| {
        let topic_id = topic(*number);
        range.clone().map(move |partition| TopicPartition { topic_id, partition })
    };
    ranges.iter().flat_map(of_topic).collect()
}

fn member(id: &str, topics: &[u8]) -> Member {
    Member { id: id.to_owned(), topics: topics.iter().copied().map(topic).collect(), ..Member::default() }
}

impl Member {
    fn as_subscriber(&self) -> Subscriber<'_> {
        let Self { id, instance_id, topics, target } = self;
        Subscriber { member_id: id, instance_id: instance_id.as_deref(), topics, target }
    }
}

impl Group {
    fn new(members: &[(&str, &[u8])], topics: &[(u8, i32)]) -> Self {
        Self {
            members: members.iter().map(|(id, topics)| member(id, topics)).collect(),
            topics: topics.iter().map(|&(number, count)| (topic(number), count)).collect(),
        }
    }

    fn assign(&self, assignor: Assignor) -> Vec<Partitions> {
        let subscribers: Vec<_> = self.members.iter().map(Member::as_subscriber).collect();
        assign(assignor, &subscribers, &self.topics)
    }

    /// Makes the assignment the target of the members.
    fn rebalance(&mut self, assignor: Assignor) {
        let assignment = self.assign(assignor);
        for (member, target) in self.members.iter_mut().zip(assignment) {
            member.target = target;
        }
    }

    fn targets(&self) -> Vec<Partitions> {
        self.members.iter().map(|member| member.target.clone()).collect()
    }

    /// All partitions with a subscriber.
    fn partitions(&self) -> Partitions {
        let is_subscribed =
            |topic: &[u8; 16]| self.members.iter().any(|member| member.topics.contains(topic));
        let subscribed = self.topics.iter().filter(|(topic, _)| is_subscribed(topic));
        subscribed
            .flat_map(|(&topic_id, &count)| {
                (0..count).map(move |partition| TopicPartition { topic_id, partition })
            })
            .collect()
    }
}

mod examples {
    use super::*;

    #[test]
    fn assignors_have_kafkas_names() {
        for assignor in [Assignor::Uniform, Assignor::Range] {
            assert_eq!(Assignor::by_name(assignor.name()), Some(assignor));
        }
        assert_eq!((Assignor::Uniform.name(), Assignor::Range.name()), ("uniform", "range"));
        assert_eq!(Assignor::by_name("sticky"), None);
        assert_eq!(Assignor::default(), Assignor::Uniform);
    }

    #[test]
    fn empty_groups_and_missing_topics_assign_nothing() {
        for assignor in [Assignor::Uniform, Assignor::Range] {
            assert_eq!(Group::new(&[], &[(1, 3)]).assign(assignor), []);
            let group = Group::new(&[("a", &[]), ("b", &[2, 3])], &[(1, 3), (3, 0)]);
            assert_eq!(group.assign(assignor), [Partitions::new(), Partitions::new()], "{assignor:?}");
        }
    }

    #[test]
    fn uniform_splits_all_topics_together() {
        let group = Group::new(&[("a", &[1, 2]), ("b", &[1, 2]), ("c", &[1, 2])], &[(1, 3), (2, 4)]);
        let expected = [partitions(&[(1, 0..3)]), partitions(&[(2, 0..2)]), partitions(&[(2, 2..4)])];
        assert_eq!(group.assign(Assignor::Uniform), expected);
    }

    #[test]
    fn uniform_takes_from_others_what_a_new_member_needs() {
        let mut group = Group::new(&[("a", &[1]), ("b", &[1])], &[(1, 6)]);
        group.rebalance(Assignor::Uniform);
        assert_eq!(group.targets(), [partitions(&[(1, 0..3)]), partitions(&[(1, 3..6)])]);
        group.members.push(member("c", &[1]));
        group.rebalance(Assignor::Uniform);
        let expected =
            [partitions(&[(1, 0..2)]), partitions(&[(1, 3..5)]), partitions(&[(1, 2..3), (1, 5..6)])];
        assert_eq!(group.targets(), expected);
    }

    #[test]
    fn uniform_gives_new_partitions_and_those_of_a_gone_member_to_the_least_loaded() {
        let mut group = Group::new(&[("a", &[1]), ("b", &[1]), ("c", &[1])], &[(1, 6)]);
        group.rebalance(Assignor::Uniform);
        group.members.remove(1);
        group.topics.insert(topic(1), 7);
        group.rebalance(Assignor::Uniform);
        let expected = [partitions(&[(1, 0..4)]), partitions(&[(1, 4..7)])];
        assert_eq!(group.targets(), expected);
    }

    #[test]
    fn uniform_drops_what_a_target_may_not_hold() {
        let mut group = Group::new(&[("a", &[1]), ("b", &[2]), ("c", &[1])], &[(1, 2), (2, 1)]);
        group.members[0].target = partitions(&[(1, 1..9), (2, 0..1), (3, 0..4)]);
        group.members[1].target = partitions(&[(1, 0..1), (2, -1..0)]);
        group.members[2].target = partitions(&[(1, 1..2)]);
        let expected = [partitions(&[(1, 1..2)]), partitions(&[(2, 0..1)]), partitions(&[(1, 0..1)])];
        assert_eq!(group.assign(Assignor::Uniform), expected, "the first of two owners keeps the partition");
    }

    #[test]
    fn uniform_leaves_shared_topics_to_members_without_topics_of_their_own() {
        let group = Group::new(&[("a", &[1, 2]), ("b", &[2])], &[(1, 3), (2, 3)]);
        assert_eq!(group.assign(Assignor::Uniform), [partitions(&[(1, 0..3)]), partitions(&[(2, 0..3)])]);
    }

    #[test]
    fn uniform_moves_nothing_unless_a_single_move_helps() {
        let mut group = Group::new(&[("a", &[1]), ("b", &[1, 2]), ("c", &[2])], &[(1, 13), (2, 17)]);
        group.members[0].target = partitions(&[(1, 0..9)]);
        group.members[1].target = partitions(&[(1, 9..13), (2, 0..6)]);
        group.members[2].target = partitions(&[(2, 6..17)]);
        let sizes =
            |group: &Group| group.assign(Assignor::Uniform).iter().map(BTreeSet::len).collect::<Vec<_>>();
        assert_eq!(sizes(&group), [9, 10, 11], "moving two partitions would help, moving one does not");
        group.members.iter_mut().for_each(|member| member.target.clear());
        assert_eq!(sizes(&group), [10, 10, 10]);
    }

    #[test]
    fn uniform_prefers_the_owner_among_the_least_loaded() {
        let mut group = Group::new(&[("b", &[1, 2]), ("c", &[2])], &[(1, 1), (2, 3)]);
        group.rebalance(Assignor::Uniform);
        assert_eq!(group.targets(), [partitions(&[(1, 0..1), (2, 0..1)]), partitions(&[(2, 1..3)])]);
        group.members.push(member("a", &[1]));
        group.rebalance(Assignor::Uniform);
        let expected = [partitions(&[(2, 0..1)]), partitions(&[(2, 1..3)]), partitions(&[(1, 0..1)])];
        assert_eq!(group.targets(), expected);
    }

    #[test]
    fn uniform_hands_on_what_was_not_in_the_target() {
        let members: [(&str, &[u8]); 4] = [("a", &[1, 2, 4]), ("b", &[1, 5]), ("c", &[2, 6]), ("d", &[4, 7])];
        let mut group = Group::new(&members, &[(1, 1), (2, 1), (4, 2), (5, 2), (6, 2), (7, 9)]);
        group.members[0].target = partitions(&[(1, 0..1)]);
        // Member a gets topic 2 first, and has too many when topic 4 follows. Members b and c could both take one.
        let expected = [
            partitions(&[(1, 0..1), (4, 0..2)]),
            partitions(&[(5, 0..2)]),
            partitions(&[(2, 0..1), (6, 0..2)]),
            partitions(&[(7, 0..9)]),
        ];
        assert_eq!(group.assign(Assignor::Uniform), expected);
    }

    #[test]
    fn range_gives_the_first_members_one_more_of_each_topic() {
        let group = Group::new(&[("b", &[1, 2]), ("a", &[1, 2])], &[(1, 3), (2, 3)]);
        let expected = [partitions(&[(1, 2..3), (2, 2..3)]), partitions(&[(1, 0..2), (2, 0..2)])];
        assert_eq!(group.assign(Assignor::Range), expected);
    }

    #[test]
    fn range_leaves_members_without_partitions_if_there_are_too_few() {
        let group = Group::new(&[("a", &[1]), ("b", &[1]), ("c", &[1])], &[(1, 2)]);
        let expected = [partitions(&[(1, 0..1)]), partitions(&[(1, 1..2)]), Partitions::new()];
        assert_eq!(group.assign(Assignor::Range), expected);
    }

    #[test]
    fn range_splits_a_topic_among_its_subscribers() {
        let group = Group::new(&[("a", &[1]), ("b", &[1, 2]), ("c", &[2])], &[(1, 5), (2, 4)]);
        let expected =
            [partitions(&[(1, 0..3)]), partitions(&[(1, 3..5), (2, 0..2)]), partitions(&[(2, 2..4)])];
        assert_eq!(group.assign(Assignor::Range), expected);
    }

    #[test]
    fn range_puts_static_members_first_and_keeps_their_place() {
        let mut group = Group::new(&[("a", &[1]), ("y", &[1]), ("z", &[1])], &[(1, 3)]);
        group.members[1].instance_id = Some("i2".to_owned());
        group.members[2].instance_id = Some("i1".to_owned());
        let expected = [partitions(&[(1, 2..3)]), partitions(&[(1, 1..2)]), partitions(&[(1, 0..1)])];
        assert_eq!(group.assign(Assignor::Range), expected);
        group.members[2].id = "b".to_owned();
        assert_eq!(group.assign(Assignor::Range), expected, "a static member restarted");
    }
}

/// Groups of up to 8 members and 5 topics. Targets hold any partitions, including ones that do not exist.
fn group() -> impl Strategy<Value = Group> {
    let target = prop::collection::btree_set((0_u8..6, -1..14), 0..30);
    let topics = prop::collection::btree_set((0_u8..6).prop_map(topic), 0..6);
    let members = prop::collection::vec((any::<bool>(), topics, target), 0..8);
    let counts = prop::collection::btree_map((0_u8..5).prop_map(topic), 0..12, 0..6);
    (members, counts).prop_map(|(members, topics)| {
        let to_member = |(index, (is_static, topics, target)): (usize, (bool, _, BTreeSet<_>))| Member {
            id: format!("m{index}"),
            instance_id: is_static.then(|| format!("i{}", 9 - index)),
            topics,
            target: target
                .iter()
                .flat_map(|&(topic, number)| partitions(&[(topic, number..number + 1)]))
                .collect(),
        };
        Group { members: members.into_iter().enumerate().map(to_member).collect(), topics }
    })
}

/// Groups whose subscriptions overlap in a row: member m subscribes to topics m, m + 1, and so on. A target holds the
/// whole first topic of the member, or nothing.
fn row() -> impl Strategy<Value = Group> {
    let subscription = (1_u8..4, any::<bool>());
    (prop::collection::vec(subscription, 1..30), prop::collection::vec(0..40, 33)).prop_map(
        |(members, counts)| {
            let topics: Vec<_> = (0_u8..).zip(counts).collect();
            let mut group = Group::new(&[], &topics);
            for (first, (width, has_target)) in (0_u8..).zip(members) {
                let subscribed: Vec<u8> = (first..first + width).collect();
                let mut member = member(&format!("m{first:02}"), &subscribed);
                if has_target {
                    member.target = partitions(&[(first, 0..topics[usize::from(first)].1)]);
                }
                group.members.push(member);
            }
            group
        },
    )
}

fn any_group() -> impl Strategy<Value = Group> {
    prop_oneof![2 => group(), 1 => row()]
}

/// Groups whose members all have the subscription of the first one.
fn group_with_equal_subscriptions() -> impl Strategy<Value = Group> {
    group().prop_filter_map("no members", |mut group| {
        let topics = group.members.first()?.topics.clone();
        group.members.iter_mut().for_each(|member| member.topics.clone_from(&topics));
        Some(group)
    })
}

fn assignor() -> impl Strategy<Value = Assignor> {
    prop_oneof![Just(Assignor::Uniform), Just(Assignor::Range)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn each_partition_has_one_owner_that_subscribes_to_it(assignor in assignor(), group in any_group()) {
        let assignment = group.assign(assignor);
        prop_assert_eq!(assignment.len(), group.members.len());
        for (member, partitions) in group.members.iter().zip(&assignment) {
            prop_assert!(partitions.iter().all(|partition| member.topics.contains(&partition.topic_id)));
        }
        let assigned: usize = assignment.iter().map(BTreeSet::len).sum();
        let expected = group.partitions();
        prop_assert_eq!(assigned, expected.len());
        prop_assert_eq!(assignment.into_iter().flatten().collect::<Partitions>(), expected);
    }

    #[test]
    fn order_of_subscribers_is_irrelevant(
        assignor in assignor(),
        (group, shuffled) in any_group().prop_flat_map(|group| {
            let order = Just((0..group.members.len()).collect::<Vec<_>>()).prop_shuffle();
            (Just(group), order)
        }),
    ) {
        let members = shuffled.iter().map(|&index| group.members[index].clone()).collect();
        let other = Group { members, topics: group.topics.clone() }.assign(assignor);
        let assignment = group.assign(assignor);
        for (position, index) in shuffled.into_iter().enumerate() {
            prop_assert_eq!(&other[position], &assignment[index]);
        }
    }

    #[test]
    fn uniform_leaves_no_move_that_improves_the_balance(group in any_group()) {
        let assignment = group.assign(Assignor::Uniform);
        for partitions in &assignment {
            for partition in partitions {
                let subscribes = |member: &Member| member.topics.contains(&partition.topic_id);
                let others = group.members.iter().zip(&assignment).filter(|(member, _)| subscribes(member));
                let fewest = others.map(|(_, partitions)| partitions.len()).min().expect("it has an owner");
                prop_assert!(partitions.len() <= fewest + 1, "{partition:?} can move");
            }
        }
    }

    #[test]
    fn uniform_keeps_a_balanced_target(mut group in any_group()) {
        group.rebalance(Assignor::Uniform);
        prop_assert_eq!(group.assign(Assignor::Uniform), group.targets());
    }

    #[test]
    fn uniform_moves_as_few_as_possible_if_subscriptions_are_equal(mut group in group_with_equal_subscriptions()) {
        // No two members own the same partition.
        let mut unowned = group.partitions();
        for member in &mut group.members {
            member.target.retain(|partition| unowned.remove(partition));
        }
        let assignment = group.assign(Assignor::Uniform);
        let count = group.partitions().len();
        let (quota, extra) = (count / group.members.len(), count % group.members.len());
        prop_assert!(assignment.iter().all(|partitions| (quota..=quota + 1).contains(&partitions.len())));

        let owned = || group.members.iter().map(|member| member.target.len());
        let above_quota = owned().filter(|&owned| owned > quota).count();
        let most = owned().map(|owned| owned.min(quota)).sum::<usize>() + above_quota.min(extra);
        let kept: usize =
            group.members.iter().zip(&assignment).map(|(member, now)| member.target.intersection(now).count()).sum();
        prop_assert_eq!(kept, most);
    }

    #[test]
    fn range_splits_each_topic_in_order(group in any_group()) {
        let assignment = group.assign(Assignor::Range);
        let mut order: Vec<usize> = (0..group.members.len()).collect();
        order.sort_by_key(|&index| {
            let Member { id, instance_id, .. } = &group.members[index];
            (instance_id.is_none(), instance_id, id)
        });
        for (&topic_id, &count) in &group.topics {
            let subscribers = order.iter().filter(|&&index| group.members[index].topics.contains(&topic_id));
            let subscriber_count = i32::try_from(subscribers.clone().count()).unwrap();
            for (place, &index) in (0..).zip(subscribers) {
                let bound = |place: i32| count / subscriber_count * place + place.min(count % subscriber_count);
                let expected: Vec<i32> = (bound(place)..bound(place + 1)).collect();
                let of_topic = assignment[index].iter().filter(|partition| partition.topic_id == topic_id);
                prop_assert_eq!(of_topic.map(|partition| partition.partition).collect::<Vec<_>>(), expected);
            }
        }
    }
}
