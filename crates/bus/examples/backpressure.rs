//! An async consumer that slows its publisher down instead of losing messages.
//!
//! `cargo run -p mainstem-bus --example backpressure`
//!
//! A mailbox is a `Stream` and knows of no runtime; this example uses tokio's. The publisher is a thread, since
//! waiting for room blocks: async code that publishes to such a subscription does so from `spawn_blocking`.

use std::error::Error;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use futures_util::StreamExt;
use mainstem_bus::{Bus, Overflow};

const READINGS: u32 = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::new();
    let mut readings = pin!(bus.subscribe("sensor/#").capacity(8).overflow(Overflow::Block).mailbox()?);

    let publisher = thread::spawn(move || {
        for number in 0..READINGS {
            bus.publish("sensor/1", number).expect("the bus is open");
        }
        // With its last handle the bus is closed, and the stream ends.
    });

    let (mut received, mut most_waiting) = (0, 0);
    while let Some(message) = readings.next().await {
        assert_eq!(*message.payload(), received);
        received += 1;
        most_waiting = most_waiting.max(readings.stats().lag);
        // Some slow work.
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    publisher.join().expect("the publisher does not panic");
    println!("{received} of {READINGS} received, never more than {most_waiting} waiting");
    assert_eq!((received, readings.stats().dropped), (READINGS, 0));
    Ok(())
}
