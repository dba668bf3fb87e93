//! The will of a session: waiting for the connection to be lost, due at a time, or published and not durable yet.
//!
//! A journal keeps a will until the published message is durable everywhere, so a crash may publish it twice but never
//! lose it [MQTT-3.1.2-8].

use mainstem_runtime::MemoryMeter;

use crate::message::{Content, Message, SessionKey};

/// A will message, to be published when the client is lost.
#[derive(Debug)]
pub(crate) struct Will {
    pub(crate) message: Message,
    /// Message Expiry Interval, counted from when the will is published.
    pub(crate) expiry_s: Option<u32>,
    pub(crate) delay_s: u32,
}

impl Will {
    /// The will of a CONNECT.
    pub(crate) fn new(will: &mainstem_mqtt::Will<'_>, publisher: SessionKey, meter: &MemoryMeter) -> Self {
        Self {
            message: Message::new(&will_content(will, Some(publisher)), 0, meter),
            expiry_s: will.properties.message_expiry,
            delay_s: will.delay_interval.unwrap_or(0),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct WillState {
    pending: Option<Will>,
    /// Published, and not known to be durable everywhere.
    leaving: Option<Will>,
    /// The connection was lost, and the pending will is due at this time.
    due_at_ms: Option<u64>,
}

impl WillState {
    /// A CONNECT replaces whatever there was.
    pub(crate) fn replace(&mut self, will: Option<Will>) {
        *self = Self { pending: will, leaving: None, due_at_ms: None };
    }

    /// A normal DISCONNECT removes the will [MQTT-3.14.4-3].
    pub(crate) fn discard(&mut self) {
        self.pending = None;
    }

    pub(crate) fn restore(&mut self, will: Will, due_at_ms: u64) {
        *self = Self { pending: Some(will), leaving: None, due_at_ms: Some(due_at_ms) };
    }

    /// The connection is lost: the delay of the will begins. Returns it.
    pub(crate) fn start_delay(&mut self, now_ms: u64) -> Option<u32> {
        let delay_s = self.pending.as_ref()?.delay_s;
        self.due_at_ms = Some(now_ms + u64::from(delay_s) * 1000);
        Some(delay_s)
    }

    /// Takes the pending will, to be published.
    pub(crate) fn take(&mut self) -> Option<Will> {
        self.due_at_ms = None;
        self.pending.take()
    }

    /// The will was published and waits to be durable.
    pub(crate) fn set_leaving(&mut self, will: Will) {
        self.leaving = Some(will);
    }

    /// The published will is durable everywhere.
    pub(crate) fn confirm(&mut self) {
        self.leaving = None;
    }

    /// Size of the wills, as limits count it.
    pub(crate) fn bytes(&self) -> u64 {
        let wills = self.pending.iter().chain(&self.leaving);
        wills.map(|will| will.message.size() as u64).sum()
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.due_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// The will as the journal has it.
    pub(crate) fn stored(&self) -> Option<&Will> {
        self.pending.as_ref().or(self.leaving.as_ref())
    }

    /// Delay, and the time at which the will is due, of a session whose connection was lost.
    pub(crate) fn schedule(&self) -> Option<(u32, u64)> {
        Some((self.pending.as_ref()?.delay_s, self.due_at_ms?))
    }
}

/// The message that the will of a CONNECT is.
pub(crate) fn will_content<'a>(will: &mainstem_mqtt::Will<'a>, publisher: Option<SessionKey>) -> Content<'a> {
    Content {
        qos: will.qos,
        retain: will.retain,
        publisher,
        topic: will.topic,
        payload: will.payload,
        properties: will.properties,
    }
}
