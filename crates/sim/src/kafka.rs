//! The Kafka door under clients of its own, from one seed: producers that send again what was not acknowledged, with
//! transactions and without; readers that remember all they have seen; groups that commit offsets; administrators; and
//! publishers of MQTT whose messages a binding takes to a topic.
//!
//! | what holds | where |
//! |---|---|
//! | what was acknowledged is there, whatever has happened since | `Ledger::check_losses` |
//! | it is there once: what an idempotent producer sends again keeps its offset | `Ledger::place`, `Ledger::acked` |
//! | records of one producer keep their order in a partition | `Ledger::place` |
//! | what stands at an offset never changes, and there are no gaps | `Ledger::place`, `Consumer::read` |
//! | high watermark, last stable offset and start never go back behind what anybody was told | `Ledger::told` |
//! | readers of committed transactions are shown them whole, and nothing else of transactions | `Ledger::shown`, `Ledger::hidden` |
//! | of producers with one transactional id, all but the last are fenced; no two others have one producer id | `Ledger::fence`, `Ledger::given_id` |
//! | committed offsets never go back, and those of transactions count with them | `Committer`, `GroupMember`, `Ledger::found_offset` |
//! | in one generation of a group each partition is given to one member | `Ledger::given_part` |
//! | a topic is, has and is set to what was asked for last; one that was deleted stays so, with its records | `Admin` |
//! | a message that was acknowledged is in its topic, at QoS 2 once unless a broker ended in between | `Ledger::check_messages` |
//!
//! Two things are not asked for, as Kafka does not promise them: after a crash, that records stay away which were
//! deleted while others of the partition were not; and where a disk fails for a moment, that a producer can go on.

mod admin;
mod client;
mod committer;
mod consumer;
mod ends;
mod finish;
mod flaw;
mod ledger;
mod maker;
mod member;
mod plan;
mod producer;
mod run;
mod transactor;
mod wire;

use mainstem_disk::fault::FaultFs;

pub use flaw::Flaw;

use crate::ledger::Violation;
use crate::run::Tally;
use run::Run;

fn run(seed: u64, fs: FaultFs, flaw: &mut dyn Flaw) -> Result<Tally, Violation> {
    crate::caught(|| {
        let mut run = Run::new(seed, fs, flaw)?;
        for _ in 0..run.plan.steps {
            run.step()?;
        }
        run.finish()?;
        Ok(Tally { acknowledged: run.ledger.acknowledged, delivered: run.ledger.consumed, ..run.tally })
    })
}

/// Runs one seed.
///
/// # Errors
/// What the broker did wrong.
pub fn try_seed(seed: u64, flaw: &mut dyn Flaw) -> Result<Tally, Violation> {
    run(seed, FaultFs::new(seed), flaw)
}

/// Everything that happens with one seed, one line each: requests, responses, calls of the file system, ends and
/// beginnings.
pub fn trace(seed: u64, flaw: &mut dyn Flaw) -> Vec<String> {
    crate::traced(seed, |fs| run(seed, fs, flaw))
}
