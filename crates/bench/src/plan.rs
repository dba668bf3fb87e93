//! Assignment of publishers and subscribers to topics.
//!
//! The unit is the *stream*: one publisher's messages on one topic, numbered 0, 1, 2, ... MQTT guarantees order per
//! stream [MQTT-4.6.0-6], so losses, duplicates and reordering are counted per stream and receiver. Stream *s*
//! belongs to publisher `s mod publishers` and topic `s mod topics`.

use crate::error::BenchError;
use crate::options::{Options, Scenario};

/// How topics map to subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// Every subscriber receives every topic.
    Everyone,
    /// Only subscriber `t mod subscribers` receives topic *t*.
    Divided,
    /// One subscriber of the group receives each message.
    Shared,
}

/// The connections, topics and streams of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    scenario: Scenario,
    /// Distinguishes the topics of this run from those of other runs.
    run: String,
    pub(crate) publishers: u32,
    pub(crate) subscribers: u32,
    pub(crate) topics: u32,
    pub(crate) routing: Routing,
}

impl Plan {
    /// Builds the plan, with the scenario's defaults for absent counts.
    ///
    /// # Errors
    /// [`BenchError::Options`] if the counts do not fit the scenario.
    pub(crate) fn new(scenario: Scenario, options: &Options, run: String) -> Result<Self, BenchError> {
        let (publishers, subscribers) = match scenario {
            Scenario::Pairs => {
                let pairs = options.publishers.or(options.subscribers).unwrap_or(1);
                (pairs, options.subscribers.unwrap_or(pairs))
            }
            _ => (options.publishers.unwrap_or(1), options.subscribers.unwrap_or(1)),
        };
        let topics = options.topics.unwrap_or(match scenario {
            Scenario::FanOut | Scenario::Shared => 1,
            Scenario::FanIn | Scenario::Pairs => publishers,
        });
        let routing = match scenario {
            Scenario::FanOut => Routing::Everyone,
            Scenario::FanIn if options.overlap => Routing::Everyone,
            Scenario::FanIn | Scenario::Pairs => Routing::Divided,
            Scenario::Shared => Routing::Shared,
        };
        let reject = |why: &str| Err(BenchError::Options(why.into()));
        if options.overlap && scenario != Scenario::FanIn {
            return reject("--overlap requires the scenario fan-in");
        }
        if scenario == Scenario::Pairs && (publishers != subscribers || topics != publishers) {
            return reject("pairs requires equal numbers of publishers, subscribers and topics");
        }
        if routing == Routing::Divided && subscribers > topics {
            return reject("with more subscribers than topics, some would receive nothing");
        }
        Ok(Self { scenario, run, publishers, subscribers, topics, routing })
    }

    /// Number of streams.
    pub(crate) fn streams(&self) -> u32 {
        self.publishers.max(self.topics)
    }

    /// Number of streams of a publisher: streams `publisher + i * publishers`.
    pub(crate) fn streams_of(&self, publisher: u32) -> u32 {
        (self.streams() - publisher).div_ceil(self.publishers)
    }

    /// Stream and sequence number of a publisher's message `n`.
    #[inline]
    pub(crate) fn place(&self, publisher: u32, n: u64) -> (u32, u32) {
        let own = u64::from(self.streams_of(publisher));
        (publisher + (n % own) as u32 * self.publishers, (n / own) as u32)
    }

    /// Inverse of [`Plan::place`]: the publisher, and the index among its messages.
    #[inline]
    pub(crate) fn origin(&self, stream: u32, sequence: u32) -> (u32, u64) {
        let publisher = stream % self.publishers;
        let own = u64::from(self.streams_of(publisher));
        (publisher, u64::from(sequence) * own + u64::from(stream / self.publishers))
    }

    /// The subscriber of a stream under [`Routing::Divided`].
    #[inline]
    pub(crate) fn receiver_of(&self, stream: u32) -> u32 {
        stream % self.topics % self.subscribers
    }

    /// Number of messages sent on a stream if publisher *p* sent `sent[p]` over all its streams.
    pub(crate) fn sent_on(&self, stream: u32, sent: &[u64]) -> u64 {
        let own = u64::from(self.streams_of(stream % self.publishers));
        let place = u64::from(stream / self.publishers);
        (sent[(stream % self.publishers) as usize] + own - 1 - place) / own
    }

    /// Number of streams of a subscriber under [`Routing::Divided`].
    pub(crate) fn streams_to(&self, subscriber: u32) -> usize {
        (subscriber..self.topics)
            .step_by(self.subscribers as usize)
            .map(|topic| (self.streams() - topic).div_ceil(self.topics) as usize)
            .sum()
    }

    /// Deliveries per message.
    pub(crate) fn copies(&self) -> u32 {
        match self.routing {
            Routing::Everyone => self.subscribers,
            Routing::Divided | Routing::Shared => 1,
        }
    }

    pub(crate) fn topic_of(&self, stream: u32) -> String {
        self.topic(stream % self.topics)
    }

