//! How queues are, as numbers for Prometheus and what reads its text format (version 0.0.4).

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstem_queue::{GroupInfo, Info};

use crate::app::App;
use crate::queues::all;

/// What the text is.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number of something: its name without the prefix, whether it only grows, what it is, and how it is found.
struct Metric<T> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    of: fn(&T) -> u64,
}

/// Of queues, whether they can be told of.
const AVAILABLE: &str = "mainstem_queue_available";

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";

const OF_QUEUES: [Metric<Info>; 3] = [
    Metric {
        name: "messages",
        kind: GAUGE,
        help: "Messages that some group has not settled.",
        of: |i| i.messages,
    },
    Metric { name: "bytes", kind: GAUGE, help: "Their size.", of: |info| info.bytes },
    Metric {
        name: "duplicates_total",
        kind: COUNTER,
        help: "Messages thrown away as duplicates.",
        of: |info| info.duplicates,
    },
];

const OF_GROUPS: [Metric<GroupInfo>; 12] = [
    Metric { name: "ready", kind: GAUGE, help: "Messages that may be delivered now.", of: |g| g.ready },
    Metric { name: "leased", kind: GAUGE, help: "Messages that consumers have.", of: |g| g.leased },
    Metric { name: "delayed", kind: GAUGE, help: "Messages that wait for their time.", of: |g| g.delayed },
    Metric {
        name: "blocked",
        kind: GAUGE,
        help: "Messages behind others with the same key.",
        of: |g| g.blocked,
    },
    Metric {
        name: "leaving",
        kind: GAUGE,
        help: "Messages on their way to another queue.",
        of: |g| g.leaving,
    },
    Metric {
        name: "oldest_timestamp_seconds",
        kind: GAUGE,
        help: "When the oldest message came that is not settled, since 1970; 0 if there is none.",
        of: |group| group.oldest_ms.unwrap_or(0) / 1000,
    },
    Metric { name: "waiting", kind: GAUGE, help: "Consumers that wait for messages.", of: |g| g.waiting },
    Metric { name: "delivered_total", kind: COUNTER, help: "Deliveries.", of: |g| g.delivered },
    Metric {
        name: "redelivered_total",
        kind: COUNTER,
        help: "Deliveries but the first.",
        of: |g| g.redelivered,
    },
    Metric { name: "acked_total", kind: COUNTER, help: "Messages acknowledged.", of: |g| g.acked },
    Metric { name: "nacked_total", kind: COUNTER, help: "Deliveries that failed.", of: |g| g.nacked },
    Metric { name: "dead_total", kind: COUNTER, help: "Messages that became dead letters.", of: |g| g.dead },
];

pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let mut queues = Vec::new();
    // One that cannot say how it is does not keep the others from being told of.
    let mut silent = Vec::new();
    for (name, told) in all(&app).await {
        match told {
            Ok(info) => queues.push(info),
            Err(_) => silent.push(name),
        }
    }
    let mut response = (StatusCode::OK, text(&queues, &silent)).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn text(queues: &[Info], silent: &[Arc<str>]) -> String {
    let mut text = String::new();
    head(
        &mut text,
        AVAILABLE,
        GAUGE,
        "Whether the queue can say how it is: 1, or 0, and then the rest is missing.",
    );
    for info in queues {
        line(&mut text, AVAILABLE, &info.name, None, 1);
    }
    for name in silent {
        line(&mut text, AVAILABLE, name, None, 0);
    }
    for metric in &OF_QUEUES {
        head(&mut text, &format!("mainstem_queue_{}", metric.name), metric.kind, metric.help);
        for info in queues {
            line(&mut text, &format!("mainstem_queue_{}", metric.name), &info.name, None, (metric.of)(info));
        }
    }
    for metric in &OF_GROUPS {
        let name = format!("mainstem_queue_group_{}", metric.name);
        head(&mut text, &name, metric.kind, metric.help);
        for info in queues {
            for group in &info.groups {
                line(&mut text, &name, &info.name, Some(&group.name), (metric.of)(group));
            }
        }
    }
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string cannot fail");
}

fn line(text: &mut String, name: &str, queue: &str, group: Option<&str>, value: u64) {
    let queue = escape(queue);
    let group = group.map_or_else(String::new, |group| format!(",group=\"{}\"", escape(group)));
    writeln!(text, "{name}{{queue=\"{queue}\"{group}}} {value}").expect("writing to a string cannot fail");
}

/// A label's value: names of groups may have characters that mean something.
fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_head_and_a_line_for_each_queue_or_group() {
        let group =
            GroupInfo { name: "a\"b".into(), ready: 3, oldest_ms: Some(61_500), ..GroupInfo::default() };
        let info = Info { name: "jobs".into(), messages: 7, groups: vec![group], ..Info::default() };
        let text = text(&[info], &["broken".into()]);
        assert!(text.contains("mainstem_queue_available{queue=\"jobs\"} 1\n"));
        assert!(text.contains("mainstem_queue_available{queue=\"broken\"} 0\n"));
        assert_eq!(text.matches("broken").count(), 1);
        assert!(
            text.contains(
                "# TYPE mainstem_queue_messages gauge\nmainstem_queue_messages{queue=\"jobs\"} 7\n"
            )
        );
        assert!(text.contains("mainstem_queue_group_ready{queue=\"jobs\",group=\"a\\\"b\"} 3\n"));
        assert!(
            text.contains(
                "mainstem_queue_group_oldest_timestamp_seconds{queue=\"jobs\",group=\"a\\\"b\"} 61\n"
            )
        );
        assert_eq!(text.matches("# TYPE ").count(), 1 + OF_QUEUES.len() + OF_GROUPS.len());
    }
}
