//! `$SYS/broker/...`: what the broker says of itself, under the names that mosquitto made customary.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use mainstem_mqtt::{MessageProperties, QoS};
use mainstem_runtime::Io;

use crate::counters::Counters;
use crate::durable::Due;
use crate::message::Content;
use crate::shard::Shard;
use crate::shared::Mail;
use crate::timers::Timer;

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
    ("publish/dropped", |counters| counters.publish_dropped),
    ("bytes/received", |counters| counters.bytes_received),
    ("bytes/sent", |counters| counters.bytes_sent),
    ("sockets", |counters| counters.connections_accepted),
];

/// What the last update said, so that only changes are published.
#[derive(Debug, Default)]
pub(crate) struct Sys {
    last: Counters,
    clients_maximum: u64,
    loads: [[f64; SPANS.len()]; LOADS.len()],
    said: HashMap<String, String, RandomState>,
}

impl Sys {
    /// Follows the counters over one interval and returns what to say: topic below `$SYS/broker/` and value.
    fn update(&mut self, now: &Counters, interval_s: f64, uptime_s: u64) -> Vec<(String, String)> {
        self.clients_maximum = self.clients_maximum.max(now.clients_connected);
        let mut lines: Vec<(String, String)> = Vec::new();
        let mut say = |topic: &str, value: u64| lines.push((topic.to_owned(), value.to_string()));
        let offline = now.sessions.saturating_sub(now.clients_connected);
        say("clients/total", now.sessions);
        say("clients/connected", now.clients_connected);
        say("clients/active", now.clients_connected);
        say("clients/disconnected", offline);
        say("clients/inactive", offline);
        say("clients/maximum", self.clients_maximum);
        say("clients/expired", now.clients_expired);
        say("connections/socket/count", now.connections);
        say("messages/received", now.messages_received);
        say("messages/sent", now.messages_sent);
        say("bytes/received", now.bytes_received);
        say("bytes/sent", now.bytes_sent);
        say("publish/messages/received", now.publish_received);
        say("publish/messages/sent", now.publish_sent);
        say("publish/messages/dropped", now.publish_dropped);
        say("publish/bytes/received", now.publish_bytes_received);
        say("publish/bytes/sent", now.publish_bytes_sent);
        say("subscriptions/count", now.subscriptions);
        say("shared_subscriptions/count", now.shared_subscriptions);
        say("log/entries", now.log_entries);
        say("log/bytes", now.log_bytes);
        say("log/commits", now.log_commits);
        say("log/failures", now.log_failures);
        say("log/failing", now.log_failing);
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
    fn is_news(&mut self, topic: &str, value: &str) -> bool {
        if self.said.get(topic).is_some_and(|known| known == value) {
            return false;
        }
        self.said.insert(topic.to_owned(), value.to_owned());
        true
    }
}

impl Shard {
    pub(crate) fn start_sys(&mut self, io: &mut Io<'_, Mail>) {
        if self.config().sys_interval_s > 0 {
            let mut sys = Sys::default();
            self.say(io, &mut sys, "version", concat!("mainstem version ", env!("CARGO_PKG_VERSION")));
            self.sys = Some(sys);
            self.publish_sys(io);
        }
    }

    pub(crate) fn publish_sys(&mut self, io: &mut Io<'_, Mail>) {
        let Some(mut sys) = self.sys.take() else { return };
        let interval_s = self.config().sys_interval_s;
        let counters = self.shared.counters();
        let retained = self.shared.retained.size();
        let mut lines = sys.update(&counters, f64::from(interval_s), io.clock.now_ms / 1000);
        for (topic, value) in [
            ("retained messages/count", retained.messages),
            ("messages/stored", retained.messages + counters.queued_messages),
            ("store/messages/count", retained.messages + counters.queued_messages),
            ("store/messages/bytes", retained.bytes),
        ] {
            lines.push((topic.to_owned(), value.to_string()));
        }
        for (topic, value) in &lines {
            self.say(io, &mut sys, topic, value);
        }
        self.sys = Some(sys);
        io.set_timer(io.clock.now_ms + u64::from(interval_s) * 1000, Timer::Sys.token());
    }

    fn say(&mut self, io: &mut Io<'_, Mail>, sys: &mut Sys, topic: &str, value: &str) {
        if !sys.is_news(topic, value) {
            return;
        }
        let full = format!("$SYS/broker/{topic}");
        let content = Content {
            qos: QoS::ExactlyOnce,
            retain: self.config().retain_available,
            publisher: None,
            topic: &full,
            payload: value.as_bytes(),
            properties: MessageProperties::default(),
        };
        self.publish(io, &content, &Due::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_what_the_averages_tend_to() {
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
    fn only_changes_are_news() {
        let mut sys = Sys::default();
        assert!(sys.is_news("a", "1"));
        assert!(!sys.is_news("a", "1"));
        assert!(sys.is_news("a", "2"));
    }
}
