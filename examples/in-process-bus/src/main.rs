//! Topics inside one program: sensors publish readings, a monitor reacts in a callback, two workers share a mailbox.
//!
//! The callback runs on the publishing thread, before `publish` returns. The workers' mailbox is bounded; when it is
//! full, `publish` blocks, so that a slow worker slows the sensors down and no reading is lost.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use mainstem_bus::{Bus, Overflow};

const SENSORS: u32 = 4;
const READINGS_EACH: u32 = 100;
/// Readings above this are hot, tenths of a degree.
const HOT: u32 = 900;

fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::new();

    let hot = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&hot);
    let _monitor = bus.subscribe("sensor/+/temp").callback(move |reading| {
        if *reading.payload() > HOT {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    // Each reading goes to one of the two workers.
    let worker = || bus.subscribe("$share/store/sensor/#").capacity(16).overflow(Overflow::Block).mailbox();
    let workers = [worker()?, worker()?];

    let stored = AtomicU32::new(0);
    thread::scope(|scope| {
        for worker in &workers {
            let stored = &stored;
            scope.spawn(move || {
                for _reading in worker.iter() {
                    stored.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let publish = |sensor: u32| {
            for reading in 0..READINGS_EACH {
                let tenths = reading * 10;
                bus.publish(&format!("sensor/{sensor}/temp"), tenths).expect("the bus is open");
            }
        };
        thread::scope(|sensors| {
            for sensor in 0..SENSORS {
                sensors.spawn(move || publish(sensor));
            }
        });
        // Ends the workers' loops once they have taken everything.
        bus.close();
    });
    println!("{} readings stored, {} of them hot", stored.into_inner(), hot.load(Ordering::Relaxed));
    Ok(())
}
