//! `cargo xtask bystander`: innocent clients beside an attacker.
//!
//! Pairs of innocent clients, one each for MQTT, Kafka and work queues, send 1,000 messages per second on a schedule.
//! They are measured (a) alone, (b) while the attack goes to another broker process, which shows what the attackers
//! cost in CPU and disk alone, and (c) while it goes to their broker. A row passes or fails by comparing (c) with (b).
//! Attacks are data: see `rows`.
//!
//! | file | holds |
//! |---|---|
//! | `rows` | the attacks as a table |
//! | `attacker` | what an attack is, its threads and connections |
//! | `attacks` | the functions that send the bytes |
//! | `innocents` | the innocent clients |
//! | `subject` | the brokers |
//! | `pass` | one measurement |
//! | `table` | when a row passes, and the table |

mod attacker;
mod attacks;
mod innocents;
mod pass;
mod rows;
mod subject;
mod table;

use crate::Outcome;
use crate::bench::server::{self, Server};
use crate::bench::{at, binary, machine, positive};
use attacker::Attack;
use innocents::{Innocent, Measured, RATE};
use pass::{Pass, PassReport, run_pass};
use rows::ATTACKS;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use subject::{Running, Subject};
use table::{HEADING, Memory, PassResult, Row, RowResult};

/// Default number of samples per row and pass.
const SAMPLES: u32 = 30_000;
/// Time from the end of an attack to the comparison of memory.
const AFTER: Duration = Duration::from_secs(10);
/// Measured time of each attack in the smoke run, in seconds.
const SMOKE_ATTACK_S: u32 = 1;
/// Largest resident memory during the smoke run, in MiB. The attacks in it hold no messages.
const SMOKE_MEMORY_MIB_MAX: f64 = 256.0;

/// Parsed command line.
#[derive(Debug, Default)]
struct Options {
    attacks: Vec<&'static str>,
    seconds: Option<u32>,
    samples: Option<u32>,
    peers: bool,
    smoke: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} takes a value"));
            match argument {
                "--seconds" => options.seconds = Some(positive(argument, value()?)?),
                "--samples" => options.samples = Some(positive(argument, value()?)?),
                "--peers" => options.peers = true,
                "--smoke" => options.smoke = true,
                name => options.attacks.push(attack_named(name)?.name),
            }
        }
        Ok(options)
    }

    fn samples(&self) -> u32 {
        self.samples.unwrap_or(SAMPLES)
    }

    /// Length of the measured part: one second more than the samples need, because the first message of the measured
    /// part may be due after its beginning.
    fn seconds(&self) -> u32 {
        self.seconds.unwrap_or_else(|| self.samples().div_ceil(RATE) + 1)
    }

    fn attacks(&self) -> impl Iterator<Item = &'static Attack> {
        ATTACKS.iter().filter(|attack| self.attacks.is_empty() || self.attacks.contains(&attack.name))
    }
}

fn attack_named(name: &str) -> Outcome<&'static Attack> {
    ATTACKS.iter().find(|attack| attack.name == name).ok_or_else(|| {
        let names: Vec<String> =
            ATTACKS.iter().map(|attack| format!("  {:<26} {}", attack.name, attack.about)).collect();
        format!("unknown attack `{name}`; available:\n{}", names.join("\n"))
    })
}

/// Runs the attacks, and prints the table.
///
/// # Errors
/// If an argument is unknown, a broker does not start, or a row fails or has no result. All rows are measured first.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let options = Options::parse(arguments)?;
    if options.smoke {
        return smoke(root);
    }
    let bench = Bench::prepare(root)?;
    let mut subjects = vec![Subject::Mainstem(bench.generator.clone())];
    if options.peers {
        subjects.extend(Subject::peers(root, &bench.generator, &bench.scratch)?);
    }
    println!("machine  {}", machine::describe());
    println!("commit   {}", machine::commit(root));
    println!("samples  {} per row and pass, at {RATE}/s\n", options.samples());
    let mut problems = Vec::new();
    for subject in &subjects {
        println!("{}\n\n{HEADING}", subject.name());
        bench.measure(subject, &options, &mut problems)?;
        println!();
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("bystander:\n  {}", problems.join("\n  "))) }
}

