//! The broker against a model of it: clients that connect, subscribe, publish, acknowledge, vanish and come back
//! at random, over one to three shards and in virtual time.
//!
//! | | what holds | where |
//! |---|---|---|
//! | QoS 1, 2 | what meets a subscription of a session that is there or will come back arrives, unless its queue may have been full, it expired, or it was too large | `session.rs` |
//! | QoS 2 | no message begins twice; an identifier is not used again before it was released | `session.rs`, `client.rs` |
//! | DUP | set on what is sent again after a reconnect, and on nothing else; in the first order, before anything new | `session.rs` |
//! | order | per publisher, topic and QoS | `session.rs` |
//! | routing | nothing without a subscription; QoS, RETAIN, Subscription Identifiers, properties as they should be | `traffic.rs`, `oracle.rs` |
//! | windows | never more in flight than Receive Maximum; no packet above Maximum Packet Size | `session.rs`, `traffic.rs` |
//! | retained | a new subscription gets the last value of each topic, and none that is older | `oracle.rs` |
//! | shared | each message to one member of each group; to another one only if that member left it unacknowledged | `groups.rs` |
//! | answers | every request is answered in turn, with the reason code that is due | `traffic.rs` |
//! | wills, keep alive, expiry | at their time, and not without cause | `oracle.rs`, `run.rs` |
//! | gauges | connections, sessions, subscriptions and queues as counted by the oracle, and zero at the end | `checks.rs` |
//! | accounts | what each session keeps is what its account says; the budget is charged for nothing at the end | `checks.rs` |
//! | loads | at the end nobody of a group has anything outstanding | `checks.rs` |
//! | determinism | the same seed gives the same bytes | this file |
//!
//! A failure names its seed. `MAINSTEM_SEED=<seed>` runs that one alone and shows what happened;
//! `MAINSTEM_RUNS=<count>` runs more than the usual number.

#![expect(clippy::enum_variant_names, reason = "acknowledgements have the protocol's names")]
#![expect(clippy::struct_excessive_bools, reason = "facts about one exchange, independent of each other")]
#![expect(clippy::single_match_else, reason = "both arms of a share or a plain filter read alike as a match")]
#![expect(
    clippy::unnecessary_fold,
    reason = "every shard takes its turn: `all` would stop at the first that is busy"
)]

mod checks;
mod client;
mod frames;
mod groups;
#[path = "../kit/mod.rs"]
mod kit;
mod oracle;
mod plan;
mod run;
mod session;
mod traffic;
mod wire;

use std::env;
use std::panic::catch_unwind;

use run::Run;

/// Runs of one test, unless more are asked for.
const RUNS: u64 = 150;
const STEPS: usize = 1500;

/// One run; returns its trace.
fn run(seed: u64, is_logged: bool) -> (u64, u64) {
    let mut run = Run::new(seed, is_logged);
    for _ in 0..STEPS {
        run.step();
    }
    run.finish();
    run.world.trace()
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn clients_get_what_the_model_predicts() {
    if let Some(seed) = number("MAINSTEM_SEED") {
        run(seed, true);
        return;
    }
    let first = number("MAINSTEM_FIRST").unwrap_or(1);
    for seed in first..first + number("MAINSTEM_RUNS").unwrap_or(RUNS) {
        assert!(catch_unwind(|| run(seed, false)).is_ok(), "the run with MAINSTEM_SEED={seed} fails");
    }
}

#[test]
fn same_seed_gives_the_same_bytes() {
    for seed in 1..=10 {
        let first = run(seed, false);
        assert_eq!(first, run(seed, false), "seed {seed}");
        assert_ne!(first, run(seed + 1000, false), "seeds matter");
    }
}
