//! PUBLISH from clients, and messages from other shards.
//!
//! This file checks what a decoder cannot know, the clauses of 3.3 that depend on the configuration, and resolves topic
//! aliases. The rest is in `publisher.rs`, which clients, wills and bindings share. What another shard has matched is
//! delivered to the sessions of this one, and the other shard gets a receipt when that is durable.

use mainstem_mqtt::{Publish, ReasonCode};
use mainstem_runtime::{ConnId, Io};
use mainstem_topic::check_name;

use super::Shard;
use crate::admission::QuotaOutcome;
use crate::broker_state::{Mail, ReceiptMail, RetainMail};
use crate::handled::{Handled, Next, ProtocolError};

/// Cost of a message from another shard without its receivers, units.
const MAIL_UNITS: u32 = 2;

/// Longest time until a client that waits for a quota is looked at again, ms: its quota may have changed.
const PAUSE_MS_MAX: u64 = 1_000;

impl Shard {
    /// PUBLISH from a client (3.3).
    pub(super) fn on_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Handled {
        let config = &self.shared.config;
        let aliases_max = config.topic_alias_maximum;
        let counters = self.host.counters_mut();
        counters.publish_received += 1;
        counters.publish_bytes_received += publish.payload.len() as u64;
        if publish.qos > config.qos_max() {
            return Err(ProtocolError::new(
                ReasonCode::QoSNotSupported,
                "QoS above the maximum [MQTT-3.2.2-11]",
            ));
        }
        if publish.retain && !config.retain_available {
            return Err(ProtocolError::new(
                ReasonCode::RetainNotSupported,
                "retained messages are off [MQTT-3.2.2-14]",
            ));
        }
        if !publish.subscription_ids.is_empty() {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Subscription Identifier from a client [MQTT-3.3.4-6]",
            ));
        }
        if publish.properties.response_topic.is_some_and(|topic| check_name(topic).is_err()) {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Response Topic with wildcards [MQTT-3.3.2-14]",
            ));
        }
        // The topic may be borrowed from the table.
        let mut aliases = self.connections.take_aliases(conn);
        let outcome = if publish.topic_alias.is_some() || publish.topic.is_empty() {
            aliases
                .get_or_insert_default()
                .resolve(publish.topic, publish.topic_alias, aliases_max)
                .map_err(|reason| {
                    ProtocolError::new(reason, "no topic, or a topic alias that stands for none")
                })
                .and_then(|topic| self.publisher.accept_publish(io, &mut self.host, slot, publish, topic))
        } else {
            self.publisher.accept_publish(io, &mut self.host, slot, publish, publish.topic)
        };
        if let Some(aliases) = aliases {
            self.connections.put_aliases(conn, aliases);
        }
        outcome
    }

    /// Counts a PUBLISH of a client with quotas. Returns how to continue without it, if it exceeds one.
    pub(super) fn check_quotas(
        &mut self,
        io: &Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        publish: &Publish<'_>,
    ) -> Option<Handled> {
        let now_ms = io.clock.now_ms;
        let session = self.host.session(slot);
        let quotas = self.connections.quotas(conn)?;
        match self.admission.check_quotas(quotas, session, publish, now_ms) {
            QuotaOutcome::Within => None,
            QuotaOutcome::Refuse { .. } => {
                self.publisher.note_over_quota();
                None
            }
            QuotaOutcome::Disconnect { .. } => {
                let what = "its publish quota is exceeded (mqtt.quota_policy)";
                Some(Err(ProtocolError::new(ReasonCode::MessageRateTooHigh, what)))
            }
            QuotaOutcome::Wait { key, wait_ms } => {
                if self.connections.pause(conn, wait_ms, now_ms, io.peer_has_closed(conn)) {
                    self.admission.note_throttled(session, key, wait_ms, now_ms);
                }
                Some(Ok(Next::Pause(wait_ms.min(PAUSE_MS_MAX) as u32)))
            }
        }
    }

    pub(super) fn on_mail(&mut self, io: &mut Io<'_, Mail>, mail: Mail) {
        io.charge(MAIL_UNITS);
        match mail {
            Mail::Publish(mail) => {
                let token = mail.token;
                let condition = self.host.deliver(io, mail);
                self.send_receipt_when_durable(io, condition, token, None);
            }
            Mail::Group(mail) => self.on_group_message(io, &mail),
            Mail::Retain(RetainMail { topic, token }) => {
                let condition = self.host.append_retained(io.clock, &topic);
                self.send_receipt_when_durable(io, condition, token, None);
            }
            Mail::Fence(ReceiptMail(token)) => {
                let condition = self.host.fence_here();
                self.send_receipt_when_durable(io, condition, Some(token), None);
            }
            Mail::Receipt(ReceiptMail(token), result) => self.on_receipt(io, token, &result),
        }
    }
}