/// What all rows share.
struct Bench {
    root: PathBuf,
    scratch: PathBuf,
    /// A copy of the binary, so that a concurrent build does not affect the run.
    generator: PathBuf,
}

impl Bench {
    fn prepare(root: &Path) -> Outcome<Self> {
        server::raise_file_limit()?;
        let built = binary(root)?;
        let scratch = root.join("target/bystander");
        if scratch.exists() {
            fs::remove_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
        }
        fs::create_dir_all(&scratch).map_err(|error| at(&scratch, &error))?;
        let generator = scratch.join("mainstem");
        fs::copy(&built, &generator).map_err(|error| at(&built, &error))?;
        Ok(Self { root: root.to_owned(), scratch, generator })
    }

    /// Starts a broker in a new directory.
    fn start(&self, subject: &Subject, name: &str) -> Outcome<Running> {
        let directory = self.scratch.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        }
        subject.start(&self.root, &directory)
    }

    /// Measures all rows of a broker.
    fn measure(&self, subject: &Subject, options: &Options, problems: &mut Vec<String>) -> Outcome {
        let innocents = subject.innocents();
        let mut quiet = self.start(subject, "alone")?;
        let seconds = options.seconds();
        let pass = Pass { generator: &self.generator, innocents, seconds, attack: None };
        let alone = run_pass(&pass, &mut quiet)?;
        stop(quiet.server)?;
        for attack in options.attacks().filter(|attack| subject.speaks(attack.protocol)) {
            let (control, attacked, memory) = match self.row(subject, attack, seconds) {
                Ok(results) => results,
                Err(error) => {
                    println!("| {} | | | | | | | **failed**: {error} |", attack.name);
                    problems.push(format!("{}, {}: {error}", subject.name(), attack.name));
                    continue;
                }
            };
            for (index, innocent) in innocents.iter().enumerate() {
                let row = Row {
                    attack: attack.name,
                    innocent: *innocent,
                    alone: &alone.results[index],
                    control: &control.results[index],
                    attacked: &attacked.results[index],
                    memory,
                    judges_memory: attack.memory,
                    samples: options.samples().into(),
                    effort: attacked.effort,
                };
                println!("{}", row.line());
                match row.result() {
                    RowResult::Passed => {}
                    RowResult::Failed(why) | RowResult::NoResult(why) => problems.push(format!(
                        "{}, {}, {}: {why}",
                        subject.name(),
                        attack.name,
                        innocent.name()
                    )),
                }
            }
        }
        Ok(())
    }

    /// Measures the control and the attack, with one process each for the innocent clients and for the control. Returns
    /// both and the memory of the process that was attacked.
    fn row(
        &self,
        subject: &Subject,
        attack: &'static Attack,
        seconds: u32,
    ) -> Outcome<(PassReport, PassReport, Memory)> {
        let (mut broker, mut other) = (self.start(subject, "attacked")?, self.start(subject, "control")?);
        let innocents = subject.innocents();
        let pass =
            |target| Pass { generator: &self.generator, innocents, seconds, attack: Some((attack, target)) };
        let control = run_pass(&pass(other.target), &mut broker)?;
        // The other broker may be in a bad state, and has done its work. What it does then must not disturb (c).
        if other.server.exited()?.is_none() {
            other.server.kill()?;
        }
        let before = broker.server.resident_mib()?;
        let target = broker.target;
        let attacked = run_pass(&pass(target), &mut broker)?;
        eprintln!("{}: {}", attack.name, attacked.effort);
        thread::sleep(AFTER.saturating_sub(attacked.since_attack.elapsed()));
        let after = broker.server.resident_mib().map_err(|error| format!("the broker is gone: {error}"))?;
        let memory = Memory { before, peak: attacked.peak_mib, after };
        check_log(&broker)?;
        // It may need long to drain, which no row is about.
        broker.server.kill()?;
        Ok((control, attacked, memory))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.scratch) {
            eprintln!("{}", at(&self.scratch, &error));
        }
    }
}