    /// Topic filters of a subscriber.
    pub(crate) fn filters_of(&self, subscriber: u32) -> Vec<String> {
        match (self.scenario, self.routing) {
            (Scenario::FanIn, Routing::Everyone) => vec![format!("bench/{}/#", self.run)],
            (Scenario::FanIn, _) => vec![format!("bench/{}/{subscriber}/+", self.run)],
            (Scenario::Pairs, _) => vec![self.topic(subscriber)],
            (Scenario::FanOut, _) => (0..self.topics).map(|t| self.topic(t)).collect(),
            (Scenario::Shared, _) => {
                (0..self.topics).map(|t| format!("$share/bench/{}", self.topic(t))).collect()
            }
        }
    }

    fn topic(&self, topic: u32) -> String {
        match self.scenario {
            Scenario::FanIn => format!("bench/{}/{}/{topic}", self.run, topic % self.subscribers),
            _ => format!("bench/{}/{topic}", self.run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(scenario: Scenario, publishers: u32, subscribers: u32, topics: Option<u32>) -> Plan {
        let options = Options {
            publishers: Some(publishers),
            subscribers: Some(subscribers),
            topics,
            ..Options::sample()
        };
        Plan::new(scenario, &options, "r".into()).unwrap()
    }

    #[test]
    fn place_and_origin_are_inverse() {
        for (publishers, topics) in [(1, 1), (3, 2), (2, 5), (4, 6), (5, 5)] {
            let plan = plan(Scenario::FanOut, publishers, 1, Some(topics));
            let mut streams = std::collections::BTreeSet::new();
            for publisher in 0..publishers {
                for n in 0..20 {
                    let (stream, sequence) = plan.place(publisher, n);
                    assert_eq!(plan.origin(stream, sequence), (publisher, n));
                    streams.insert(stream);
                }
            }
            assert_eq!(streams.len(), plan.streams() as usize, "all streams are used");
            let sent: Vec<u64> = (0..publishers).map(|p| 17 + u64::from(p)).collect();
            let mut on = vec![0; plan.streams() as usize];
            for p in 0..publishers {
                (0..sent[p as usize]).for_each(|n| on[plan.place(p, n).0 as usize] += 1);
            }
            let counted: Vec<u64> = (0..plan.streams()).map(|s| plan.sent_on(s, &sent)).collect();
            assert_eq!(counted, on);
            assert_eq!(streams.last(), Some(&(plan.streams() - 1)));
        }
    }

    #[test]
    fn fan_in_matches_each_topic_with_one_filter() {
        let plan = plan(Scenario::FanIn, 7, 3, None);
        assert_eq!(plan.copies(), 1);
        for stream in 0..plan.streams() {
            let topic = plan.topic_of(stream);
            let receivers: Vec<u32> =
                (0..3).filter(|s| topic.starts_with(plan.filters_of(*s)[0].trim_end_matches('+'))).collect();
            assert_eq!(receivers, [plan.receiver_of(stream)], "{topic}");
        }
        for (publishers, topics) in [(7, 7), (9, 4), (4, 9)] {
            let plan = super::tests::plan(Scenario::FanIn, publishers, 3, Some(topics));
            for subscriber in 0..3 {
                let own = (0..plan.streams()).filter(|s| plan.receiver_of(*s) == subscriber).count();
                assert_eq!(plan.streams_to(subscriber), own);
            }
        }
    }

    #[test]
    fn pairs_connect_publisher_and_subscriber_of_equal_number() {
        let plan = plan(Scenario::Pairs, 4, 4, None);
        for i in 0..4 {
            assert_eq!(plan.filters_of(i), [plan.topic_of(i)]);
            assert_eq!(plan.receiver_of(i), i);
        }
    }

    #[test]
    fn fan_out_and_shared_have_expected_copies_and_filters() {
        let fan_out = plan(Scenario::FanOut, 1, 50, Some(2));
        assert_eq!((fan_out.copies(), fan_out.filters_of(9).len()), (50, 2));
        let shared = plan(Scenario::Shared, 3, 8, None);
        assert_eq!((shared.copies(), shared.streams()), (1, 3));
        assert_eq!(shared.filters_of(0), ["$share/bench/bench/r/0"]);
    }

    #[test]
    fn rejects_counts_that_do_not_fit_the_scenario() {
        let refused = |scenario, publishers, subscribers, topics, overlap| {
            let options = Options { publishers, subscribers, topics, overlap, ..Options::sample() };
            Plan::new(scenario, &options, "r".into()).is_err()
        };
        assert!(refused(Scenario::Pairs, Some(2), Some(3), None, false));
        assert!(refused(Scenario::Pairs, Some(2), None, Some(3), false));
        assert!(refused(Scenario::FanIn, Some(2), Some(3), None, false));
        assert!(refused(Scenario::FanOut, None, None, None, true));
        assert!(!refused(Scenario::FanIn, Some(2), Some(3), None, true));
    }
}
