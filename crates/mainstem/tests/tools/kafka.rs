//! The Kafka tools.

use crate::support::{Broker, mainstem};
use serde_json::Value;

const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

#[test]
fn creates_shows_changes_and_deletes_topics() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "orders", "bills", "-p", "2", "-c", "retention.ms=5000"]).succeeds();
    let again = broker.kafka("topic", &["create", "orders", "more"]).fails_with(1);
    assert!(again.errors().contains("topic orders: TOPIC_ALREADY_EXISTS"), "{}", again.errors());
    broker.kafka("topic", &["create", "orders", "--if-not-exists"]).succeeds();
    broker.kafka("topic", &["list"]).succeeds().prints("bills\nmore\norders\n");

    broker.kafka("topic", &["config", "orders"]).succeeds().prints("retention.ms=5000\n");
    let changes =
        ["config", "orders", "--set", "cleanup.policy=compact", "--unset", "retention.ms", "-p", "3"];
    broker.kafka("topic", &changes).succeeds();
    broker.kafka("topic", &["config", "orders"]).succeeds().prints("cleanup.policy=compact\n");
    let all = broker.kafka("topic", &["config", "orders", "--all"]).succeeds();
    assert!(all.text().contains("\nretention.ms=604800000\n"), "{}", all.text());
    let refused = broker.kafka("topic", &["config", "orders", "--set", "retention.ms=soon"]).fails_with(1);
    assert!(refused.errors().contains("INVALID_CONFIG"), "{}", refused.errors());

    broker.kafka("produce", &["-t", "orders", "-p", "2", "-k", "k", "-m", "v"]).succeeds();
    let described = broker.kafka("topic", &["describe", "orders"]).succeeds();
    let lines: Vec<&str> = described.text().lines().collect();
    assert_eq!((lines[0], lines[2]), ("topic orders", "cleanup.policy=compact"));
    let ends: Vec<Vec<&str>> = lines[4..].iter().map(|line| line.split_whitespace().collect()).collect();
    let ends: Vec<(&str, &str)> = ends.iter().map(|row| (row[0], row[3])).collect();
    assert_eq!(ends, [("0", "0"), ("1", "0"), ("2", "1")]);

    broker.kafka("topic", &["delete", "orders", "bills"]).succeeds();
    let gone = broker.kafka("topic", &["delete", "orders"]).fails_with(1);
    assert!(gone.errors().contains("UNKNOWN_TOPIC_OR_PARTITION"), "{}", gone.errors());
    broker.kafka("topic", &["delete", "orders", "--if-exists"]).succeeds();
    broker.kafka("topic", &["list"]).succeeds().prints("more\n");
}

#[test]
fn records_survive_every_codec() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t"]).succeeds();
    for codec in CODECS {
        let record = ["-t", "t", "-k", codec, "-m", "gr\u{fc}\u{df}", "-z", codec, "-H", "a=1", "-H", "a="];
        broker.kafka("produce", &record).succeeds();
    }
    let format = "%t %p %o %K:%k %S:%s [%h]\n";
    let read = broker.kafka("consume", &["-t", "t", "-e", "-f", format]).succeeds();
    let expected: Vec<String> = CODECS
        .iter()
        .enumerate()
        .map(|(offset, codec)| format!("t 0 {offset} {}:{codec} 6:gr\u{fc}\u{df} [a=1,a=]\n", codec.len()))
        .collect();
    read.prints(&expected.concat());
}

#[test]
fn lines_become_records_in_order() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "lines", "pairs", "-p", "3"]).succeeds();
    let lines = (0..50_000).map(|number| format!("line {number}")).collect::<Vec<_>>().join("\n") + "\n";
    let produced =
        broker.kafka_with_input("produce", &["-t", "lines", "-p", "1", "-z", "lz4", "-v"], lines.as_bytes());
    let produced = produced.succeeds();
    let counts =
        produced.text().lines().map(|line| line.split(' ').next_back().unwrap().parse::<u32>().unwrap());
    assert_eq!(counts.sum::<u32>(), 50_000, "the counts printed by -v");
    broker.kafka("consume", &["-t", "lines", "-e"]).succeeds().prints(&lines);

    let pairs = b"a=1\nb=2\na=3\nno key\n";
    broker.kafka_with_input("produce", &["-t", "pairs", "-K", "=", "-a", "1"], pairs).succeeds();
    let read = broker.kafka("consume", &["-t", "pairs", "-e", "-f", "%p %k:%s\n"]).succeeds();
    let of_key =
        |key: &str| -> Vec<&str> { read.text().lines().filter(|line| line[2..].starts_with(key)).collect() };
    let [first, third] = of_key("a:")[..] else { panic!("{}", read.text()) };
    assert_eq!((&first[2..], &third[2..], &first[..1]), ("a:1", "a:3", &third[..1]));
    assert_eq!((of_key("b:").len(), of_key(":no key").len()), (1, 1));
}

#[test]
fn reads_between_given_positions() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t"]).succeeds();
    broker.kafka_with_input("produce", &["-t", "t"], b"0\n1\n2\n3\n4\n").succeeds();
    for (args, expected) in [
        (["-o", "beginning", "-c", "2"], "0\n1\n"),
        (["-o", "3", "-u", "end"], "3\n4\n"),
        (["-o", "-2", "-u", "4"], "3\n"),
        (["-o", "@0", "-u", "1"], "0\n"),
        (["-o", "end", "-W", "0.2"], ""),
    ] {
        let status = if args[2] == "-W" { 27 } else { 0 };
        broker
            .kafka("consume", &[&["-t", "t"], args.as_slice()].concat())
            .fails_with(status)
            .prints(expected);
    }
    let behind = broker.kafka("consume", &["-t", "t", "-o", "9", "-e"]).fails_with(1);
    assert!(behind.errors().contains("offset 9 is after the end"), "{}", behind.errors());
    broker.kafka("consume", &["-t", "t", "-p", "7"]).fails_with(1);
    broker.kafka("consume", &["-t", "nothing", "-e"]).fails_with(1);
}

