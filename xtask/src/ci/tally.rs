//! Counts tests from the summaries that test runners print.

use std::fmt;

/// Number of passed and failed tests so far.
#[derive(Default)]
pub(super) struct Tally {
    passed: u64,
    failed: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

impl Tally {
    /// Parses one line of a runner's output.
    pub(super) fn parse_line(&mut self, line: &str) {
        let line = line.trim_matches([' ', '=', '\r']);
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.add_counts(rest.split(['.', ';']));
        } else if let Some((counts, _)) = line.split_once(" in ").filter(|(counts, _)| is_pytest(counts)) {
            self.add_counts(counts.split(','));
        } else if let Some(rest) = line.strip_prefix("# ").or_else(|| line.strip_prefix("ℹ ")) {
            self.add_node(rest);
        } else if let Some((_, rest)) =
            line.split_once("Tests run: ").filter(|_| !line.contains("Time elapsed"))
        {
            self.add_surefire(rest);
        }
    }

    /// Counts of cargo and pytest: `12 passed`, `1 failed`, `2 errors`, ...
    fn add_counts<'a>(&mut self, counts: impl Iterator<Item = &'a str>) {
        for (count, word) in counts.filter_map(counted) {
            match word {
                "passed" => self.passed += count,
                "failed" | "error" | "errors" => self.failed += count,
                _ => {}
            }
        }
    }

    /// Counts of node: `pass 12`, `fail 1`.
    fn add_node(&mut self, line: &str) {
        let Some((word, count)) = line.split_once(' ') else { return };
        match (word, count.parse::<u64>()) {
            ("pass", Ok(count)) => self.passed += count,
            ("fail", Ok(count)) => self.failed += count,
            _ => {}
        }
    }

    /// Counts of Surefire: `12, Failures: 1, Errors: 0, Skipped: 2`.
    fn add_surefire(&mut self, counts: &str) {
        let counts: Vec<u64> = counts
            .split(',')
            .map(|part| part.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0))
            .collect();
        if let [run, failures, errors, skipped] = counts[..] {
            self.failed += failures + errors;
            self.passed += run.saturating_sub(failures + errors + skipped);
        }
    }
}

fn counted(part: &str) -> Option<(u64, &str)> {
    let (count, word) = part.trim().split_once(' ')?;
    Some((count.parse().ok()?, word))
}

fn is_pytest(counts: &str) -> bool {
    counts.split(',').all(|part| counted(part).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(lines: &[&str]) -> String {
        let mut tally = Tally::default();
        for line in lines {
            tally.parse_line(line);
        }
        tally.to_string()
    }

    #[test]
    fn parses_the_summary_of_each_runner() {
        let cargo = "test result: FAILED. 12 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.30s";
        assert_eq!(tally(&[cargo]), "12 passed, 1 failed");
        assert_eq!(
            tally(&["==== 1 failed, 12 passed, 2 skipped, 1 error in 3.21s ===="]),
            "12 passed, 2 failed"
        );
        assert_eq!(tally(&["12 passed in 3.21s"]), "12 passed, 0 failed");
        assert_eq!(tally(&["# tests 13", "# pass 12", "ℹ fail 1"]), "12 passed, 1 failed");
        let surefire = [
            "[INFO] Tests run: 4, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 1.2 s -- in A",
            "[WARNING] Tests run: 13, Failures: 1, Errors: 1, Skipped: 1",
        ];
        assert_eq!(tally(&surefire), "10 passed, 2 failed");
    }

    #[test]
    fn ignores_other_lines() {
        assert_eq!(
            tally(&["running 3 tests", "5 passed the post in time", "# a heading", ""]),
            "0 passed, 0 failed"
        );
    }
}
