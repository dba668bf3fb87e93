//! Results of a row as text: medians, ratios, problems, targets.

use super::brokers::Category;
use super::metric::Metric;
use super::queue_rows::policy;
use super::rows::{Bound, Row, Target};
use serde_json::Value;
use std::fmt::Write;

/// Report of one run.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) broker: &'static str,
    pub(super) report: Value,
}

/// The first three numbers of one run.
pub(super) fn one_line(row: &Row, report: &Value) -> String {
    let shown = row.metrics.iter().filter_map(|metric| Some((metric, metric.of(report)?)));
    let words: Vec<String> =
        shown.take(3).map(|(metric, value)| format!("{} {}", metric.show(value), metric.name())).collect();
    words.join(", ")
}

/// Renders a row: a line per broker, the ratios of its subjects to the other brokers, problems, targets.
pub(super) fn render(row: &Row, brokers: &[&'static str], samples: &[Sample]) -> String {
    let mut text = format!("\n{}: {}\n\n", row.name, row.about);
    let mut lines = vec![header(row)];
    lines.extend(brokers.iter().map(|broker| medians(row, broker, samples)));
    for (subject, peer) in pairs(row, brokers) {
        lines.push(ratios(row, subject, peer, samples));
    }
    text += &aligned(&lines);
    for broker in brokers {
        text += &problems(broker, samples);
    }
    for (peer, why) in row.exclusions() {
        writeln!(text, "  {peer} is excluded: {why}").expect("writing to a string cannot fail");
    }
    for target in row.targets {
        text += &target_line(target.subject.unwrap_or(row.subject), target, samples);
    }
    text
}

/// Pairs of brokers to compare: each subject with all others, and two subjects only once.
fn pairs(row: &Row, brokers: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let subjects: Vec<_> = row.subjects().into_iter().filter(|subject| brokers.contains(subject)).collect();
    let mut pairs = Vec::new();
    for (position, subject) in subjects.iter().enumerate() {
        let before = &subjects[..=position];
        pairs.extend(brokers.iter().filter(|peer| !before.contains(peer)).map(|peer| (*subject, *peer)));
    }
    pairs
}

fn header(row: &Row) -> Vec<String> {
    let names = row.metrics.iter().map(|metric| metric.name().to_owned());
    [String::new()].into_iter().chain(names).collect()
}

fn medians(row: &Row, broker: &str, samples: &[Sample]) -> Vec<String> {
    let shown = |metric: &Metric| {
        median_of(broker, *metric, samples).map_or("-".to_owned(), |median| metric.show(median))
    };
    [label(row, broker)].into_iter().chain(row.metrics.iter().map(shown)).collect()
}

/// Name of the broker; in queue rows with its sync policy.
fn label(row: &Row, broker: &str) -> String {
    let policy = if row.category == Category::Queue { policy(broker) } else { None };
    policy.map_or(broker.to_owned(), |policy| format!("{broker}, {policy}"))
}

fn ratios(row: &Row, subject: &str, peer: &str, samples: &[Sample]) -> Vec<String> {
    let shown = |metric: &Metric| match ratio(*metric, subject, peer, samples) {
        Some(ratio) if metric.is_compared() => format!("{ratio:.2}x"),
        _ => String::new(),
    };
    [format!("{subject} / {peer}")].into_iter().chain(row.metrics.iter().map(shown)).collect()
}

fn ratio(metric: Metric, subject: &str, peer: &str, samples: &[Sample]) -> Option<f64> {
    let peers = median_of(peer, metric, samples)?;
    let own = median_of(subject, metric, samples)?;
    (peers > 0.0).then(|| own / peers)
}

fn median_of(broker: &str, metric: Metric, samples: &[Sample]) -> Option<f64> {
    let own = samples.iter().filter(|sample| sample.broker == broker);
    median(own.filter_map(|sample| metric.of(&sample.report)).collect())
}

/// The middle value, or the mean of the two middle values; `None` if empty.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Aligns cells in columns: the first to the left, the others to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            if column == 0 {
                write!(shown, "  {cell:<width$}").expect("writing to a string cannot fail");
            } else {
                write!(shown, "  {cell:>width$}").expect("writing to a string cannot fail");
            }
        }
        text += shown.trim_end();
        text.push('\n');
    }
    text
}

