//! The uniform assignor: members get equally many partitions, as far as subscriptions allow, and few partitions move.
//!
//! # Guarantees
//! - Balance: no partition can move to another subscriber of its topic that has at least two partitions fewer. With
//!   equal subscriptions, the numbers of partitions of any two members differ by at most one.
//! - Stickiness: a target that is complete and balanced stays as it is. With equal subscriptions, no balanced
//!   assignment moves fewer partitions. With different subscriptions, few partitions move, not always the fewest.
//!
//! # Algorithm
//! Topics with the same subscribers form a class. Their partitions are interchangeable, so [`Balancer`] only decides
//! how many partitions of each class each member gets. [`hand_out`] then picks them, those of the target first.
//!
//! The balancer adds one partition at a time to an assignment that is balanced, starting with none. The partition goes
//! to the subscriber with the fewest partitions. If that member now has two more than another subscriber of one of its
//! classes, it hands on a partition of that class, and so on. The assignment was balanced without the extra partition,
//! so each member in this chain has one partition fewer than the one before it, and only the last one gains.
//! Two bounds follow, for p partitions:
//! - No chain has more than √(2p) + 1 members, because a chain of n members has 0 + 1 + … + (n - 1) partitions or more.
//! - The load of a member, its number of partitions, never falls. [`LeastLoaded`] therefore scans the s subscribers of
//!   a class once per minimum load, and at most p + s of them in total.
//!
//! Owned partitions are added first, bottom up: the first one of each member, then the second one of each. When it is
//! the turn of an owner's partition in a balanced target, all subscribers of its topic have at least as many as the
//! owner, so the owner gets it back and hands nothing on.
//!
//! # Why not as Kafka does
//! Kafka gives the partitions without an owner to the least loaded, then balances topic after topic, in at most 16
//! passes. With overlapping subscriptions, balancing one topic can unbalance another, so the result may be unbalanced.
//! Without the limit on passes, there is no good bound on the work.

use std::collections::BTreeMap;
use std::iter::repeat_n;

use super::super::partitions::Partitions;
use super::{GroupSpec, Topic};

/// For each topic, the member that has each of its partitions in its target.
type Owners = Vec<Vec<Option<usize>>>;

/// Returns the partitions of each member.
pub(super) fn assign(spec: &GroupSpec<'_>) -> Vec<Partitions> {
    let owners = current_owners(spec);
    let classes = topic_classes(spec);
    let mut class_by_topic = vec![0; spec.topics.len()];
    for (index, class) in classes.iter().enumerate() {
        for &topic in &class.topics {
            class_by_topic[topic] = index;
        }
    }
    let mut balancer = Balancer::new(spec, classes);
    for (topic, owners) in owners.iter().enumerate() {
        for &owner in owners {
            balancer.add(class_by_topic[topic], owner);
        }
    }
    hand_out(spec, &owners, &class_by_topic, balancer.balance())
}

fn current_owners(spec: &GroupSpec<'_>) -> Owners {
    let without_owners = |topic: &Topic| vec![None; usize::try_from(topic.partition_count).unwrap_or(0)];
    let mut owners: Owners = spec.topics.iter().map(without_owners).collect();
    for (member, subscriber) in spec.members.iter().enumerate() {
        for partition in subscriber.target {
            let Some(topic) = spec.topic(&partition.topic_id) else { continue };
            let number = usize::try_from(partition.partition).ok();
            let Some(owner) = number.and_then(|number| owners[topic].get_mut(number)) else { continue };
            if owner.is_none() && spec.subscription(member).binary_search(&topic).is_ok() {
                *owner = Some(member);
            }
        }
    }
    owners
}

/// Topics with the same subscribers.
#[derive(Debug)]
struct TopicClass {
    topics: Vec<usize>,
    subscribers: LeastLoaded,
    /// Partitions that are in no target.
    unowned: usize,
}

