//! What is published by MQTT and goes to a queue: those who publish hear that it is there, or that it is not, but not where.

use super::{Attempt, Ledger, MessageId, Moment, Outcome};
use crate::ledger::Violation;

impl Ledger {
    /// A message is published, or once more: then it may come to the queue beside what came before, or `is_copy` is
    /// false.
    pub(crate) fn publishing(&mut self, id: MessageId, is_copy: bool) -> Moment {
        let asked = self.tick();
        self.messages[id].attempts.push(Attempt { asked, outcome: Outcome::Unknown, is_copy });
        asked
    }

    /// Its publisher hears that it is kept.
    pub(crate) fn acknowledged(&mut self, id: MessageId, asked: Moment) {
        let at = self.tick();
        self.acknowledged += 1;
        self.came_of(id, asked, Outcome::Taken { offset: None, at });
    }

    /// Its publisher hears that it is not. While nothing can be kept, that says nothing.
    pub(crate) fn turned_away(
        &mut self,
        id: MessageId,
        asked: Moment,
        is_troubled: bool,
    ) -> Result<(), Violation> {
        if is_troubled {
            return Ok(());
        }
        self.check_full(self.messages[id].queue)?;
        self.came_of(id, asked, Outcome::Refused);
        Ok(())
    }

    /// The connection of a publisher of these messages is closed, which before MQTT 5 says that one of them is refused.
    pub(crate) fn check_closed(&self, messages: &[MessageId], is_old: bool) -> Result<(), Violation> {
        let may_be_full = |id: &MessageId| self.check_full(self.messages[*id].queue).is_ok();
        if is_old && messages.iter().any(may_be_full) {
            return Ok(());
        }
        Err(Violation(format!(
            "the connection of a publisher is closed for nothing, with {messages:?} under way"
        )))
    }

    fn came_of(&mut self, id: MessageId, asked: Moment, outcome: Outcome) {
        let mut attempts = self.messages[id].attempts.iter_mut();
        if let Some(attempt) = attempts.find(|attempt| attempt.asked == asked) {
            attempt.outcome = outcome;
        }
    }
}
