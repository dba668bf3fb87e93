//! The clients of a run and their threads.
//!
//! The mix covers both protocol versions, QoS 1 and 2, small and large windows, sessions that are mostly offline, late
//! subscribers, renewed sessions, and a shared subscription whose members are sometimes all offline.

use super::publisher::{self, Publisher};
use super::shared::{LIVE, LOST, RETAINED, SharedState, Stream};
use super::subscriber::{self, Subscriber, Trackers};
use super::{retained, will};
use mainstem_conformance::Version::{self, V4, V5};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::Scope;
use std::time::Duration;

/// Number of topics per publisher.
const TOPICS: usize = 4;

/// Profile of a publisher.
struct Publishing {
    version: Version,
    qos: u8,
    retain: bool,
    window: usize,
    /// Share of all messages, in percent.
    share: f64,
}

const fn publishing(version: Version, qos: u8, window: usize, share: f64) -> Publishing {
    Publishing { version, qos, retain: false, window, share }
}

const fn retaining(version: Version, qos: u8) -> Publishing {
    Publishing { version, qos, retain: true, window: 16, share: 3.0 }
}

const PUBLISHERS: [Publishing; 7] = [
    publishing(V5, 1, 100, 25.0),
    publishing(V4, 1, 100, 20.0),
    publishing(V5, 2, 100, 25.0),
    publishing(V4, 2, 50, 20.0),
    publishing(V5, 2, 1, 4.0),
    retaining(V5, 1),
    retaining(V4, 2),
];

/// Streams of all publishers, in the order of [`PUBLISHERS`].
pub(super) fn streams() -> Vec<Stream> {
    let of = |(publisher, publishing): (usize, &Publishing)| {
        let root = if publishing.retain { RETAINED } else { LIVE };
        let topic = move |topic| format!("{root}/{publisher}/{topic}");
        let (qos, retain) = (publishing.qos, publishing.retain);
        (0..TOPICS).map(move |index| Stream::new(topic(index), qos, retain)).collect::<Vec<_>>()
    };
    PUBLISHERS.iter().enumerate().flat_map(of).collect()
}

fn publisher_plans(rate: f64) -> impl Iterator<Item = publisher::Plan> {
    PUBLISHERS.iter().enumerate().map(move |(index, publishing)| publisher::Plan {
        name: format!("kill-publisher-{index}"),
        version: publishing.version,
        streams: index * TOPICS..(index + 1) * TOPICS,
        window: publishing.window,
        rate: rate * publishing.share / 100.0,
    })
}

const fn seconds(from: u64, to: u64) -> Range<Duration> {
    Duration::from_secs(from)..Duration::from_secs(to)
}

const STEADY: (Range<Duration>, Range<Duration>) = (seconds(5, 20), seconds(0, 1));
const MOSTLY_AWAY: (Range<Duration>, Range<Duration>) = (seconds(1, 2), seconds(4, 12));
const ALTERNATING: (Range<Duration>, Range<Duration>) = (seconds(1, 3), seconds(1, 3));

/// Subscribers with trackers of their own.
fn subscriber_plans(length: Duration) -> Vec<subscriber::Plan> {
    let plan =
        |name: &str, version, qos, (online, offline): (Range<Duration>, Range<Duration>)| subscriber::Plan {
            name: format!("kill-subscriber-{name}"),
            version,
            filter: format!("{LIVE}/#"),
            qos,
            receive_maximum: u16::MAX,
            online,
            offline,
            after: Duration::ZERO,
            renew: None,
            is_member: false,
        };
    vec![
        plan("steady-1", V5, 1, STEADY),
        plan("steady-2", V5, 2, STEADY),
        plan("steady-2-311", V4, 2, STEADY),
        plan("away-1", V4, 1, MOSTLY_AWAY),
        plan("away-2", V5, 2, MOSTLY_AWAY),
        subscriber::Plan { receive_maximum: 5, ..plan("narrow", V5, 2, STEADY) },
        subscriber::Plan { after: length / 4, ..plan("late", V5, 2, ALTERNATING) },
        subscriber::Plan { renew: Some(seconds(2, 8)), ..plan("renewed", V5, 2, ALTERNATING) },
    ]
}

