//! `mainstem-sim`: runs seeds, and prints the command that repeats the first that fails.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mainstem_sim::{Sound, Tally, Violation, kafka, queue};

const USAGE: &str = "\
usage: mainstem-sim [--door mqtt|kafka|queue] [--seed N [--trace] | --seeds A..B] [--seconds N] [--all]

  --door DOOR  whose clients there are (mqtt)
  --seed N     this seed only
  --trace      print all that happens with it
  --seeds A..B these; without them, all from 0 on
  --seconds N  until so much time has passed (60 if no seeds are given)
  --all        go on behind a seed that fails";

/// Whose clients there are.
#[derive(Clone, Copy, Debug, Default)]
enum Door {
    #[default]
    Mqtt,
    Kafka,
    Queue,
}

impl Door {
    fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Kafka => "kafka",
            Self::Queue => "queue",
        }
    }

    fn try_seed(self, seed: u64) -> Result<Tally, Violation> {
        match self {
            Self::Mqtt => mainstem_sim::try_seed(seed, &mut Sound),
            Self::Kafka => kafka::try_seed(seed, &mut Sound),
            Self::Queue => queue::try_seed(seed, &mut Sound),
        }
    }

    fn trace(self, seed: u64) -> Vec<String> {
        match self {
            Self::Mqtt => mainstem_sim::trace(seed, &mut Sound),
            Self::Kafka => kafka::trace(seed, &mut Sound),
            Self::Queue => queue::trace(seed, &mut Sound),
        }
    }
}

#[derive(Debug, Default)]
struct Options {
    door: Door,
    seeds: Option<Range<u64>>,
    seconds: Option<u64>,
    is_traced: bool,
    goes_on: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--door" => {
                options.door = match arguments.next()?.as_str() {
                    "mqtt" => Door::Mqtt,
                    "kafka" => Door::Kafka,
                    "queue" => Door::Queue,
                    _ => return None,
                }
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
            "--all" => options.goes_on = true,
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
    // What panics is told with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    let door = options.door;
    let seconds = options.seconds.or(options.seeds.is_none().then_some(60));
    let seeds = options.seeds.unwrap_or(0..u64::MAX);
    let began = Instant::now();
    let is_over = || seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds));
    let (mut all, mut ran, mut failed) = (Tally::default(), 0_u64, 0_u64);
    for seed in seeds {
        if is_over() || (failed > 0 && !options.goes_on) {
            break;
        }
        ran += 1;
        if options.is_traced {
            for line in door.trace(seed) {
                println!("{line}");
            }
        }
        match door.try_seed(seed) {
            Ok(tally) => all += tally,
            Err(violation) => {
                failed += 1;
                println!("seed {seed}: {}", violation.0);
                let door = door.name();
                println!(
                    "  again: cargo run --profile sim -p mainstem-sim -- --door {door} --seed {seed} --trace"
                );
            }
        }
    }
    println!("{ran} seeds, {failed} failed, in {:.1} s: {all:?}", began.elapsed().as_secs_f64());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
