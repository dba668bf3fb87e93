//! Metrics: what each means, and the text in which Prometheus reads them.
//!
//! Every crate that counts something describes it in a table of [`Metric`]s, next to the functions that read the
//! counts. The broker writes all tables into one [`Exposition`] per scrape, and the reference page is made from the
//! same tables, so that a metric without a description cannot exist. Counting is not done here: each crate does it in
//! the way that costs its hot path least, mostly in plain numbers of a shard that are published at the end of a turn.
//!
//! # What this crate must never know
//! Who counts, what is counted, HTTP, clocks.
//!
//! # Invariants
//! - A line has exactly the labels that its metric describes.
//! - Label values are escaped, whatever they contain.
//!
//! The format is version 0.0.4 of the Prometheus text format.

mod durations;

use std::fmt::{Display, Write};

pub use durations::Durations;

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How the values of a metric relate to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up, from 0 at the start of the process. Its name ends with `_total`.
    Counter,
    /// Counts values by size. Its name ends with the unit.
    Histogram,
}

impl Kind {
    /// The name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// The description of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name, with the unit if the value has one: `_seconds`, `_bytes`.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Names of the labels, in the order of the values.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

impl Metric {
    /// A gauge.
    pub const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// A counter.
    pub const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }
}

/// A metric that is read from a value of type `T`, which has no labels of its own.
#[derive(Debug)]
pub struct Reading<T> {
    /// The metric.
    pub metric: Metric,
    /// Reads it.
    pub value: fn(&T) -> u64,
}

impl<T> Reading<T> {
    /// A metric, and how it is read.
    pub const fn new(metric: Metric, value: fn(&T) -> u64) -> Self {
        Self { metric, value }
    }
}

/// The text of a scrape.
#[derive(Debug, Default)]
pub struct Exposition(String);

/// One metric in the text, to which values are added.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    metric: Metric,
}

impl Exposition {
    /// Begins a metric. Each metric may begin once.
    pub fn begin(&mut self, metric: &Metric) -> Family<'_> {
        let Metric { name, kind, help, .. } = *metric;
        self.add(format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
        Family { text: &mut self.0, metric: *metric }
    }

    /// Adds metrics without labels that are read from the same value.
    pub fn read<T>(&mut self, readings: &[Reading<T>], from: &T) {
        for Reading { metric, value } in readings {
            self.begin(metric).value(&[], value(from));
        }
    }

    /// The text.
    pub fn finish(self) -> String {
        self.0
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string cannot fail");
    }
}

impl Family<'_> {
    /// Adds a value for these values of the labels.
    pub fn value(&mut self, labels: &[&str], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Adds a histogram: for each bucket its upper bound, ascending, and the number of values in it; then the number of
    /// values above all bounds, and the sum of all. The number of all values is that of the buckets, so that both
    /// agree even if a value is counted meanwhile.
    pub fn histogram(
        &mut self,
        labels: &[&str],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) {
        let mut count = 0;
        for (bound, values) in buckets {
            count += values;
            self.line("_bucket", labels, Some(&bound.to_string()), count);
        }
        count += above;
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    /// Adds a histogram of durations, in seconds.
    pub fn durations(&mut self, labels: &[&str], durations: &Durations) {
        let (buckets, above, sum) = durations.read();
        self.histogram(labels, buckets, above, sum);
    }

    fn line(&mut self, suffix: &str, values: &[&str], bound: Option<&str>, value: impl Display) {
        let Metric { name, labels, .. } = self.metric;
        assert_eq!(labels.len(), values.len(), "{name} has the labels {labels:?}");
        let known = labels.iter().copied().zip(values.iter().copied());
        let pairs: Vec<String> = known
            .chain(bound.map(|bound| ("le", bound)))
            .map(|(label, value)| format!("{label}=\"{}\"", escape(value)))
            .collect();
        let pairs = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        writeln!(self.text, "{name}{suffix}{pairs} {value}").expect("writing to a string cannot fail");
    }
}

/// Escapes a label value, which may contain any character.
fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The rows of a Markdown table that describes metrics.
pub fn describe<'a>(metrics: impl IntoIterator<Item = &'a Metric>) -> String {
    let mut rows = String::new();
    for Metric { name, kind, labels, help } in metrics {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (labels, kind) = (labels.join(", "), kind.name());
        writeln!(rows, "| `{name}` | {kind} | {labels} | {help} |").expect("writing to a string cannot fail");
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_labels_of_their_metric() {
        const BYTES: Metric = Metric::gauge("bytes", &["owner", "shard"], "Bytes.");
        let mut text = Exposition::default();
        let mut bytes = text.begin(&BYTES);
        bytes.value(&["a\"b\\c\nd", "0"], 5);
        bytes.value(&["x", "1"], 0.5);
        let expected = "# HELP bytes Bytes.\n# TYPE bytes gauge\n\
            bytes{owner=\"a\\\"b\\\\c\\nd\",shard=\"0\"} 5\nbytes{owner=\"x\",shard=\"1\"} 0.5\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    #[should_panic(expected = "bytes has the labels")]
    fn other_labels_are_an_error() {
        Exposition::default().begin(&Metric::gauge("bytes", &["owner"], "Bytes.")).value(&[], 1);
    }

    #[test]
    fn buckets_are_cumulative() {
        const TURNS: Metric = Metric::histogram("turn_seconds", &["shard"], "Turns.");
        let mut text = Exposition::default();
        text.begin(&TURNS).histogram(&["1"], [(0.000_01, 4), (0.002, 0)], 2, 1.5);
        let expected = "# HELP turn_seconds Turns.\n# TYPE turn_seconds histogram\n\
            turn_seconds_bucket{shard=\"1\",le=\"0.00001\"} 4\n\
            turn_seconds_bucket{shard=\"1\",le=\"0.002\"} 4\n\
            turn_seconds_bucket{shard=\"1\",le=\"+Inf\"} 6\n\
            turn_seconds_sum{shard=\"1\"} 1.5\n\
            turn_seconds_count{shard=\"1\"} 6\n";
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn readings_have_no_labels() {
        let readings: [Reading<(u64, u64)>; 2] = [
            Reading::new(Metric::gauge("one", &[], "One."), |pair| pair.0),
            Reading::new(Metric::counter("two_total", &[], "Two."), |pair| pair.1),
        ];
        let mut text = Exposition::default();
        text.read(&readings, &(1, 2));
        let expected = "# HELP one One.\n# TYPE one gauge\none 1\n\
            # HELP two_total Two.\n# TYPE two_total counter\ntwo_total 2\n";
        assert_eq!(text.finish(), expected);
        let rows = describe(readings.iter().map(|reading| &reading.metric));
        assert_eq!(rows, "| `one` | gauge |  | One. |\n| `two_total` | counter |  | Two. |\n");
    }
}
