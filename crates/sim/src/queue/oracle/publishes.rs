//! Messages published by MQTT to a queue: publishers learn whether a message is stored, and not where.

use super::{Attempt, MessageId, Moment, Oracle, Outcome};
use crate::Violation;

impl Oracle {
    /// A message is published, perhaps again. With `is_copy`, it may be stored in addition to earlier attempts.
    pub(crate) fn publishing(&mut self, id: MessageId, is_copy: bool) -> Moment {
        let sent_at = self.tick();
        self.messages[id].attempts.push(Attempt { sent_at, outcome: Outcome::Unknown, is_copy });
        sent_at
    }

    /// The broker has acknowledged a message.
    pub(crate) fn acknowledged(&mut self, id: MessageId, sent_at: Moment) {
        let at = self.tick();
        self.acknowledged += 1;
        self.set_outcome(id, sent_at, Outcome::Taken { offset: None, at });
    }

    /// The broker has refused a message. After a disk fault, any refusal is allowed.
    pub(crate) fn refused(
        &mut self,
        id: MessageId,
        sent_at: Moment,
        is_troubled: bool,
    ) -> Result<(), Violation> {
        if is_troubled {
            return Ok(());
        }
        self.check_full(self.messages[id].queue)?;
        self.set_outcome(id, sent_at, Outcome::Refused);
        Ok(())
    }

    /// The broker has closed the connection of a publisher. Before MQTT 5, that is how it refuses a message.
    pub(crate) fn check_closed(&self, messages: &[MessageId], is_old: bool) -> Result<(), Violation> {
        let may_be_full = |id: &MessageId| self.check_full(self.messages[*id].queue).is_ok();
        if is_old && messages.iter().any(may_be_full) {
            return Ok(());
        }
        Err(Violation(format!(
            "the connection of a publisher is closed for nothing, with {messages:?} under way"
        )))
    }

    fn set_outcome(&mut self, id: MessageId, sent_at: Moment, outcome: Outcome) {
        let mut attempts = self.messages[id].attempts.iter_mut();
        if let Some(attempt) = attempts.find(|attempt| attempt.sent_at == sent_at) {
            attempt.outcome = outcome;
        }
    }
}
