//! A group of workers that share jobs. Each job goes to the least loaded worker, and none is lost when a worker leaves.
//!
//! `cargo run -p mainstem-bus --example workers`

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use mainstem_bus::{Bus, Overflow};

const JOBS: u32 = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let bus = Bus::new();
    let done = AtomicU32::new(0);
    // The publisher blocks while every worker has ten jobs queued.
    let subscribe =
        || bus.subscribe("$share/workers/jobs/#").capacity(10).overflow(Overflow::Block).mailbox();
    let (first, second, leaver) = (subscribe()?, subscribe()?, subscribe()?);

    thread::scope(|scope| {
        for (name, worker) in [("first", first), ("second", second)] {
            let done = &done;
            scope.spawn(move || {
                let mut own = 0;
                for _job in worker.iter() {
                    own += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                println!("the {name} worker did {own} jobs");
            });
        }
        // Does one job, then leaves; its queued jobs go to the other workers.
        let leaver = scope.spawn(|| {
            done.fetch_add(u32::from(leaver.recv().is_ok()), Ordering::Relaxed);
            drop(leaver);
        });
        for job in 0..JOBS {
            let result = bus.publish(&format!("jobs/{}", job % 7), job).expect("the bus is open");
            assert_eq!(result.delivered, 1);
        }
        leaver.join().expect("the leaving worker does not panic");
        bus.close();
    });
    println!("{} of {JOBS} jobs are done", done.load(Ordering::Relaxed));
    assert_eq!(done.into_inner(), JOBS);
    Ok(())
}
