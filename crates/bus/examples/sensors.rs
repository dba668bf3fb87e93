//! Typed sensor readings, and three ways to consume them.
//!
//! `cargo run -p mainstem-bus --example sensors`

use std::error::Error;
use std::thread;

use mainstem_bus::{Bus, Overflow};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Celsius(f64),
    Bar(f64),
}

fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::new();

    // Runs on the thread of the publisher. An error is reported and counted, and does not affect other subscribers.
    let _limits = bus.subscribe("plant/+/temp").callback(|event| match event.payload() {
        Reading::Celsius(celsius) if *celsius > 90.0 => Err(format!("{} is at {celsius} °C", event.topic())),
        _ => Ok(()),
    })?;
    // Read on a thread of its own. The publisher blocks when 100 messages are queued.
    let archive = bus.subscribe("plant/#").capacity(100).overflow(Overflow::Block).mailbox()?;
    // Read in batches. Only the last 16 readings are needed, so older ones may be dropped.
    let mut mean = bus.subscribe("plant/+/temp").capacity(16).cursor()?;

    let archiver = thread::spawn(move || archive.iter().count());
    for line in 0..100 {
        bus.publish(&format!("plant/{line}/temp"), Reading::Celsius(f64::from(line)))?;
        bus.publish(&format!("plant/{line}/pressure"), Reading::Bar(2.5))?;
    }
    let (mut sum, mut count) = (0.0, 0);
    while let Some(batch) = Some(mean.try_batch(8)?).filter(|batch| !batch.is_empty()) {
        for event in batch.iter() {
            if let Reading::Celsius(celsius) = event.payload() {
                sum += celsius;
                count += 1;
            }
        }
    }
    let stats = bus.stats();
    println!("{} published, {} failed, {} dropped", stats.published, stats.failed, stats.dropped);
    println!("the last {count} readings have a mean of {} °C", sum / f64::from(count));

    bus.close();
    println!("{} archived", archiver.join().expect("the archiver does not panic"));
    Ok(())
}
