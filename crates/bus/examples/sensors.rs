//! Typed sensor readings, and three ways to consume them.
//!
//! `cargo run -p mainstem-bus --example sensors`

use std::error::Error;
use std::thread;

use mainstem_bus::{Bus, Overflow};

/// What a sensor says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Celsius(f64),
    Bar(f64),
}

fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::new();

    // At once, in the thread of the sensor. An error is reported and counted, and harms nobody.
    let _limits = bus.subscribe("plant/+/temp").callback(|event| match event.payload() {
        Reading::Celsius(celsius) if *celsius > 90.0 => Err(format!("{} is at {celsius} °C", event.topic())),
        _ => Ok(()),
    })?;
    // Later, in a thread of its own. The publisher waits if it falls a hundred behind.
    let archive = bus.subscribe("plant/#").capacity(100).overflow(Overflow::Block).mailbox()?;
    // In batches. Who reads the mean of the last readings has no use for all of them.
    let mut mean = bus.subscribe("plant/+/temp").capacity(16).cursor()?;

    let archivist = thread::spawn(move || archive.iter().count());
    for press in 0..100 {
        bus.publish(&format!("plant/{press}/temp"), Reading::Celsius(f64::from(press)))?;
        bus.publish(&format!("plant/{press}/pressure"), Reading::Bar(2.5))?;
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
    println!("{} archived", archivist.join().expect("the archivist does not panic"));
    Ok(())
}
