//! A group of workers that shares jobs: each job goes to the least busy one, and none is lost when a worker leaves.
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
    // Whoever has jobs to give away waits if all workers have ten to do.
    let hire = || bus.subscribe("$share/workers/jobs/#").capacity(10).overflow(Overflow::Block).mailbox();
    let (first, second, quitter) = (hire()?, hire()?, hire()?);

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
        // Does one job, then leaves the others what it had been given.
        let quitter = scope.spawn(|| {
            done.fetch_add(u32::from(quitter.recv().is_ok()), Ordering::Relaxed);
            drop(quitter);
        });
        for job in 0..JOBS {
            let told = bus.publish(&format!("jobs/{}", job % 7), job).expect("the bus is open");
            assert_eq!(told.delivered, 1);
        }
        quitter.join().expect("the quitter does not panic");
        bus.close();
    });
    println!("{} of {JOBS} jobs are done", done.load(Ordering::Relaxed));
    assert_eq!(done.into_inner(), JOBS);
    Ok(())
}
