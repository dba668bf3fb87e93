//! Work queues under those who use them, from one seed: producers that send again what was not confirmed; publishers
//! that do so by MQTT, by way of bindings too; workers that settle what they have in every way, too late and twice, or
//! vanish with it; and operators who empty queues, let messages come again, and make and delete queues.
//!
//! | what holds | where |
//! |---|---|
//! | what was confirmed is settled in each group in the end, or a dead letter, unless it was thrown away | `Ledger::check_losses` |
//! | it is in one place: no dead letter comes twice, or comes back to its group, or was acknowledged there | `Ledger::died`, `Group::deliver` |
//! | what stands at an offset never changes; what is sent once stands there once, with an identifier once in its window | `Ledger::place` |
//! | what was refused is never delivered | `Ledger::stands` |
//! | a lease has one holder, as long as it lasts | `Group::deliver` |
//! | what was acknowledged, rejected or purged does not come back | `Group::deliver` |
//! | messages with one key come in order, each when the one before is settled, after a crash too | `Ledger::check_line` |
//! | deliveries are counted, and counts that are durable stay | `Group::deliver` |
//! | nothing comes before its time, or when it has expired | `Ledger::check_times`, `Group::settled` |
//! | what is ready comes, and of that what has the highest priority | `Ledger::received`, `Ledger::check_withheld` |
//! | what is delivered is what was sent, and no more at a time than was asked for | `Ledger::message_of`, `check_share` |
//! | what is full says so, and nothing else; there is no more than may be | `Ledger::check_refusals`, `Ledger::check_room` |
//! | a loss of power takes nothing from queues with `fsync`, and from others nothing that comes after it | `Ledger::lost_power` |
//! | what is published by MQTT, by way of a binding too, is there when it is acknowledged, at QoS 2 once | `Ledger::acknowledged`, `Ledger::place` |
//! | it is refused, or its publisher cut off, when the queue is full, and not otherwise | `Ledger::turned_away`, `Ledger::check_closed` |
//! | to those who subscribe by MQTT comes what others would get, and nothing again that they acknowledged in time | `Ledger::published` |
//! | of a queue with a single active consumer, that one alone gets messages | `Group::check_single` |
//! | a lease that lasts can be settled, and once | `Group::settled` |
//! | nothing of a queue that was deleted comes in one of the same name | `Ledger::temporary` |

mod client;
mod drainer;
mod finish;
mod flaw;
mod group;
mod ledger;
mod mqtt;
mod operator;
mod plan;
mod producer;
mod publisher;
mod publishing;
mod run;
mod show;
mod subscriber;
mod worker;

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
        let Run { world, ledger, .. } = &run;
        let published = ledger.messages.len() as u64;
        let (acknowledged, delivered) = (ledger.acknowledged, ledger.delivered);
        Ok(Tally { published, acknowledged, delivered, ..world.tally })
    })
}

/// Runs one seed.
///
/// # Errors
/// What the broker did wrong.
pub fn try_seed(seed: u64, flaw: &mut dyn Flaw) -> Result<Tally, Violation> {
    run(seed, FaultFs::new(seed), flaw)
}

/// Everything that happens with one seed, one line each: requests, replies, calls of the file system, ends and
/// beginnings.
pub fn trace(seed: u64, flaw: &mut dyn Flaw) -> Vec<String> {
    crate::traced(seed, |fs| run(seed, fs, flaw))
}
