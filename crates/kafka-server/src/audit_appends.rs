//! Events of the audit log that shard 0 appends to a topic: which are in flight, and which must be appended again.
//!
//! Events stay here until they are durable, and none is appended before an earlier one is. `audit_topic.rs` does the
//! appends.

use mainstem_kafka::ErrorCode;
use mainstem_log::BatchBuilder;

use crate::append_error::AppendError;
use crate::partition_message::RECORD_OVERHEAD_BYTES;

/// The events that shard 0 has taken and that are not durable yet.
#[derive(Debug, Default)]
pub(crate) struct AuditAppends {
    /// In order. The first `in_flight` are being appended.
    pub(crate) events: Vec<String>,
    in_flight: usize,
    pub(crate) is_creating: bool,
    /// The last attempt failed: wait for the next retry.
    pub(crate) must_wait: bool,
    /// A failure has been logged.
    is_failing: bool,
}

impl AuditAppends {
    pub(crate) fn may_begin(&self) -> bool {
        self.in_flight == 0 && !self.is_creating && !self.must_wait
    }

    /// Makes a batch of the first events, as many as fit; at least one.
    pub(crate) fn begin(&mut self, bytes_max: usize, now_ms: u64) -> Vec<u8> {
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
    pub(crate) fn succeed(&mut self, topic: &str) {
        self.events.drain(..std::mem::take(&mut self.in_flight));
        if std::mem::take(&mut self.is_failing) {
            log::info!("audit topic {topic}: events are appended again");
        }
    }

    /// The batch in flight has failed. Returns how many of its events are given up, because the topic accepts none of
    /// their size.
    pub(crate) fn fail(&mut self, topic: &str, error: &AppendError) -> u64 {
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