/// Losses, duplicates and the like, summed over all rounds; empty if there are none.
fn problems(broker: &str, samples: &[Sample]) -> String {
    let total = |pointer: &str| -> u64 {
        let own = samples.iter().filter(|sample| sample.broker == broker);
        own.filter_map(|sample| sample.report.pointer(pointer)?.as_u64()).sum()
    };
    let counts = [
        ("lost", total("/traffic/lost")),
        ("due and not sent", total("/traffic/unsent")),
        ("repeated", total("/traffic/duplicates")),
        ("out of order", total("/traffic/out_of_order")),
        ("refused", total("/traffic/refused")),
        ("lost", total("/retained/lost")),
        ("repeated", total("/retained/duplicates")),
        ("lost", total("/queued/lost")),
        ("repeated", total("/queued/duplicates")),
        ("out of order", total("/queued/out_of_order")),
        ("due and not sent", total("/enqueue/unsent")),
        ("lost", total("/consume/lost")),
        ("repeated", total("/consume/repeated")),
    ];
    let words: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    if words.is_empty() { String::new() } else { format!("  {broker}, all rounds: {}\n", words.join(", ")) }
}

/// A line with a target, and whether it was met.
fn target_line(subject: &str, target: &Target, samples: &[Sample]) -> String {
    let Target { metric, bound, .. } = target;
    let own = median_of(subject, *metric, samples);
    let (aim, reached, met) = match *bound {
        Bound::Max(limit) => {
            (format!("<= {limit}"), own.map(|own| metric.show(own)), own.map(|own| own <= limit))
        }
        Bound::Min(limit) => {
            (format!(">= {limit}"), own.map(|own| metric.show(own)), own.map(|own| own >= limit))
        }
        Bound::TimesMax(times, peer) => {
            let ratio = ratio(*metric, subject, peer, samples);
            (format!("<= {times}x {peer}"), ratio.map(times_shown), ratio.map(|ratio| ratio <= times))
        }
        Bound::TimesMin(times, peer) => {
            let ratio = ratio(*metric, subject, peer, samples);
            (format!(">= {times}x {peer}"), ratio.map(times_shown), ratio.map(|ratio| ratio >= times))
        }
    };
    let outcome = match met {
        Some(true) => "met",
        Some(false) => "not met",
        None => "not measured",
    };
    let reached = reached.map_or(String::new(), |reached| format!(" ({reached})"));
    let whose = if subject == "mainstem" { String::new() } else { format!("{subject}, ") };
    format!("  target: {whose}{} {aim}: {outcome}{reached}\n", metric.name())
}

fn times_shown(ratio: f64) -> String {
    format!("{ratio:.3}x")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::ROWS;
    use serde_json::json;

    fn sample(broker: &'static str, cpu: f64, rate: f64, rss: f64) -> Sample {
        let traffic = json!({"deliveries_per_s": rate, "lost": 2, "broker":
            {"cpu_s_per_million": cpu, "rss_peak_mib": rss}});
        Sample { broker, report: json!({ "traffic": traffic }) }
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn targets_compare_ratios_of_medians() {
        let samples = [
            sample("mainstem", 9.0, 100.0, 10.0),
            sample("mainstem", 1.0, 120.0, 10.0),
            sample("mainstem", 2.0, 130.0, 10.0),
            sample("flashmq", 2.5, 100.0, 8.0),
        ];
        let text = render(&ROWS[0], &["mainstem", "flashmq"], &samples);
        for line in [
            "target: CPU s/M <= 0.8x flashmq: met (0.800x)",
            "target: deliveries/s >= 1.2x flashmq: met (1.200x)",
            "target: peak RSS MiB <= 1x flashmq: not met (1.250x)",
            "mainstem, all rounds: 6 lost",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn target_without_its_peer_is_not_measured() {
        let text = render(&ROWS[0], &["mainstem"], &[sample("mainstem", 1.0, 1.0, 1.0)]);
        assert!(text.contains("CPU s/M <= 0.8x flashmq: not measured\n"), "{text}");
    }
}
