//! Flags that `topic`, `produce`, `consume` and `group` share, and the words that their flags are made of.

use std::time::Duration;

use clap::Args;

use super::connect::parse_seconds;

/// Connection flags of the tools that speak Kafka.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
pub(crate) struct KafkaArgs {
    /// Broker to ask first; several are separated by commas, and the first that answers is taken
    #[arg(
        short = 'b',
        long = "kafka",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092",
        global = true
    )]
    pub(crate) kafka: String,
    /// Longest time to wait for an answer, and for a cause that may pass
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds, global = true)]
    pub(crate) patience: Duration,
    /// Print no errors; the exit status still tells
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The first record there is.
    Beginning,
    /// Behind the last record there is now.
    End,
    /// Where the group left off.
    Stored,
    /// This offset.
    Offset(i64),
    /// So many offsets before the end.
    BeforeEnd(i64),
    /// The first record that is not older, ms since 1970.
    Time(i64),
}

/// `beginning`, `end`, `stored`, an offset, `-N` before the end, or `@MS`.
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

/// `TOPIC`, or `TOPIC:PARTITION,…`.
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
    fn positions_have_a_word_a_number_or_a_time() {
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
    fn partitions_stand_behind_their_topic() {
        assert_eq!(parse_topic_partitions("t"), Ok(("t".into(), vec![])));
        assert_eq!(parse_topic_partitions("t:0,2"), Ok(("t".into(), vec![0, 2])));
        assert!(parse_topic_partitions("t:").is_err() && parse_topic_partitions("t:-1").is_err());
    }
}
