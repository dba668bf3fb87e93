//! Flags shared by `topic`, `produce`, `consume` and `group`, and parsers of their values.

use std::time::Duration;

use clap::Args;
use mainstem_sasl::Mechanism;

use super::connect::parse_seconds;
use super::tls::TlsArgs;

/// Connection flags of the Kafka tools.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct KafkaArgs {
    /// Bootstrap brokers, separated by commas; the first one that answers is used
    #[arg(
        short = 'b',
        long,
        alias = "kafka",
        alias = "bootstrap-server",
        value_name = "HOST[:PORT]",
        default_value = "127.0.0.1:9092",
        global = true
    )]
    pub(crate) broker: String,
    /// Longest wait for a response, and for a transient error to pass
    #[arg(
    long = "request-timeout",
    value_name = "SECONDS",
    default_value = "30",
    value_parser = parse_seconds,
    global = true
    )]
    pub(crate) request_timeout: Duration,
    /// Print no errors; rely on the exit status
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    /// Name of the user; also the environment variable `MAINSTEM_USERNAME`
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) username: Option<String>,
    /// Password of the user; also the environment variable `MAINSTEM_PASSWORD`, which other users of this machine
    /// do not see
    #[arg(long, value_name = "PASSWORD", global = true)]
    pub(crate) password: Option<String>,
    /// Mechanism of SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512 [default: the strongest that the broker offers, PLAIN
    /// only with TLS]
    #[arg(long, value_name = "NAME", global = true, value_parser = parse_mechanism)]
    pub(crate) mechanism: Option<Mechanism>,
    /// TLS flags.
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

fn parse_mechanism(text: &str) -> Result<Mechanism, String> {
    let names = Mechanism::ALL.map(Mechanism::name).join(", ");
    Mechanism::from_name(&text.to_ascii_uppercase()).ok_or_else(|| format!("expected one of {names}"))
}

/// A position in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The first record.
    Beginning,
    /// After the current last record.
    End,
    /// The committed offset of the group.
    Stored,
    Offset(i64),
    /// This many offsets before the end.
    BeforeEnd(i64),
    /// The first record at or after this time, in ms since 1970.
    Time(i64),
}

/// Parses `beginning`, `end`, `stored`, an offset, `-N` before the end, or `@MS`.
pub(crate) fn parse_position(text: &str) -> Result<Position, String> {
    let number = |digits: &str| digits.parse::<i64>().ok().filter(|number| *number >= 0);
    let position = match text {
        "beginning" | "earliest" => Some(Position::Beginning),
        "end" | "latest" => Some(Position::End),
        "stored" => Some(Position::Stored),
        _ => match text.split_at_checked(1) {
            Some(("-", digits)) => number(digits).map(Position::BeforeEnd),
            Some(("@", digits)) => number(digits).map(Position::Time),
            _ => number(text).map(Position::Offset),
        },
    };
    position.ok_or_else(|| "expected beginning, end, stored, an offset, -N or @MS".into())
}

/// Parses `TOPIC` or `TOPIC:PARTITION,…`.
pub(crate) fn parse_topic_partitions(text: &str) -> Result<(String, Vec<i32>), String> {
    let Some((topic, partitions)) = text.split_once(':') else { return Ok((text.into(), Vec::new())) };
    let partitions: Option<Vec<i32>> =
        partitions.split(',').map(|digits| digits.parse().ok().filter(|number| *number >= 0)).collect();
    partitions.map(|partitions| (topic.into(), partitions)).ok_or_else(|| "expected TOPIC:PARTITION,…".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_positions() {
        for (text, position) in [
            ("earliest", Position::Beginning),
            ("end", Position::End),
            ("stored", Position::Stored),
            ("0", Position::Offset(0)),
            ("-5", Position::BeforeEnd(5)),
            ("@1700000000000", Position::Time(1_700_000_000_000)),
        ] {
            assert_eq!(parse_position(text), Ok(position));
        }
        for text in ["", "-", "@", "--1", "@-1", "x", "é"] {
            assert!(parse_position(text).is_err(), "{text}");
        }
    }

    #[test]
    fn parses_topics_with_partitions() {
        assert_eq!(parse_topic_partitions("t"), Ok(("t".into(), vec![])));
        assert_eq!(parse_topic_partitions("t:0,2"), Ok(("t".into(), vec![0, 2])));
        assert!(parse_topic_partitions("t:").is_err() && parse_topic_partitions("t:-1").is_err());
    }
}
