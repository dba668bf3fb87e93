//! One measurement: the innocent clients, and beside them an attack, or several in sequence.

use super::attacker::{self, Attack, Deadline, Effort, Tally, Target};
use super::innocents::{Innocent, Pair, WARMUP_S, end_timeout};
use super::subject::Running;
use super::table::PassResult;
use crate::Outcome;
use crate::bench::server::Server;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Time between the start of the innocent clients and of the attack, within their warm-up.
const HEAD_START: Duration = Duration::from_secs(2);
/// How much longer the attack lasts than the measured part, which begins late if the clients start slowly.
const OVERLAP: Duration = Duration::from_secs(2);
/// Interval of the memory samples.
const SAMPLE: Duration = Duration::from_millis(50);

/// What to measure.
pub(super) struct Pass<'a> {
    pub(super) generator: &'a Path,
    pub(super) innocents: &'a [Innocent],
    /// Length of the measured part.
    pub(super) seconds: u32,
    /// The attack and the broker that it is aimed at.
    pub(super) attack: Option<(&'a Attack, Target)>,
}

/// What was measured.
pub(super) struct PassReport {
    /// Results in the order of the innocent clients.
    pub(super) results: Vec<PassResult>,
    /// Peak resident memory of the clients' broker, in MiB.
    pub(super) peak_mib: f64,
    /// When the attack ended.
    pub(super) since_attack: Instant,
    /// What the attackers did.
    pub(super) effort: Effort,
}

/// Measures the innocent clients of `broker`.
///
/// # Errors
/// If the clients cannot be started or do not end, or their broker exits.
pub(super) fn run_pass(pass: &Pass<'_>, broker: &mut Running) -> Outcome<PassReport> {
    let measured = Duration::from_secs(pass.seconds.into());
    let pairs = start(pass.generator, pass.innocents, broker.target, pass.seconds)?;
    let deadline = Deadline::after(Duration::from_secs(WARMUP_S.into()) + measured + OVERLAP);
    let tally = Tally::default();
    thread::scope(|scope| {
        let (deadline, tally) = (&deadline, &tally);
        let attackers = pass.attack.map(|(attack, target)| {
            scope.spawn(move || {
                thread::sleep(HEAD_START);
                attacker::run(attack, target, deadline, tally);
                Instant::now()
            })
        });
        let outcome = watch(pairs, &mut broker.server, pass.seconds);
        deadline.end();
        let since_attack = attackers.map_or(Ok(Instant::now()), thread::ScopedJoinHandle::join);
        let since_attack = since_attack.map_err(|_| "an attacker panicked")?;
        let (results, peak_mib) = outcome?;
        Ok(PassReport { results, peak_mib, since_attack, effort: tally.effort() })
    })
}

/// Runs attacks one after another, each for `seconds_each`, beside one run of all innocent clients. Returns the
/// measurement, and what each attack did.
///
/// # Errors
/// As [`run_pass`].
pub(super) fn run_sequence(
    generator: &Path,
    attacks: &[&Attack],
    seconds_each: u32,
    broker: &mut Running,
) -> Outcome<(PassReport, Vec<Effort>)> {
    let seconds = seconds_each * attacks.len() as u32;
    let target = broker.target;
    let pairs = start(generator, &Innocent::ALL, target, seconds)?;
    thread::scope(|scope| {
        let attackers = scope.spawn(move || {
            thread::sleep(HEAD_START);
            let run = |attack: &&Attack| {
                let tally = Tally::default();
                attacker::run(
                    attack,
                    target,
                    &Deadline::after(Duration::from_secs(seconds_each.into())),
                    &tally,
                );
                tally.effort()
            };
            attacks.iter().map(run).collect::<Vec<Effort>>()
        });
        let outcome = watch(pairs, &mut broker.server, seconds);
        let efforts = attackers.join().map_err(|_| "an attacker panicked")?;
        let (results, peak_mib) = outcome?;
        let effort = Effort::default();
        Ok((PassReport { results, peak_mib, since_attack: Instant::now(), effort }, efforts))
    })
}

fn start(generator: &Path, innocents: &[Innocent], target: Target, seconds: u32) -> Outcome<Vec<Pair>> {
    innocents.iter().map(|innocent| innocent.start(generator, target, seconds)).collect()
}

/// Samples the broker until all pairs have ended. Returns their results, and the peak of its memory.
fn watch(mut pairs: Vec<Pair>, server: &mut Server, seconds: u32) -> Outcome<(Vec<PassResult>, f64)> {
    let latest = Instant::now() + Duration::from_secs((WARMUP_S + seconds).into()) + end_timeout();
    let mut peak_mib: f64 = 0.0;
    loop {
        if let Some(status) = server.exited()? {
            return Err(format!("the broker exited: {status}"));
        }
        peak_mib = peak_mib.max(server.resident_mib()?);
        let running: Vec<&str> =
            pairs.iter_mut().filter_map(|pair| (!pair.has_ended()).then(|| pair.innocent.name())).collect();
        if running.is_empty() {
            return Ok((pairs.into_iter().map(Pair::finish).collect(), peak_mib));
        }
        if Instant::now() > latest {
            return Err(format!("the clients do not end: {}", running.join(", ")));
        }
        thread::sleep(SAMPLE);
    }
}
