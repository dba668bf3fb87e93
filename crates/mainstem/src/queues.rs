//! Work queues of the configuration: their settings, their creation at start, and their reference page.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mainstem_kafka_server::{BoundTopic, check_topic};
use mainstem_mqtt_server::config_value::parse_quantity;
use mainstem_queue_core::{QueueError, Reply, Request};
use mainstem_queue_server::QueueClient;
use serde::Deserialize;
use toml::Value;

/// Longest wait for a queue to be created.
const CREATE_TIMEOUT: Duration = Duration::from_mins(1);
/// Delay between attempts to configure a queue that is being created.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// A `[[queue]]` section. The queue is created at start; an existing one is configured.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DeclaredQueue {
    name: String,
    /// All other keys.
    #[serde(flatten)]
    settings: BTreeMap<String, Value>,
}

impl DeclaredQueue {
    /// Settings as queues expect them: names with hyphens, values as text.
    fn pairs(&self) -> Result<Vec<(String, String)>, String> {
        let pair = |(key, value): (&String, &Value)| {
            let value = match value {
                Value::String(text) => match parse_quantity(key, text) {
                    Some(number) => number.map_err(|error| format!("{key}: {error}"))?.to_string(),
                    None => text.clone(),
                },
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => flag.to_string(),
                _ => return Err(format!("{key}: must be a string, an integer or a boolean")),
            };
            Ok((key.replace('_', "-"), value))
        };
        self.settings.iter().map(pair).collect()
    }

    fn check(&self) -> Result<(), String> {
        let pairs = self.pairs()?;
        let (durability, others): (Vec<_>, Vec<_>) = pairs.iter().partition(|(key, _)| key == DURABILITY);
        if durability.iter().any(|(_, value)| !matches!(value.as_str(), "fsync" | "os")) {
            return Err("durability: must be \"fsync\" or \"os\"".into());
        }
        let others = others.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        mainstem_queue_core::Config::from_pairs(others).map_err(|error| error.0)?;
        check_topic(&topic(&self.name, &pairs))
    }
}

/// Setting of the topic, not of the queue.
const DURABILITY: &str = "durability";

/// The Kafka topic that stores a queue.
fn topic(name: &str, pairs: &[(String, String)]) -> BoundTopic {
    let key = |key: &str| if key == DURABILITY { format!("mainstem.{key}") } else { format!("queue.{key}") };
    let mut config: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| (key(name), value.clone())).collect();
    config.insert("queue.enabled".into(), "true".into());
    BoundTopic { name: name.into(), partitions: 1, config }
}

/// Checks the declared queues.
///
/// # Errors
/// Names the invalid queue and its error.
pub(crate) fn check_queues(queues: &[DeclaredQueue], audit_topic: Option<&str>) -> Result<(), String> {
    let mut names = Vec::new();
    for queue in queues {
        queue.check().map_err(|error| format!("queue {:?}: {error}", queue.name))?;
        if audit_topic == Some(queue.name.as_str()) {
            return Err(format!("queue {:?}: it is the audit topic (security.audit_topic)", queue.name));
        }
        names.push(&queue.name);
    }
    names.sort_unstable();
    match names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
        Some(name) => Err(format!("two queues have the name {name:?}")),
        None => Ok(()),
    }
}

/// The topic of a queue, with its declared settings if it is among the declared queues.
pub(crate) fn queue_topic(queues: &[DeclaredQueue], name: &str) -> Result<BoundTopic, String> {
    let declared = queues.iter().find(|queue| queue.name == name);
    Ok(topic(name, &declared.map_or(Ok(Vec::new()), DeclaredQueue::pairs)?))
}

/// Creates the declared queues, or configures those that exist. The shards must be running.
///
/// # Errors
/// Names the queue that cannot be created, and its error.
pub(crate) fn declare_queues(queues: &[DeclaredQueue], client: &QueueClient) -> Result<(), String> {
    for queue in queues {
        let with_name = |error: &dyn std::fmt::Display| format!("queue {:?}: {error}", queue.name);
        let settings = queue.pairs().map_err(|error| with_name(&error))?;
        create_or_configure(client, &queue.name, &settings).map_err(|error| with_name(&error))?;
    }
    Ok(())
}

fn create_or_configure(
    client: &QueueClient,
    queue: &str,
    settings: &[(String, String)],
) -> Result<(), QueueError> {
    let started = Instant::now();
    loop {
        match request(client, queue, Request::Create { settings: settings.into() }) {
            Err(QueueError::Exists) => {}
            result => return result,
        }
        match request(client, queue, Request::Configure { settings: settings.into() }) {
            // A binding's shard is creating the queue at the same time.
            Err(QueueError::UnknownQueue) if started.elapsed() < CREATE_TIMEOUT => {
                std::thread::sleep(RETRY_DELAY);
            }
            result => return result,
        }
    }
}

