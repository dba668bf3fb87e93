//! What happens when timers fire, and `$SYS`.
//!
//! Timers are not canceled. One that fires looks at what it is about, and is set again if it fired too early: a keep
//! alive moves with each packet, which must cost no timer operation. A timer whose connection or session has gone finds
//! nothing, as slots carry a generation.

use mainstem_mqtt::{MessageProperties, QoS, ReasonCode};
use mainstem_runtime::{ConnId, Io};

use super::Shard;
use crate::broker_state::Mail;
use crate::connections::ConnState;
use crate::message::Content;
use crate::publication::PublishContext;
use crate::retained::SWEEP_MS;
use crate::sys::Sys;
use crate::timers::Timer;

impl Shard {
    pub(super) fn start_timers(&mut self, io: &mut Io<'_, Mail>) {
        if self.me == 0 {
            io.set_timer(io.clock.now_ms + SWEEP_MS, Timer::Sweep.token());
            self.start_sys(io);
        }
        if self.host.persistence().is_enabled() {
            self.host.maintain_stores(io);
            for expired in self.host.start_session_timers(io) {
                self.end_session(io, expired);
            }
        }
    }

    pub(super) fn on_timer(&mut self, io: &mut Io<'_, Mail>, timer: Timer) {
        match timer {
            Timer::Connect(conn) => self.connect_timed_out(io, conn),
            Timer::KeepAlive(conn) => self.check_keep_alive(io, conn),
            Timer::Expiry(key) => self.check_expiry(io, key),
            Timer::Will(key) => self.publisher.check_will(io, &mut self.host, key),
            Timer::Sys => self.publish_sys(io),
            Timer::Sweep => self.sweep(io),
            Timer::Maintenance => self.host.maintain_stores(io),
            Timer::Marks => {}
            Timer::Queues => self.host.retry_refused_consumers(io.clock.now_ms),
            Timer::Proof(conn) => self.check_proof(io, conn),
        }
    }

    fn connect_timed_out(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if self.connections.find(conn) == Some(ConnState::Waiting) {
            log::debug!("a connection is closed: no CONNECT in time");
            self.vacate(conn);
            io.close(conn);
        }
    }

    /// Arms the keep alive timer: one and a half intervals after the last packet [MQTT-3.1.2-22].
    pub(super) fn arm_keep_alive(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        if let Some(ends_ms) = self.connections.keep_alive_ends_ms(conn) {
            io.set_timer(ends_ms, Timer::KeepAlive(conn).token());
        }
    }

    fn check_keep_alive(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        let Some(ConnState::Serving(slot)) = self.connections.find(conn) else { return };
        if self.connections.keep_alive_ends_ms(conn).is_some_and(|ends_ms| io.clock.now_ms < ends_ms) {
            self.arm_keep_alive(io, conn);
            return;
        }
        let client_id = self.host.session(slot).client_id();
        log::info!("client {client_id:?} is disconnected: not heard of for 1.5 keep alive intervals");
        self.disconnect(io, slot, ReasonCode::KeepAliveTimeout, None);
    }

    fn sweep(&mut self, io: &mut Io<'_, Mail>) {
        let (removed, pause_ms) = self.retained_sweep.step(&self.shared.retained, io.clock.now_ms);
        for topic in &removed {
            self.host.persist_retained(io, topic, None);
        }
        io.set_timer(io.clock.now_ms + pause_ms, Timer::Sweep.token());
    }

    pub(super) fn start_sys(&mut self, io: &mut Io<'_, Mail>) {
        if self.config().sys_interval_s > 0 {
            let mut sys = Sys::default();
            self.publish_sys_value(
                io,
                &mut sys,
                "version",
                concat!("mainstem version ", env!("CARGO_PKG_VERSION")),
            );
            self.sys = Some(sys);
            self.publish_sys(io);
        }
    }

    pub(super) fn publish_sys(&mut self, io: &mut Io<'_, Mail>) {
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
        let memory = self.shared.memory();
        lines.push(("memory/max_bytes".to_owned(), memory.bytes_max().to_string()));
        for (owner, bytes) in memory.used_by_owner() {
            lines.push((format!("memory/{owner}/bytes"), bytes.to_string()));
        }
        for (topic, value) in &lines {
            self.publish_sys_value(io, &mut sys, topic, value);
        }
        self.sys = Some(sys);
        io.set_timer(io.clock.now_ms + u64::from(interval_s) * 1000, Timer::Sys.token());
    }

    fn publish_sys_value(&mut self, io: &mut Io<'_, Mail>, sys: &mut Sys, topic: &str, value: &str) {
        if !sys.has_changed(topic, value) {
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
        self.publisher.publish(io, &mut self.host, &content, &PublishContext::default());
    }
}