#[test]
fn consume_follows_new_records() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t"]).succeeds();
    let reader = broker.start_kafka("consume", &["-t", "t", "-c", "1", "-J"]);
    broker.kafka("produce", &["-t", "t", "-n", "-k", "k"]).succeeds();
    let read = reader.finish().succeeds();
    let record: Value = serde_json::from_str(read.text()).unwrap();
    assert_eq!((&record["key"], &record["value"], &record["offset"]), (&"k".into(), &Value::Null, &0.into()));
}

#[test]
fn a_group_resumes_at_its_offsets_which_can_be_reset() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t", "-p", "2"]).succeeds();
    for partition in ["0", "1"] {
        broker.kafka_with_input("produce", &["-t", "t", "-p", partition], b"1\n2\n3\n").succeeds();
    }
    let read = |count: usize| {
        let ended = broker.kafka("consume", &["-t", "t", "-G", "g", "-e"]).succeeds();
        assert_eq!(ended.text().lines().count(), count, "{}", ended.text());
    };
    read(6);
    read(0);
    broker.kafka("produce", &["-t", "t", "-p", "1", "-m", "4"]).succeeds();
    let described = broker.kafka("group", &["describe", "g"]).succeeds();
    let rows: Vec<Vec<&str>> =
        described.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1..3], [vec!["state", "Empty"], vec!["assignor", "-"]]);
    assert_eq!(rows[5][..5], ["t", "0", "3", "3", "0"]);
    assert_eq!(rows[6][..5], ["t", "1", "3", "4", "1"]);
    let listed = broker.kafka("group", &["list"]).succeeds();
    assert!(
        listed.text().lines().any(|line| line.starts_with("g ") && line.contains("Empty")),
        "{}",
        listed.text()
    );

    let head = "TOPIC  PARTITION  OLD  NEW\n";
    let back = ["reset-offsets", "g", "-t", "t:1", "--to", "beginning"];
    broker.kafka("group", &back).succeeds().prints(&format!("{head}t      1          3    0\n"));
    let plan = ["reset-offsets", "g", "--all-topics", "--shift-by", "-1", "--dry-run"];
    let planned = format!("{head}t      0          3    2\nt      1          0    0\n");
    broker.kafka("group", &plan).succeeds().prints(&planned);
    read(4);

    broker.kafka("group", &["delete", "g"]).succeeds();
    broker.kafka("group", &["delete", "g"]).fails_with(1);
}

#[test]
fn members_share_partitions_and_take_over_from_each_other() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t", "-p", "2"]).succeeds();
    let first = broker.start_kafka("consume", &["-t", "t", "-G", "g", "-c", "2"]);
    let second = broker.start_kafka("consume", &["-t", "t", "-G", "g", "-c", "1"]);
    broker.wait_until(&["group", "describe", "g"], |text| {
        text.contains("state Stable")
            && text.contains("members 2")
            && text.matches("/127.0.0.1\n").count() == 2
    });
    let refused = broker.kafka("group", &["reset-offsets", "g", "-t", "t", "--to", "0"]).fails_with(1);
    assert!(refused.errors().contains("UNKNOWN_MEMBER_ID"), "{}", refused.errors());
    // One member exits after its first record, and the other takes over its partition.
    for (partition, value) in [("0", "zero"), ("1", "one")] {
        broker.kafka("produce", &["-t", "t", "-p", partition, "-m", value]).succeeds();
    }
    second.finish().succeeds();
    broker.wait_until(&["group", "describe", "g"], |text| {
        text.contains("state Stable") && text.contains("members 1")
    });
    for partition in ["0", "1"] {
        broker.kafka("produce", &["-t", "t", "-p", partition, "-m", "last"]).succeeds();
    }
    let ended = first.finish().succeeds();
    assert_eq!(ended.text().lines().count(), 2, "{}", ended.text());
}

#[test]
fn an_interrupted_member_commits_and_leaves() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "t"]).succeeds();
    broker.kafka("produce", &["-t", "t", "-m", "1"]).succeeds();
    let member = broker.start_kafka("consume", &["-t", "t", "-G", "g"]);
    broker.wait_until(&["group", "describe", "g"], |text| text.contains("state Stable"));
    member.interrupt();
    let printed = member.finish().succeeds();
    let described = broker.kafka("group", &["describe", "g"]).succeeds();
    assert!(described.text().contains("state Empty"), "{}", described.text());
    // Whenever the signal arrives, exactly the printed records are committed.
    let rest = broker.kafka("consume", &["-t", "t", "-G", "g", "-e"]).succeeds();
    assert_eq!(format!("{}{}", printed.text(), rest.text()), "1\n");
}

#[test]
fn names_an_unreachable_broker() {
    let ended = mainstem(&["topic", "list", "-b", "127.0.0.1:1"], b"").fails_with(1);
    assert_eq!(ended.errors(), "mainstem topic: 127.0.0.1:1: connection refused\n");
    mainstem(&["topic", "list", "-b", "127.0.0.1:1", "--quiet"], b"").fails_with(1).prints("");
    mainstem(&["consume", "-t", "t", "-o", "nowhere"], b"").fails_with(2);
}
