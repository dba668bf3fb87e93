//! `$SYS/broker/...`: counters and averages of the broker, under the topic names of mosquitto.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::counters::Counters;

/// Spans over which rates are averaged, minutes.
const SPANS: [f64; 3] = [1.0, 5.0, 15.0];
const SPAN_NAMES: [&str; 3] = ["1min", "5min", "15min"];

/// A rate shown under `load/`, and the counter it follows.
type Load = (&'static str, fn(&Counters) -> u64);

const LOADS: [Load; 8] = [
    ("messages/received", |counters| counters.messages_received),
    ("messages/sent", |counters| counters.messages_sent),
    ("publish/received", |counters| counters.publish_received),
    ("publish/sent", |counters| counters.publish_sent),
    ("publish/dropped", |counters| counters.dropped()),
    ("bytes/received", |counters| counters.bytes_received),
    ("bytes/sent", |counters| counters.bytes_sent),
    ("sockets", |counters| counters.connections_accepted),
];

/// Values of the last update, so that only changes are published.
#[derive(Debug, Default)]
pub(crate) struct Sys {
    last: Counters,
    clients_maximum: u64,
    loads: [[f64; SPANS.len()]; LOADS.len()],
    published: HashMap<String, String, RandomState>,
}

impl Sys {
    /// Updates the averages after one interval. Returns topics below `$SYS/broker/` and their values.
    pub(crate) fn update(&mut self, now: &Counters, interval_s: f64, uptime_s: u64) -> Vec<(String, String)> {
        self.clients_maximum = self.clients_maximum.max(now.clients_connected);
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut add = |topic: &str, value: u64| lines.push((topic.to_owned(), value.to_string()));
        let offline = now.sessions.saturating_sub(now.clients_connected);
        add("clients/total", now.sessions);
        add("clients/connected", now.clients_connected);
        add("clients/active", now.clients_connected);
        add("clients/disconnected", offline);
        add("clients/inactive", offline);
        add("clients/maximum", self.clients_maximum);
        add("clients/expired", now.clients_expired);
        add("connections/socket/count", now.connections);
        add("messages/received", now.messages_received);
        add("messages/sent", now.messages_sent);
        add("bytes/received", now.bytes_received);
        add("bytes/sent", now.bytes_sent);
        add("publish/messages/received", now.publish_received);
        add("publish/messages/sent", now.publish_sent);
        add("publish/messages/dropped", now.dropped());
        add("publish/bytes/received", now.publish_bytes_received);
        add("publish/bytes/sent", now.publish_bytes_sent);
        add("subscriptions/count", now.subscriptions);
        add("shared_subscriptions/count", now.shared_subscriptions);
        add("log/entries", now.log_entries);
        add("log/bytes", now.log_bytes);
        add("log/commits", now.log_commits);
        add("log/failures", now.log_failures);
        add("log/failing", now.log_failing);
        lines.push(("uptime".to_owned(), format!("{uptime_s} seconds")));
        for (index, (name, counter)) in LOADS.iter().enumerate() {
            let new = counter(now).saturating_sub(counter(&self.last));
            let per_minute = f64::from(u32::try_from(new).unwrap_or(u32::MAX)) * 60.0 / interval_s;
            for (span, name_of_span) in SPAN_NAMES.iter().enumerate() {
                let weight = 1.0 - (-interval_s / (60.0 * SPANS[span])).exp();
                let load = &mut self.loads[index][span];
                *load += weight * (per_minute - *load);
                lines.push((format!("load/{name}/{name_of_span}"), format!("{load:.2}")));
            }
        }
        self.last = *now;
        lines
    }

    /// Whether this has not been said before; notes that it has been said now.
    pub(crate) fn has_changed(&mut self, topic: &str, value: &str) -> bool {
        if self.published.get(topic).is_some_and(|known| known == value) {
            return false;
        }
        self.published.insert(topic.to_owned(), value.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_converge_to_a_steady_rate() {
        let mut sys = Sys::default();
        let mut counters = Counters::default();
        let mut last = Vec::new();
        for _ in 0..1000 {
            counters.messages_received += 50;
            last = sys.update(&counters, 10.0, 0);
        }
        for span in SPAN_NAMES {
            let topic = format!("load/messages/received/{span}");
            let value = &last.iter().find(|(known, _)| *known == topic).unwrap().1;
            assert_eq!(value, "300.00");
        }
    }

    #[test]
    fn only_changes_are_published() {
        let mut sys = Sys::default();
        assert!(sys.has_changed("a", "1"));
        assert!(!sys.has_changed("a", "1"));
        assert!(sys.has_changed("a", "2"));
    }
}
