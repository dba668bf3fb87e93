//! Clients that look on: witnesses of a delivery, and innocents beside a client that misbehaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Broker, Client, Version, unique};

/// Enough connections that every shard of the broker has one, as good as surely.
const WITNESSES: usize = 16;
/// Pause between two messages of the bystanders.
const PAUSE: Duration = Duration::from_millis(1);

/// Subscribers on every shard, to tell when a message has been handed to all subscribers there are.
#[derive(Debug)]
pub struct Witnesses(Vec<Client>);

impl Witnesses {
    /// Subscribes to `topic` at QoS 0.
    #[track_caller]
    pub fn of(broker: &Broker, topic: &str) -> Self {
        let witness = |_| {
            let mut client = Client::connect(broker, Version::V5);
            client.subscribe(topic, 0);
            client
        };
        Self((0..WITNESSES).map(witness).collect())
    }

    /// Waits until the message `text` has come on every shard.
    #[track_caller]
    pub fn wait_for(self, text: &str) {
        for mut witness in self.0 {
            while witness.expect_message().text() != text {}
        }
    }
}

/// A publisher and a subscriber that exchange QoS 1 messages, one after another, while something else goes on.
#[derive(Debug)]
pub struct Bystanders {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Bystanders {
    /// Starts them on a thread of their own.
    #[track_caller]
    pub fn start(broker: &Broker) -> Self {
        let topic = unique("bystander");
        let mut subscriber = Client::connect(broker, Version::V5);
        subscriber.subscribe(&topic, 1);
        let mut publisher = Client::connect(broker, Version::V4);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut latencies = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let text = latencies.len().to_string();
                let start = Instant::now();
                publisher.publish(&topic, &text, 1);
                assert_eq!(subscriber.expect_message().text(), text, "bystanders lose a message");
                latencies.push(start.elapsed());
                publisher.pass(PAUSE);
            }
            latencies
        });
        Self { stop, thread }
    }

    /// Ends the exchange. Every message was delivered in order within the deadline, or this panics.
    /// Prints how long the messages took.
    #[track_caller]
    pub fn finish(self, during: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut latencies = self.thread.join().expect("the bystanders notice nothing");
        latencies.sort_unstable();
        assert!(!latencies.is_empty(), "the bystanders had no time for a single message");
        let at = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
        println!(
            "{during}: {} messages beside it; latency p50 {:?}, p99 {:?}, max {:?}",
            latencies.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}
