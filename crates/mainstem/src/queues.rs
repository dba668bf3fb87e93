//! Work queues as the configuration declares them.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use mainstem_queue::{Refusal, Reply, Request};
use mainstem_stream::{BoundTopic, Desk, check_topic};
use serde::Deserialize;
use toml::Value;

use crate::config::Config;

/// Longest time that a queue may take to be made.
const MADE: Duration = Duration::from_mins(1);
/// Time between two looks whether it is.
const AGAIN: Duration = Duration::from_millis(5);

/// A queue that is made at the start, or set anew if it is there.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DeclaredQueue {
    name: String,
    /// By key, as the file has them.
    #[serde(flatten)]
    settings: BTreeMap<String, Value>,
}

impl DeclaredQueue {
    /// What it is set to, as queues have it.
    fn pairs(&self) -> Result<Vec<(String, String)>, String> {
        let pair = |(key, value): (&String, &Value)| {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Boolean(is_so) => is_so.to_string(),
                _ => return Err(format!("{key}: it must be a string, a whole number or a boolean")),
            };
            Ok((key.replace('_', "-"), value))
        };
        self.settings.iter().map(pair).collect()
    }

    fn check(&self) -> Result<(), String> {
        let pairs = self.pairs()?;
        let (durability, others): (Vec<_>, Vec<_>) = pairs.iter().partition(|(key, _)| key == DURABILITY);
        if durability.iter().any(|(_, value)| !matches!(value.as_str(), "fsync" | "os")) {
            return Err("durability: \"fsync\" or \"os\"".into());
        }
        let others = others.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        mainstem_queue::Config::from_pairs(others).map_err(|fault| fault.0)?;
        check_topic(&topic(&self.name, &pairs))
    }
}

/// When what is put into a queue counts as kept.
const DURABILITY: &str = "durability";

/// The topic that a queue is.
fn topic(name: &str, pairs: &[(String, String)]) -> BoundTopic {
    let key = |key: &str| if key == DURABILITY { format!("mainstem.{key}") } else { format!("queue.{key}") };
    let mut config: BTreeMap<String, String> =
        pairs.iter().map(|(name, value)| (key(name), value.clone())).collect();
    config.insert("queue.enabled".into(), "true".into());
    BoundTopic { name: name.into(), partitions: 1, config }
}

impl Config {
    /// Checks the declared queues.
    ///
    /// # Errors
    /// Which one is wrong, and how.
    pub(crate) fn check_queues(&self) -> Result<(), String> {
        let mut names = Vec::new();
        for queue in &self.queue {
            queue.check().map_err(|what| format!("queue {:?}: {what}", queue.name))?;
            names.push(&queue.name);
        }
        names.sort_unstable();
        match names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
            Some(name) => Err(format!("two queues are called {name:?}")),
            None => Ok(()),
        }
    }

    /// The topic of the queue of this name, set as the queue is declared, if it is.
    pub(crate) fn queue_topic(&self, name: &str) -> Result<BoundTopic, String> {
        let declared = self.queue.iter().find(|queue| queue.name == name);
        Ok(topic(name, &declared.map_or(Ok(Vec::new()), DeclaredQueue::pairs)?))
    }

    /// Makes the declared queues, or sets those that are there to what is declared. The shards must run.
    ///
    /// # Errors
    /// Which one cannot be made, and why.
    pub(crate) fn declare_queues(&self, desk: &Desk) -> Result<(), String> {
        for queue in &self.queue {
            let explain = |what: &dyn std::fmt::Display| format!("queue {:?}: {what}", queue.name);
            let settings = queue.pairs().map_err(|what| explain(&what))?;
            let made = make(desk, &queue.name, &settings);
            made.map_err(|refusal| explain(&refusal))?;
        }
        Ok(())
    }
}

/// Makes a queue, or sets the one that is there.
fn make(desk: &Desk, queue: &str, settings: &[(String, String)]) -> Result<(), Refusal> {
    let began = Instant::now();
    loop {
        match ask(desk, queue, Request::Create { settings: settings.into() }) {
            Err(Refusal::Exists) => {}
            made => return made,
        }
        match ask(desk, queue, Request::Configure { settings: settings.into() }) {
            // A binding's shard has begun to make it, so that it is there soon.
            Err(Refusal::UnknownQueue) if began.elapsed() < MADE => std::thread::sleep(AGAIN),
            set => return set,
        }
    }
}

