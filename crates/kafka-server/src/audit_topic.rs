//! The audit topic: shard 0 appends the events of the audit log to partition 0 of a topic.
//!
//! The events come from all threads and wait in [`AuditEvents`](mainstem_security::AuditEvents). One batch at a time is
//! in flight, and its events stay here until they are durable: if the append fails, the same events are appended again
//! about a second later, before any later one. So the topic has the events in order, whatever fails in between; an
//! event may be there twice if its first append failed after it had reached the disk. What waits meanwhile is bounded
//! by `AuditEvents`, which drops and counts the newest.
//!
//! A topic that clients could write to would be no evidence. So no client may produce to it, not even a super user,
//! and no binding and no dead-letter queue may have it as a destination.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_log::BatchBuilder;
use mainstem_runtime::Io;

use crate::append_error::{AppendError, Produced};
use crate::catalogue::Topic;
use crate::dead_letters::destination_of;
use crate::environment::Environment;
use crate::jobs::Job;
use crate::partition_message::{PartitionRequest, ProducePart, RECORD_OVERHEAD_BYTES};
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::shared::Shared;
use crate::topic_change::NewTopic;

/// Most bytes of the events of a batch, unless a single one is longer.
const BATCH_BYTES: usize = 256 * 1024;

/// The events that shard 0 has taken and that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct AuditAppends {
    /// In order. The first `in_flight` are being appended.
    events: Vec<String>,
    in_flight: usize,
    is_creating: bool,
    /// The last attempt failed: wait for the next retry.
    must_wait: bool,
    /// A failure has been logged.
    is_failing: bool,
}

impl AuditAppends {
    fn may_begin(&self) -> bool {
        self.in_flight == 0 && !self.is_creating && !self.must_wait
    }

    /// Makes a batch of the first events, as many as fit; at least one.
    fn begin(&mut self, bytes_max: usize, now_ms: u64) -> Vec<u8> {
        let mut builder = BatchBuilder::default();
        for event in &self.events {
            let size = builder.len() + event.len() + RECORD_OVERHEAD_BYTES;
            if self.in_flight > 0 && size > bytes_max {
                break;
            }
            builder.push(now_ms.cast_signed(), None, Some(event.as_bytes()));
            self.in_flight += 1;
        }
        builder.finish().to_vec()
    }

    /// The batch in flight is durable: its events are done.
    fn succeed(&mut self, topic: &str) {
        self.events.drain(..std::mem::take(&mut self.in_flight));
        if std::mem::take(&mut self.is_failing) {
            log::info!("audit topic {topic}: events are appended again");
        }
    }

    /// The batch in flight has failed. Returns how many of its events are given up, because the topic accepts none of
    /// their size.
    fn fail(&mut self, topic: &str, error: &AppendError) -> u64 {
        let count = std::mem::take(&mut self.in_flight);
        if count == 1 && error.code == ErrorCode::MessageTooLarge {
            self.events.remove(0);
            log::error!("audit topic {topic}: an event is lost: it exceeds max.message.bytes of the topic");
            return 1;
        }
        self.must_wait = true;
        if !std::mem::replace(&mut self.is_failing, true) {
            let AppendError { code, message, .. } = error;
            let message = message.as_deref().unwrap_or("no details");
            log::error!(
                "audit topic {topic}: {}: {message}; events wait (security.audit_topic)",
                code.name()
            );
        }
        0
    }
}

impl Environment {
    /// Whether this is the audit topic, to which only the broker itself may write.
    #[inline]
    pub(crate) fn is_audit_topic(&self, name: &str) -> bool {
        self.shared().config.audit_topic.as_deref() == Some(name)
    }
}

impl Shared {
    /// Why the topic of the configuration cannot be the audit topic; `None` if it can. Call it when shard 0 is restored.
    pub fn audit_topic_error(&self) -> Option<String> {
        let name = self.config.audit_topic.as_deref()?;
        let catalogue = self.snapshot();
        if catalogue.topic(name).is_some_and(|topic| topic.config.queue.is_some()) {
            return Some(format!("security.audit_topic: {name:?} is a work queue"));
        }
        let goes_here = |topic: &&Arc<Topic>| destination_of(topic).as_deref() == Some(name);
        let queue = catalogue.by_name.values().find(goes_here)?;
        Some(format!("security.audit_topic: dead letters of the work queue {:?} go to {name:?}", queue.name))
    }
}