/// Members of the shared subscription. Sometimes all of them are offline.
fn member_plans() -> impl Iterator<Item = subscriber::Plan> {
    [("a", V5), ("b", V5), ("c", V4)].into_iter().map(|(name, version)| subscriber::Plan {
        name: format!("kill-member-{name}"),
        version,
        filter: format!("$share/kill/{LIVE}/#"),
        qos: 2,
        receive_maximum: if name == "b" { 20 } else { u16::MAX },
        online: ALTERNATING.0,
        offline: ALTERNATING.1,
        after: Duration::ZERO,
        renew: None,
        is_member: true,
    })
}

/// A receiver, as seen by the driver of the run.
struct Receiver {
    name: String,
    trackers: Trackers,
    is_complete: Arc<AtomicBool>,
    is_first: bool,
}

/// All receivers of a run.
pub(super) struct Receivers(Vec<Receiver>);

impl Receivers {
    /// Whether all subscribers that start immediately have their SUBACK.
    pub(super) fn are_ready(&self) -> bool {
        let ready = |trackers: &Trackers| !trackers.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        self.0.iter().filter(|receiver| receiver.is_first).all(|receiver| ready(&receiver.trackers))
    }

    /// Whether all receivers have all messages.
    pub(super) fn are_complete(&self) -> bool {
        self.0.iter().all(|receiver| receiver.is_complete.load(Ordering::SeqCst))
    }

    /// Reports missing messages as violations.
    pub(super) fn report_lost(&self, shared: &SharedState) {
        for Receiver { name, trackers, .. } in &self.0 {
            let trackers = trackers.lock().unwrap_or_else(PoisonError::into_inner);
            if trackers.is_empty() {
                shared.violations.add("never subscribed", name);
            }
            let live = shared.streams.iter().zip(trackers.iter()).filter(|(stream, _)| !stream.retain);
            let lost = live.map(|(stream, tracker)| (&stream.topic, tracker.lost_before(stream.acked())));
            let lost: Vec<_> = lost.filter(|(_, lost)| !lost.is_empty()).collect();
            if let Some((topic, first)) = lost.first() {
                let (topics, first) = (lost.len(), &first[..first.len().min(4)]);
                let count = lost.iter().map(|(_, lost)| lost.len() as u64).sum();
                let sentence =
                    format_args!("{name}: {count} on {topics} topics, such as {first:?} on {topic}");
                shared.violations.add_many(LOST, count, sentence);
            }
        }
    }
}

/// Starts all receivers.
pub(super) fn receive<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope SharedState,
    length: Duration,
) -> Receivers {
    let mut receivers = Vec::new();
    let group = Trackers::default();
    let own = subscriber_plans(length).into_iter().map(|plan| (plan, Trackers::default()));
    let all = own.chain(member_plans().map(|plan| (plan, Arc::clone(&group))));
    for ((plan, trackers), index) in all.zip(100..) {
        let (name, is_first) = (plan.name.clone(), plan.after.is_zero());
        let subscriber = Subscriber::new(shared, plan, index, Arc::clone(&trackers));
        let is_complete = subscriber.completion();
        // The members share their trackers, so only the first one is checked.
        if receivers.iter().all(|known: &Receiver| !Arc::ptr_eq(&known.trackers, &trackers)) {
            receivers.push(Receiver { name, trackers, is_complete, is_first });
        }
        scope.spawn(move || subscriber.run());
    }
    scope.spawn(move || will::watch(shared));
    Receivers(receivers)
}

/// Starts all other clients: publishers, clients with wills, readers of retained messages.
pub(super) fn publish<'scope>(scope: &'scope Scope<'scope, '_>, shared: &'scope SharedState, rate: f64) {
    for (plan, index) in publisher_plans(rate).zip(200..) {
        scope.spawn(move || Publisher::new(shared, plan, index).run());
    }
    scope.spawn(move || will::run_due(shared, 300));
    scope.spawn(move || will::run_not_due(shared));
    scope.spawn(move || retained::watch(shared));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_publisher_has_its_own_streams() {
        let streams = streams();
        let plans: Vec<_> = publisher_plans(100.0).collect();
        assert_eq!(plans.last().unwrap().streams.end, streams.len());
        for plan in plans {
            let own = &streams[plan.streams];
            assert!(own.iter().all(|stream| stream.qos == own[0].qos && stream.retain == own[0].retain));
        }
        assert!((PUBLISHERS.iter().map(|publishing| publishing.share).sum::<f64>() - 100.0).abs() < 1e-9);
    }
}
