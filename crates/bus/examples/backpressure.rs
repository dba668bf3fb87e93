//! An async consumer that slows its publisher down instead of losing messages.
//!
//! `cargo run -p mainstem-bus --example backpressure`
//!
//! A mailbox is a `Stream` that works with any runtime; this example uses tokio. With `Overflow::Block`, `publish`
//! blocks its thread, so the publisher runs on a thread of its own. Async code would publish from `spawn_blocking`.

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
        // Dropping the last handle closes the bus, which ends the stream.
    });

    let (mut received, mut max_lag) = (0, 0);
    while let Some(message) = readings.next().await {
        assert_eq!(*message.payload(), received);
        received += 1;
        max_lag = max_lag.max(readings.stats().lag);
        // Simulates slow work.
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    publisher.join().expect("the publisher does not panic");
    println!("received {received} of {READINGS} readings, at most {max_lag} were queued");
    assert_eq!((received, readings.stats().dropped), (READINGS, 0));
    Ok(())
}
