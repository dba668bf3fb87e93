//! Messages that other protocols take, and messages that they publish.
//!
//! A binding must not lose what MQTT has acknowledged: a message that a sink takes has a ticket, which counts like a
//! receipt of another shard, and the publisher is acknowledged when every ticket is settled. A sink that falls behind
//! holds publishers back instead of queueing without bound.

use std::collections::BTreeSet;

use mainstem_runtime::Io;
use mainstem_topic::check_name;

use super::Shard;
use crate::bridge::{BridgePublish, SinkMessage, SinkOutcome, SinkTicket};
use crate::broker_state::Mail;
use crate::counters::DropReason;
use crate::message::{Content, SessionKey};
use crate::pending_acks::{AckCondition, AckToken, RemoteCommitResult};
use crate::publication::PublishContext;
use crate::queue_consumers::{is_of_queue, queue_of};

impl Shard {
    /// Whether there are messages for sinks.
    pub fn has_sink_messages(&self) -> bool {
        self.publisher.bridge().has_messages()
    }

    /// Takes the messages for sinks that have come since the last call.
    pub fn take_sink_messages(&mut self) -> Vec<SinkMessage> {
        self.publisher.bridge_mut().take_messages()
    }

    /// Reports what became of a message for a sink.
    pub fn settle_sink_message(
        &mut self,
        io: &mut Io<'_, Mail>,
        ticket: Option<SinkTicket>,
        outcome: SinkOutcome,
    ) {
        let refused = match outcome {
            SinkOutcome::Refused(reason) => Some(reason),
            SinkOutcome::Durable | SinkOutcome::NotDurable => None,
        };
        let is_durable = outcome == SinkOutcome::Durable;
        if refused.is_some() || (ticket.is_none() && !is_durable) {
            self.host.counters_mut().count_dropped(DropReason::Refused);
        }
        if let Some(ticket) = ticket {
            let failing_journals = BTreeSet::new();
            let result = RemoteCommitResult { is_durable, refused, group: None, failing_journals };
            self.on_receipt(io, ticket.token(), &result);
        }
    }

    /// Lets publishers wait while sinks cannot take as much as comes.
    pub fn hold_for_sinks(&mut self, is_behind: bool) {
        self.publisher.bridge_mut().set_behind(is_behind);
    }

    /// Publishes a message of another protocol. False if the topic name is invalid or reserved for the broker, or the
    /// message is too large.
    pub fn publish_from_bridge(&mut self, io: &mut Io<'_, Mail>, publish: &BridgePublish<'_>) -> bool {
        let size = publish.topic.len() + publish.payload.len();
        if check_name(publish.topic).is_err()
            || (is_of_queue(publish.topic) && queue_of(publish.topic).is_none())
            || publish.topic.starts_with("$SYS/")
            || size >= self.config().max_packet_size_bytes as usize
        {
            return false;
        }
        let content = Content {
            qos: publish.qos,
            retain: publish.retain && self.config().retain_available,
            publisher: None,
            topic: publish.topic,
            payload: publish.payload,
            properties: publish.properties,
        };
        self.publisher.publish(io, &mut self.host, &content, &PublishContext::default());
        true
    }

    /// Whether messages of other protocols should wait: this shard has done its share of the turn, or something is
    /// behind.
    pub fn is_bridge_blocked(&self, io: &mut Io<'_, Mail>) -> bool {
        io.is_exhausted()
            || io.congested()
            || self.host.persistence().is_behind()
            || self.host.has_too_many_fan_outs()
            || self.shared.is_failing()
    }

    /// Sets a fence: [`Shard::take_fenced`] returns its token when everything published up to now is durable.
    pub fn fence_bridge(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        let number = self.host.next_receipt_number();
        let session = SessionKey { shard: self.me, slot: u32::MAX, generation: 0 };
        let condition = if self.host.persistence().is_enabled() {
            self.host.fence(io, AckToken { session, number })
        } else {
            AckCondition::default()
        };
        self.publisher.bridge_mut().add_fence(number, token, condition);
    }

    /// Takes the tokens of fences that are over, and whether everything before each is durable.
    pub fn take_fenced(&mut self) -> Vec<(u64, bool)> {
        let is_failing = self.shared.is_failing();
        let fences = self.publisher.bridge_mut().take_fences(self.host.persistence().durable_commit());
        fences.map(|(token, is_durable)| (token, is_durable && !is_failing)).collect()
    }
}
