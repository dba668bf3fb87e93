//! `mainstem-sim`: runs seeds, and prints the command that repeats the first one that fails.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mainstem_sim::{NoFault, Scenario, Tally};

const USAGE: &str = "\
usage: mainstem-sim [--scenario mqtt|kafka|queue] [--seed N [--trace] | --seeds A..B] [--seconds N] [--all]

  --scenario NAME  which clients there are (mqtt)
  --seed N         run only this seed
  --trace          print everything that happens
  --seeds A..B     run these seeds; otherwise all from 0 on
  --seconds N      stop after this time (60 if no seeds are given)
  --all            continue after a seed that fails";

#[derive(Debug, Default)]
struct Options {
    scenario: Scenario,
    seeds: Option<Range<u64>>,
    seconds: Option<u64>,
    is_traced: bool,
    continues: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--scenario" => {
                let name = arguments.next()?;
                options.scenario = Scenario::ALL.into_iter().find(|scenario| scenario.name() == name)?;
            }
            "--seed" => {
                let seed = arguments.next()?.parse().ok()?;
                options.seeds = Some(seed..seed + 1);
            }
            "--seeds" => {
                let seeds = arguments.next()?;
                let (from, to) = seeds.split_once("..")?;
                options.seeds = Some(from.parse().ok()?..to.parse().ok()?);
            }
            "--seconds" => options.seconds = Some(arguments.next()?.parse().ok()?),
            "--trace" => options.is_traced = true,
            "--all" => options.continues = true,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    // A panic is a violation, which is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let Options { scenario, seeds, seconds, is_traced, continues } = options;
    let seconds = seconds.or(seeds.is_none().then_some(60));
    let began = Instant::now();
    let is_over = || seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds));
    let (mut all, mut ran, mut failed) = (Tally::default(), 0_u64, 0_u64);
    for seed in seeds.unwrap_or(0..u64::MAX) {
        if is_over() || (failed > 0 && !continues) {
            break;
        }
        ran += 1;
        if is_traced {
            for line in scenario.trace(seed, &mut NoFault) {
                println!("{line}");
            }
        }
        match scenario.try_seed(seed, &mut NoFault) {
            Ok(tally) => all += tally,
            Err(violation) => {
                failed += 1;
                println!("seed {seed}: {}", violation.0);
                let name = scenario.name();
                println!(
                    "  again: cargo run --profile checked -p mainstem-sim -- --scenario {name} --seed {seed} --trace"
                );
            }
        }
    }
    println!("{ran} seeds, {failed} failed, in {:.1} s: {all:?}", began.elapsed().as_secs_f64());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