/// Returns the classes of all topics, those with the fewest subscribers first.
fn topic_classes(spec: &GroupSpec<'_>) -> Vec<TopicClass> {
    let mut subscriptions_by_topic = vec![Vec::new(); spec.topics.len()];
    for (subscription, topics) in spec.subscriptions.iter().enumerate() {
        for &topic in topics {
            subscriptions_by_topic[topic].push(subscription);
        }
    }
    let mut topics_by_subscriptions = BTreeMap::<_, Vec<usize>>::new();
    for (topic, subscriptions) in subscriptions_by_topic.into_iter().enumerate() {
        topics_by_subscriptions.entry(subscriptions).or_default().push(topic);
    }
    let mut members = vec![Vec::new(); topics_by_subscriptions.len()];
    let mut classes_by_subscription = vec![Vec::new(); spec.subscriptions.len()];
    for (class, subscriptions) in topics_by_subscriptions.keys().enumerate() {
        for &subscription in subscriptions {
            classes_by_subscription[subscription].push(class);
        }
    }
    for (member, &subscription) in spec.subscription_by_member.iter().enumerate() {
        for &class in &classes_by_subscription[subscription] {
            members[class].push(member);
        }
    }
    let mut classes: Vec<_> = topics_by_subscriptions
        .into_values()
        .zip(members)
        .map(|(topics, members)| TopicClass { topics, subscribers: LeastLoaded::new(members), unowned: 0 })
        .collect();
    classes.sort_by_key(|class| (class.subscribers.members.len(), class.topics[0]));
    classes
}

/// Finds the members with the lowest load, given that loads never fall.
#[derive(Debug)]
struct LeastLoaded {
    /// Ascending.
    members: Vec<usize>,
    /// A lower bound of the loads of all members.
    load_min: usize,
    /// All members whose load is `load_min`, and some whose load has grown since. The last one comes first.
    candidates: Vec<usize>,
    /// Whether the preferred candidates come first.
    is_sorted: bool,
}

impl LeastLoaded {
    fn new(members: Vec<usize>) -> Self {
        let candidates = members.iter().rev().copied().collect();
        Self { members, load_min: 0, candidates, is_sorted: false }
    }

    /// Whether a member has a lower load than `load`.
    fn any_below(&mut self, load: usize, loads: &[usize]) -> bool {
        self.load_min < load && {
            self.refresh(loads);
            self.load_min < load
        }
    }

    /// A member with the lowest load. Prefers one for which `is_preferred` was true when it became a candidate.
    fn first(&mut self, loads: &[usize], is_preferred: impl Fn(usize) -> bool) -> usize {
        self.refresh(loads);
        if !self.is_sorted {
            self.candidates.sort_by_cached_key(|&member| is_preferred(member));
            self.is_sorted = true;
            self.refresh(loads);
        }
        *self.candidates.last().expect("a member has the lowest load")
    }

    /// Makes `load_min` the minimum, and the last candidate a member that has it.
    fn refresh(&mut self, loads: &[usize]) {
        while self.candidates.pop_if(|member| loads[*member] > self.load_min).is_some() {}
        if self.candidates.is_empty() {
            self.load_min = self.members.iter().map(|&member| loads[member]).min().unwrap_or(0);
            let least_loaded = self.members.iter().rev().filter(|&&member| loads[member] == self.load_min);
            self.candidates.extend(least_loaded);
            self.is_sorted = false;
        }
    }
}

/// The partitions of a class that one member gets.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// How many are in its target.
    in_target: usize,
    /// How many it gets.
    count: usize,
}

/// The shares of a member, by class. A class without an entry is an empty share.
type Shares = BTreeMap<usize, Share>;

/// Decides how many partitions of each class each member gets.
#[derive(Debug)]
struct Balancer {
    classes: Vec<TopicClass>,
    /// All members with a subscription. While they have equal loads, no chain needs to look further.
    everyone: LeastLoaded,
    /// By member.
    shares: Vec<Shares>,
    /// Number of partitions, by member.
    loads: Vec<usize>,
}

impl Balancer {
    fn new(spec: &GroupSpec<'_>, classes: Vec<TopicClass>) -> Self {
        let members = 0..spec.members.len();
        let everyone = members.clone().filter(|&member| !spec.subscription(member).is_empty());
        Self {
            classes,
            everyone: LeastLoaded::new(everyone.collect()),
            shares: vec![Shares::new(); members.len()],
            loads: vec![0; members.len()],
        }
    }

    /// Adds a partition to assign, with the member that has it in its target.
    fn add(&mut self, class: usize, owner: Option<usize>) {
        match owner {
            Some(member) => self.shares[member].entry(class).or_default().in_target += 1,
            None => self.classes[class].unowned += 1,
        }
    }

