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
use mainstem_runtime::Io;

use crate::append_error::{AppendError, Produced};
use crate::catalogue::Topic;
use crate::dead_letters::destination_of;
use crate::environment::Environment;
use crate::jobs::Job;
use crate::partition_message::{PartitionRequest, ProducePart};
use crate::pending::AfterTopicChange;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::shared::Shared;
use crate::topic_change::NewTopic;

/// Most bytes of the events of a batch, unless a single one is longer.
const BATCH_BYTES: usize = 256 * 1024;

impl Environment {
    /// Whether this is the audit topic, to which only the broker itself may write.
    #[inline]
    pub(crate) fn is_audit_topic(&self, name: &str) -> bool {
        self.shared().config.audit_topic.as_deref() == Some(name)
    }
}

impl Shared {
    /// Why the topic of the configuration cannot be the audit topic; `None` if it can. Call it when shard 0 is
    /// restored.
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
        let is_configured = self.env.shared().config.audit_topic.is_some();
        if !is_configured || !self.env.is_controller() || !self.audit.may_begin() {
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

    /// Lets events be appended again that could not be, see `audit_appends.rs`. To be called now and then.
    pub(crate) fn retry_audit_events(&mut self, io: &mut Io<'_, Mail>) {
        self.audit.must_wait = false;
        self.append_audit_events(io);
    }
}
