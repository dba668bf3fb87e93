//! When a row passes, and the table of results.

use super::attacker::Effort;
use super::innocents::{Innocent, Measured};
use crate::Outcome;

/// Largest ratio of the p99 under attack to the p99 of the control.
const P99_RATIO_MAX: f64 = 2.0;
/// Largest ratio of resident memory after an attack on memory to before.
const MEMORY_RATIO_MAX: f64 = 1.2;

/// Result of one pass of one pair; an error is why it measured nothing.
pub(super) type PassResult = Outcome<Measured>;

/// Resident memory of the attacked broker, in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Before the attack, with the innocent clients at work.
    pub(super) before: f64,
    pub(super) peak: f64,
    /// Some time after the attack.
    pub(super) after: f64,
}

/// One row of the table: one attack and one pair of clients.
pub(super) struct Row<'a> {
    pub(super) attack: &'a str,
    pub(super) innocent: Innocent,
    /// Nothing beside.
    pub(super) alone: &'a PassResult,
    /// The attack on another broker.
    pub(super) control: &'a PassResult,
    /// The attack on this broker.
    pub(super) attacked: &'a PassResult,
    pub(super) memory: Memory,
    /// Whether the result includes memory.
    pub(super) judges_memory: bool,
    /// Samples that each pass needs.
    pub(super) samples: u64,
    /// What the attackers did to this broker.
    pub(super) effort: Effort,
}

/// Outcome of a row.
#[derive(Debug, PartialEq)]
pub(super) enum RowResult {
    Passed,
    Failed(String),
    /// The row proves nothing, for this reason.
    NoResult(String),
}

impl Row<'_> {
    /// Ratio of the p99 of the attacked broker to that of the control.
    fn p99_ratio(&self) -> Option<f64> {
        let (control, attacked) = (self.control.as_ref().ok()?, self.attacked.as_ref().ok()?);
        (control.p99_ms > 0.0).then(|| attacked.p99_ms / control.p99_ms)
    }

    /// Loss under attack fails a row however few samples there are, because a stall leaves few.
    pub(super) fn result(&self) -> RowResult {
        let attacked = match self.attacked {
            Err(error) => return RowResult::Failed(format!("under attack: {error}")),
            Ok(measured) if measured.lost > 0 => return RowResult::Failed(format!("{} lost", measured.lost)),
            Ok(measured) => measured,
        };
        let control = match self.control {
            Err(error) => return RowResult::NoResult(format!("control: {error}")),
            Ok(measured) if measured.lost > 0 => {
                return RowResult::NoResult(format!("control: {} lost", measured.lost));
            }
            Ok(measured) => measured,
        };
        let fewest = control.samples.min(attacked.samples);
        if fewest < self.samples {
            return RowResult::NoResult(format!("{fewest} of {} samples", self.samples));
        }
        if self.effort.connections == 0 {
            return RowResult::NoResult("the attackers could not connect".to_owned());
        }
        let ratio = self.p99_ratio().unwrap_or(f64::INFINITY);
        if ratio > P99_RATIO_MAX {
            return RowResult::Failed(format!("p99 above {P99_RATIO_MAX} times the control"));
        }
        if self.judges_memory && self.memory.after > MEMORY_RATIO_MAX * self.memory.before {
            return RowResult::Failed(format!("memory above {MEMORY_RATIO_MAX} times that before"));
        }
        RowResult::Passed
    }

    /// The row as a line of a Markdown table.
    pub(super) fn line(&self) -> String {
        let ratio = self.p99_ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let result = match self.result() {
            RowResult::Passed => "ok".to_owned(),
            RowResult::Failed(why) => format!("**failed**: {why}"),
            RowResult::NoResult(why) => format!("no result: {why}"),
        };
        let Memory { before, peak, after } = self.memory;
        format!(
            "| {} | {} | {} | {} | {} | {ratio} | {before:.0} / {peak:.0} / {after:.0} | {result} |",
            self.attack,
            self.innocent.name(),
            cell(self.alone),
            cell(self.control),
            cell(self.attacked),
        )
    }
}

fn cell(result: &PassResult) -> String {
    match result {
        Ok(Measured { p50_ms, p99_ms, max_ms, .. }) => format!("{p50_ms:.2} / {p99_ms:.2} / {max_ms:.1}"),
        Err(_) => "–".to_owned(),
    }
}

/// Heading of the table.
pub(super) const HEADING: &str = "\
| attack | clients | alone, ms | control, ms | attacked, ms | p99 ratio | memory, MiB | result |
|---|---|---|---|---|---|---|---|";

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Measured = Measured { samples: 100, p50_ms: 0.5, p99_ms: 1.0, max_ms: 3.0, lost: 0 };

    fn result_of(control: &PassResult, attacked: &PassResult, memory: Memory) -> RowResult {
        let row = Row {
            attack: "a",
            innocent: Innocent::Mqtt,
            alone: &Ok(GOOD),
            control,
            attacked,
            memory,
            judges_memory: true,
            samples: 100,
            effort: Effort { connections: 1, ..Effort::default() },
        };
        assert!(row.line().starts_with("| a | mqtt | 0.50 / 1.00 / 3.0 |"), "{}", row.line());
        row.result()
    }

    #[test]
    fn passes_up_to_twice_the_control() {
        let memory = Memory { before: 10.0, peak: 99.0, after: 12.0 };
        assert_eq!(result_of(&Ok(GOOD), &Ok(Measured { p99_ms: 2.0, ..GOOD }), memory), RowResult::Passed);
        let slow = result_of(&Ok(GOOD), &Ok(Measured { p99_ms: 2.1, ..GOOD }), memory);
        assert!(matches!(slow, RowResult::Failed(why) if why.contains("p99")));
        let grown = result_of(&Ok(GOOD), &Ok(GOOD), Memory { after: 12.5, ..memory });
        assert!(matches!(grown, RowResult::Failed(why) if why.contains("memory")));
    }

    #[test]
    fn loss_fails_and_few_samples_are_no_result() {
        let few = Measured { samples: 99, ..GOOD };
        let lost = result_of(&Ok(GOOD), &Ok(Measured { lost: 1, ..few }), Memory::default());
        assert!(matches!(lost, RowResult::Failed(why) if why == "1 lost"));
        assert!(matches!(result_of(&Ok(GOOD), &Ok(few), Memory::default()), RowResult::NoResult(_)));
        assert!(matches!(result_of(&Ok(few), &Ok(GOOD), Memory::default()), RowResult::NoResult(_)));
        assert!(matches!(result_of(&Err("x".into()), &Ok(GOOD), Memory::default()), RowResult::NoResult(_)));
        assert!(matches!(result_of(&Ok(GOOD), &Err("x".into()), Memory::default()), RowResult::Failed(_)));
    }
}