fn request(client: &QueueClient, queue: &str, request: Request) -> Result<(), QueueError> {
    let (sender, receiver) = channel();
    let callback = move |reply| {
        if sender.send(reply).is_err() {
            log::debug!("declared queue: a reply arrived after the timeout");
        }
    };
    client.send(queue, request, Box::new(callback));
    match receiver.recv_timeout(CREATE_TIMEOUT) {
        Ok(Reply::Refused(error)) => Err(error),
        Ok(_) => Ok(()),
        Err(_) => Err(QueueError::Busy),
    }
}

/// Queues in the configuration reference.
pub(crate) fn reference() -> String {
    let row = |(key, default): (&str, String)| {
        let is_bare = default.parse::<u64>().is_ok() || default.parse::<bool>().is_ok();
        let default = if is_bare { default } else { format!("\"{default}\"") };
        let doc = DOCS.iter().find(|(name, _)| *name == key).map_or("", |(_, doc)| doc);
        format!("| `{}` | `{default}` | {doc} |\n", key.replace('-', "_"))
    };
    let rows: Vec<String> = mainstem_queue_core::Config::default().pairs().into_iter().map(row).collect();
    format!("{REFERENCE_HEAD}{}", rows.concat())
}

const REFERENCE_HEAD: &str = "
## `[[queue]]`

Creates a work queue at start. May be repeated. Keys that are not set have their defaults. If the queue exists, the keys
set here are changed and all others keep their values. A limit or a time of 0 means none.

| key | default | description |
|---|---|---|
| `name` | | Name of the queue: letters, digits, `.`, `_` and `-`. |
| `durability` | `kafka.durability` | When a message is acknowledged to its sender: `fsync`, once it is on disk; `os`, once the operating system has it. |
";

/// Description of each setting of a queue.
const DOCS: &[(&str, &str)] = &[
    ("backoff-jitter-percent", "Random part of the backoff, in percent."),
    ("backoff-max-ms", "Longest backoff, in ms."),
    (
        "backoff-ms",
        "Backoff: delay before a message is delivered again after the first failure, in ms. Each further failure doubles it.",
    ),
    ("bytes-max", "Maximum size of all messages, in bytes."),
    ("dead-letter-queue", "Queue for dead letters. Empty means the name of this queue and `.dead`."),
    ("dead-letters", "Whether dead letters are stored. If not, they are discarded."),
    ("dedup-window-ms", "How long a deduplication id is remembered, in ms."),
    (
        "fifo",
        "Whether a message with a key is held back until earlier messages with the same key are settled.",
    ),
    (
        "lease-ms",
        "Duration of a lease, after which an unsettled message is delivered again, in ms; 10 to 43200000.",
    ),
    ("length-max", "Maximum number of messages."),
    ("max-deliveries", "Number of deliveries after which a message becomes a dead letter."),
    (
        "overflow",
        "What happens when the queue is full: `reject` rejects new messages, `drop-oldest` turns the oldest messages into dead letters.",
    ),
    ("retention-ms", "How long settled messages stay on disk for replay, in ms."),
    (
        "single-active-consumer",
        "Whether only one consumer receives messages, and another one takes over when it leaves.",
    ),
    (
        "start",
        "Start position of a new group: `earliest`, all messages that some group has not settled; `latest`, messages sent from then on.",
    ),
    ("ttl-ms", "Time after which an unsettled message expires, in ms."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Section {
        queue: Vec<DeclaredQueue>,
    }

    fn queues(text: &str) -> Result<Vec<DeclaredQueue>, String> {
        let Section { queue } = toml::from_str(text).map_err(|error| error.to_string())?;
        check_queues(&queue, None).map(|()| queue)
    }

    #[test]
    fn a_declared_queue_becomes_a_topic_with_its_settings() {
        let text = "[[queue]]\nname = \"jobs\"\nlease_ms = 500\nfifo = false\ndurability = \"os\"\n";
        let topic = queue_topic(&queues(text).unwrap(), "jobs").unwrap();
        let config: Vec<(&str, &str)> =
            topic.config.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let expected = [
            ("mainstem.durability", "os"),
            ("queue.enabled", "true"),
            ("queue.fifo", "false"),
            ("queue.lease-ms", "500"),
        ];
        assert_eq!((&*topic.name, topic.partitions, config.as_slice()), ("jobs", 1, &expected[..]));
    }

    #[test]
    fn names_the_invalid_queue() {
        for (text, word) in [
            ("name = \"a/b\"", "queue \"a/b\""),
            ("name = \"jobs\"\nlease = 1", "lease"),
            ("name = \"jobs\"\nlease_ms = 1", "lease-ms"),
            ("name = \"jobs\"\nlease_ms = 1.5", "lease_ms: must be"),
            ("name = \"jobs\"\ndurability = \"none\"", "durability"),
            ("name = \"jobs\"\n[[queue]]\nname = \"jobs\"", "two queues have the name"),
            ("lease_ms = 500", "name"),
        ] {
            let error = queues(&format!("[[queue]]\n{text}\n")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn documents_every_setting() {
        let keys: Vec<&str> = mainstem_queue_core::Config::default().pairs().into_keys().collect();
        let documented: Vec<&str> = DOCS.iter().map(|(key, _)| *key).collect();
        assert_eq!(documented, keys);
    }
}