fn ask(desk: &Desk, queue: &str, request: Request) -> Result<(), Refusal> {
    let (sender, receiver) = channel();
    let answer = move |reply| {
        if sender.send(reply).is_err() {
            log::debug!("the answer of a declared queue came too late");
        }
    };
    desk.ask(queue, request, Box::new(answer));
    match receiver.recv_timeout(MADE) {
        Ok(Reply::Refused(refusal)) => Err(refusal),
        Ok(_) => Ok(()),
        Err(_) => Err(Refusal::Busy),
    }
}

/// What the reference page of the configuration says of them.
pub(crate) fn reference() -> String {
    let row = |(key, default): (&str, String)| {
        let is_bare = default.parse::<u64>().is_ok() || default.parse::<bool>().is_ok();
        let default = if is_bare { default } else { format!("\"{default}\"") };
        let doc = DOCS.iter().find(|(name, _)| *name == key).map_or("", |(_, doc)| doc);
        format!("| `{}` | `{default}` | {doc} |\n", key.replace('-', "_"))
    };
    let rows: Vec<String> = mainstem_queue::Config::default().pairs().into_iter().map(row).collect();
    format!("{REFERENCE_HEAD}{}", rows.concat())
}

const REFERENCE_HEAD: &str = "
## `[[queue]]`

A work queue that is made at the start; if it is there, these keys are set to what stands here. May be repeated. A key
that is not named has its default, or, in a queue that is there, what it was set to. Limits and times of 0 are none.

| key | default | what it does |
|---|---|---|
| `name` | | What the queue is called: letters, digits, `.`, `_` and `-`. |
| `durability` | `kafka.durability` | When a message counts as kept, and its sender is told: fsync, when it is on disk; os, when the operating system has it. |
";

/// What each setting of a queue does.
const DOCS: &[(&str, &str)] = &[
    ("backoff-jitter-percent", "Part of the wait after a failure that is chosen at random, in per cent."),
    ("backoff-max-ms", "The longest that a message waits after it has failed, in ms."),
    ("backoff-ms", "What a message waits for after it has failed, in ms; each further failure doubles it."),
    ("bytes-max", "Most bytes of messages."),
    (
        "dead-letter-queue",
        "The queue that dead letters go to; empty for the one with this one's name and `.dead`.",
    ),
    ("dead-letters", "Whether dead letters are kept at all."),
    ("dedup-window-ms", "How long a deduplication identifier is remembered, in ms."),
    ("fifo", "Whether a message with a key waits until those before it with the same key are settled."),
    ("lease-ms", "How long a consumer has a message before it comes back, in ms; 10 to 43200000."),
    ("length-max", "Most messages."),
    ("max-deliveries", "How often a message is delivered before it becomes a dead letter."),
    (
        "overflow",
        "What happens to messages for which there is no room: reject refuses the sender, drop-oldest makes dead letters of the oldest.",
    ),
    ("retention-ms", "How long settled messages stay on disk to be replayed, in ms."),
    (
        "single-active-consumer",
        "Whether one consumer at a time gets messages, and another only when it has gone.",
    ),
    (
        "start",
        "Where a new group begins: earliest, with all that is not settled everywhere; latest, with what comes.",
    ),
    ("ttl-ms", "How long a message may wait to be settled, in ms."),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check_queues().map(|()| config)
    }

    #[test]
    fn a_declared_queue_is_a_topic_of_its_settings() {
        let text = "[[queue]]\nname = \"jobs\"\nlease_ms = 500\nfifo = false\ndurability = \"os\"\n";
        let topic = config(text).unwrap().queue_topic("jobs").unwrap();
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
    fn what_no_queue_can_be_is_refused_by_name() {
        for (text, word) in [
            ("name = \"a/b\"", "queue \"a/b\""),
            ("name = \"jobs\"\nlease = 1", "lease"),
            ("name = \"jobs\"\nlease_ms = 1", "lease-ms"),
            ("name = \"jobs\"\nlease_ms = 1.5", "lease_ms: it must be"),
            ("name = \"jobs\"\ndurability = \"none\"", "durability"),
            ("name = \"jobs\"\n[[queue]]\nname = \"jobs\"", "two queues are called"),
            ("lease_ms = 500", "name"),
        ] {
            let error = config(&format!("[[queue]]\n{text}\n")).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn every_setting_is_told_of() {
        let keys: Vec<&str> = mainstem_queue::Config::default().pairs().into_keys().collect();
        let told: Vec<&str> = DOCS.iter().map(|(key, _)| *key).collect();
        assert_eq!(told, keys);
    }
}