    /// Assigns all added partitions. Returns the shares of each member.
    fn balance(mut self) -> Vec<Shares> {
        let mut owned = Vec::new();
        for (member, shares) in self.shares.iter().enumerate() {
            let classes = shares.iter().flat_map(|(&class, share)| repeat_n(class, share.in_target));
            owned.extend(classes.enumerate().map(|(height, class)| (height, member, class)));
        }
        owned.sort_unstable();
        for (_, owner, class) in owned {
            self.place(class, Some(owner));
        }
        for class in 0..self.classes.len() {
            for _ in 0..self.classes[class].unowned {
                self.place(class, None);
            }
        }
        self.shares
    }

    /// Assigns a partition and restores the balance.
    ///
    /// Prefers its owner among the least loaded subscribers. Otherwise many more partitions move when a member joins.
    fn place(&mut self, class: usize, owner: Option<usize>) {
        let least_loaded = self.least_loaded(class);
        let load_min = self.loads[least_loaded];
        let is_receiver =
            |&owner: &usize| self.loads[owner] == load_min && is_below_target(&self.shares[owner], class);
        let mut receiver = owner.filter(is_receiver).unwrap_or(least_loaded);
        self.shares[receiver].entry(class).or_default().count += 1;
        // The receiver has one partition more than its load says, until the chain ends.
        while let Some(class) = self.class_to_hand_on(receiver) {
            let next = self.least_loaded(class);
            debug_assert_eq!(self.loads[next] + 1, self.loads[receiver], "it was balanced before");
            self.shares[receiver].entry(class).or_default().count -= 1;
            self.shares[next].entry(class).or_default().count += 1;
            receiver = next;
        }
        self.loads[receiver] += 1;
    }

    /// A class of which the member has partitions and another subscriber has a lower load. Prefers a class of which the
    /// member has more partitions than its target.
    fn class_to_hand_on(&mut self, member: usize) -> Option<usize> {
        let load = self.loads[member];
        if !self.everyone.any_below(load, &self.loads) {
            return None;
        }
        let mut found = None;
        for (&class, share) in self.shares[member].iter().filter(|(_, share)| share.count > 0) {
            if self.classes[class].subscribers.any_below(load, &self.loads) {
                found = Some(class);
                if share.count > share.in_target {
                    break;
                }
            }
        }
        found
    }

    /// The subscriber with the fewest partitions. Prefers one that has fewer partitions of this class than its target.
    fn least_loaded(&mut self, class: usize) -> usize {
        let is_preferred = |member: usize| is_below_target(&self.shares[member], class);
        self.classes[class].subscribers.first(&self.loads, is_preferred)
    }
}

fn is_below_target(shares: &Shares, class: usize) -> bool {
    shares.get(&class).is_some_and(|share| share.count < share.in_target)
}

/// Picks partitions according to the shares: those in the target of a member first, then from what is left.
fn hand_out(
    spec: &GroupSpec<'_>,
    owners: &Owners,
    class_by_topic: &[usize],
    mut shares: Vec<Shares>,
) -> Vec<Partitions> {
    let mut assignment = vec![Vec::new(); spec.members.len()];
    let mut left = vec![Vec::new(); spec.topics.len()];
    for (topic, owners) in owners.iter().enumerate() {
        let class = class_by_topic[topic];
        for (number, &owner) in (0..).zip(owners) {
            let partition = spec.topics[topic].partition(number);
            let share = owner.and_then(|owner| Some((owner, shares[owner].get_mut(&class)?)));
            match share.filter(|(_, share)| share.count > 0) {
                Some((owner, share)) => {
                    share.count -= 1;
                    assignment[owner].push(partition);
                }
                None => left[class].push(partition),
            }
        }
    }
    let mut left: Vec<_> = left.into_iter().map(Vec::into_iter).collect();
    for (partitions, shares) in assignment.iter_mut().zip(shares) {
        for (class, share) in shares {
            partitions.extend(left[class].by_ref().take(share.count));
        }
    }
    debug_assert!(left.iter().all(|left| left.len() == 0), "all partitions have owners");
    assignment.into_iter().map(Partitions::from_iter).collect()
}