impl Shard {
    /// Appends the events that wait, if none are in flight. Creates the topic first if it does not exist. On other
    /// shards than 0 it does nothing.
    pub(crate) fn append_audit_events(&mut self, io: &mut Io<'_, Mail>) {
        if !self.env.is_controller() || !self.audit.may_begin() {
            return;
        }
        let shared = Arc::clone(self.env.shared());
        let (Some(name), Some(security)) = (&shared.config.audit_topic, shared.security()) else { return };
        let waiting = security.host.published().audit_events();
        if self.audit.events.is_empty() && !waiting.has_any() {
            return;
        }
        self.env.refresh();
        let Some(topic) = self.env.catalogue().topic(name).cloned() else {
            return self.create_audit_topic(io);
        };
        if self.audit.events.is_empty() {
            self.audit.events = waiting.take(BATCH_BYTES);
        }
        let bytes_max = BATCH_BYTES.min(topic.config.partition.message_bytes_max);
        let records = self.audit.begin(bytes_max, io.clock.unix_ms);
        let id = topic.partition(0);
        let owner = self.env.owner_of(id);
        let owner = if topic.config.queue.is_some() { Err(ErrorCode::InvalidRequest) } else { owner };
        match owner {
            Ok(owner) => {
                let job = self.jobs.add(Job::Audit);
                let part = ProducePart { part: 0, id, records, transactional: None };
                self.send_partition_request(io, owner, job, PartitionRequest::Produce(vec![part]));
            }
            Err(code) => drop(self.audit.fail(name, &code.into())),
        }
    }

    /// Creates the audit topic, if it does not exist.
    pub(crate) fn create_audit_topic(&mut self, io: &mut Io<'_, Mail>) {
        let Some(name) = self.env.shared().config.audit_topic.clone() else { return };
        self.env.refresh();
        if !self.env.is_controller() || self.audit.is_creating || self.env.catalogue().topic(&name).is_some()
        {
            return;
        }
        self.audit.is_creating = true;
        let new = NewTopic { name, partitions: 1, config: [].into() };
        self.create_topic(io, new, AfterTopicChange::AuditTopic);
    }

    /// Continues when the audit topic exists, or could not be created. The turn ends with the next attempt.
    pub(crate) fn on_audit_topic_created(&mut self, outcome: Result<(), AppendError>) {
        self.audit.is_creating = false;
        let shared = Arc::clone(self.env.shared());
        match (outcome, &shared.config.audit_topic) {
            (Err(error), Some(name)) => drop(self.audit.fail(name, &error)),
            _ => self.audit.must_wait = false,
        }
    }

    /// Continues when a batch of events is durable, or has failed.
    pub(crate) fn on_audit_events_appended(&mut self, io: &mut Io<'_, Mail>, produced: &Produced) {
        let shared = Arc::clone(self.env.shared());
        let Some(name) = &shared.config.audit_topic else { return };
        match &produced.outcome {
            Ok(_) => self.audit.succeed(name),
            Err(error) => {
                let dropped = self.audit.fail(name, error);
                if let Some(security) = shared.security() {
                    security.host.published().audit_events().note_dropped(dropped);
                }
            }
        }
        // Events that have arrived meanwhile have woken nobody if others waited.
        io.request_turn();
    }

    /// Lets events be appended again that could not be, see [`AuditAppends`]. To be called now and then.
    pub(crate) fn retry_audit_events(&mut self, io: &mut Io<'_, Mail>) {
        self.audit.must_wait = false;
        self.append_audit_events(io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appends(events: &[&str]) -> AuditAppends {
        AuditAppends {
            events: events.iter().map(|event| (*event).into()).collect(),
            ..AuditAppends::default()
        }
    }

    #[test]
    fn events_that_failed_are_appended_again_before_later_ones() {
        let mut appends = appends(&["one", "two"]);
        let first = appends.begin(1000, 7);
        assert!(!appends.may_begin(), "one batch at a time");
        assert_eq!(appends.fail("audit", &ErrorCode::KafkaStorageError.into()), 0);
        assert!(!appends.may_begin(), "not at once");
        appends.must_wait = false;
        assert_eq!(appends.begin(1000, 7), first);
        appends.succeed("audit");
        assert!(appends.may_begin() && appends.events.is_empty());
    }

    #[test]
    fn a_batch_has_as_many_events_as_the_topic_accepts_but_one_at_least() {
        let long = "x".repeat(500);
        let mut appends = appends(&[&long, &long, &long]);
        for left in [2, 1, 0] {
            assert!(!appends.begin(100, 7).is_empty());
            appends.succeed("audit");
            assert_eq!(appends.events.len(), left);
        }
    }

    #[test]
    fn an_event_that_the_topic_never_accepts_does_not_hold_up_the_others() {
        let mut appends = appends(&["long", "short"]);
        appends.begin(1, 7);
        assert_eq!(appends.fail("audit", &ErrorCode::MessageTooLarge.into()), 1);
        assert!(appends.may_begin());
        assert_eq!(appends.events, ["short"]);
    }
}
