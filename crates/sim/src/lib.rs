//! The simulator: whole brokers with their clients, network and disk, from one seed.
//!
//! [`try_seed`] lets a broker run as a test would not dare to: clients publish, subscribe, acknowledge late or
//! never, vanish and come back; the network delivers bytes in pieces; the process is killed, loses power or is asked
//! to end, at any step, and is started again with what is left on the disk, perhaps with another number of shards;
//! the disk fails, or is full for a while. Time, network and disk are virtual, and every choice comes from the seed.
//!
//! | what holds | where |
//! |---|---|
//! | what was acknowledged reaches every session that had asked for it and is still there | `Ledger::check_losses` |
//! | QoS 2 from end to end exactly once, shared subscriptions included | `Ledger::arrive` |
//! | order for each publisher and topic, of what comes for the first time | `Ledger::arrive` |
//! | the retained message is the last that was acknowledged, or a later one | `Ledger::check_retained_now` |
//! | no message to a session that has not asked for it, or not any more | `Ledger::arrive` |
//! | a packet identifier keeps its message until it is released | `Client::incoming` |
//! | a will that its delay does not put off is published, whatever ends the connection | `Client::leave_will` |
//! | a session whose client was told of it is there until it expires, and not after a clean start | `Client::connack` |
//! | no more in flight than Receive Maximum; queues, sessions, and whatever is remembered of what was under way, are gone when nobody needs them | `Client::incoming`, `Run::check_gauges` |
//!
//! # What this crate must never know
//! The real clock, the real network, the real disk. What a broker does inside: it is judged by what its clients see.
//!
//! # Entry points
//! [`try_seed`], [`trace`]; [`Flaw`] for tests that plant bugs. [`kafka`] has the same for the Kafka door,
//! [`queue`] for work queues.
//!
//! # Files
//! `plan` what a run is made of · `run` steps · `finish` its end · `client` · `frames` packets · `ledger` what was
//! promised · `machine` the broker's process · `disk` commits that take time · `flaw` planted bugs ·
//! `world` what is under the clients of `queue` ·
//! `heard` what the broker logs.

mod client;
mod disk;
mod finish;
mod flaw;
mod frames;
mod heard;
pub mod kafka;
mod ledger;
mod machine;
mod plan;
pub mod queue;
mod run;
mod world;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainstem_disk::fault::FaultFs;

pub use flaw::{Flaw, Sound};
pub use ledger::Violation;
pub use machine::Wrap;
pub use run::Tally;

use run::Run;

fn run(seed: u64, fs: FaultFs, flaw: &mut dyn Flaw) -> Result<Tally, Violation> {
    caught(|| {
        let mut run = Run::new(seed, fs, flaw)?;
        for _ in 0..run.plan.steps {
            run.step()?;
        }
        run.finish()?;
        let acked = run.ledger.messages.iter().filter(|message| message.acked.is_some());
        let (acknowledged, delivered) = (acked.count() as u64, run.ledger.deliveries);
        Ok(Tally { acknowledged, delivered, ..run.tally })
    })
}

/// What a run comes to. A panic is a violation as well.
fn caught(run: impl FnOnce() -> Result<Tally, Violation>) -> Result<Tally, Violation> {
    let outcome = catch_unwind(AssertUnwindSafe(run));
    outcome.unwrap_or_else(|panic| Err(Violation(format!("panic: {}", message_of(&*panic)))))
}

/// All that happens in a run, one line each.
fn traced(seed: u64, run: impl FnOnce(FaultFs) -> Result<Tally, Violation>) -> Vec<String> {
    let fs = FaultFs::new(seed);
    fs.trace();
    heard::listen();
    let outcome = run(fs.clone());
    heard::stop();
    let mut trace = fs.take_trace();
    trace.push(format!("{outcome:?}"));
    trace
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Runs one seed.
///
/// # Errors
/// What the broker did wrong.
pub fn try_seed(seed: u64, flaw: &mut dyn Flaw) -> Result<Tally, Violation> {
    run(seed, FaultFs::new(seed), flaw)
}

/// Everything that happens with one seed, one line each: packets, calls of the file system, ends and beginnings.
pub fn trace(seed: u64, flaw: &mut dyn Flaw) -> Vec<String> {
    traced(seed, |fs| run(seed, fs, flaw))
}