/// Stops a broker that must still run.
fn stop(server: Server) -> Outcome {
    let status = server.stop()?;
    if status.success() { Ok(()) } else { Err(format!("the broker exited with {status}")) }
}

/// A panic in the log fails the row.
fn check_log(broker: &Running) -> Outcome {
    let text = fs::read_to_string(&broker.log).map_err(|error| at(&broker.log, &error))?;
    match text.lines().find(|line| line.contains("panicked")) {
        None => Ok(()),
        Some(line) => Err(format!("in the log: {line}")),
    }
}

/// Smoke run of `cargo xtask ci`: one broker, one run of the innocent clients, and beside it the attacks marked for it,
/// one after another. No time is judged: nothing may be lost, the broker must stay up, and its memory bounded.
///
/// # Errors
/// All violations found.
fn smoke(root: &Path) -> Outcome {
    let bench = Bench::prepare(root)?;
    let subject = Subject::Mainstem(bench.generator.clone());
    let mut broker = bench.start(&subject, "smoke")?;
    let attacks: Vec<&'static Attack> = ATTACKS.iter().filter(|attack| attack.smoke).collect();
    let (report, efforts) = pass::run_sequence(&bench.generator, &attacks, SMOKE_ATTACK_S, &mut broker)?;
    let mut problems: Vec<String> = Innocent::ALL
        .iter()
        .zip(&report.results)
        .filter_map(|(innocent, result)| complaint(result).map(|why| format!("{}: {why}", innocent.name())))
        .collect();
    for (attack, effort) in attacks.iter().zip(efforts) {
        println!("{:<26} {effort}", attack.name);
        if effort.connections == 0 {
            problems.push(format!("{}: the attackers could not connect", attack.name));
        }
    }
    println!("peak memory {:.0} MiB", report.peak_mib);
    if report.peak_mib > SMOKE_MEMORY_MIB_MAX {
        problems.push(format!("{:.0} MiB of memory, more than {SMOKE_MEMORY_MIB_MAX}", report.peak_mib));
    }
    problems.extend(check_log(&broker).err());
    problems.extend(stop(broker.server).err());
    if problems.is_empty() { Ok(()) } else { Err(format!("bystander:\n  {}", problems.join("\n  "))) }
}

/// What is wrong with a result, apart from its times.
fn complaint(result: &PassResult) -> Option<String> {
    match result {
        Err(error) => Some(error.clone()),
        Ok(Measured { lost, .. }) if *lost > 0 => Some(format!("{lost} lost")),
        Ok(Measured { samples: 0, .. }) => Some("nothing arrived".to_owned()),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_rows_and_options() {
        let options = Options::parse(&["ping-flood", "--samples", "5000", "--peers"]).unwrap();
        assert_eq!((options.attacks().count(), options.samples(), options.seconds()), (1, 5000, 6));
        assert!(options.peers && !options.smoke);
        let options = Options::parse(&["--seconds", "3"]).unwrap();
        assert_eq!(
            (options.attacks().count(), options.samples(), options.seconds()),
            (ATTACKS.len(), SAMPLES, 3)
        );
        let unknown = Options::parse(&["nothing"]).unwrap_err();
        assert!(unknown.contains("nothing") && unknown.contains("ping-flood"), "{unknown}");
        assert!(Options::parse(&["--samples"]).is_err() && Options::parse(&["--samples", "0"]).is_err());
    }

    #[test]
    fn complains_about_loss_and_silence() {
        let good = Measured { samples: 1, ..Measured::default() };
        assert_eq!(complaint(&Ok(good)), None);
        assert!(complaint(&Ok(Measured::default())).is_some());
        assert!(complaint(&Ok(Measured { lost: 1, ..good })).is_some());
        assert!(complaint(&Err("broken".to_owned())).is_some());
    }
}
