//! Appends that are to be synced to a log whose topic does not ask for that: of messages that leave a queue which promises
//! more than the one they go to. Where they come from they are forgotten as soon as they are said to be here.

use mainstem_log::{Completion, Durability, Error, Options, Store, Ticket};

use super::{Partition, log_name};

/// Until when everything that comes to a log is synced.
#[derive(Debug, Default)]
pub(super) enum Synced {
    /// As the topic asks for it.
    #[default]
    AsAsked,
    /// Until something has been appended, and that is synced.
    Next,
    /// Until this is.
    To(Ticket),
}

impl Synced {
    pub(super) fn appended(&mut self, ticket: Ticket) {
        if let Self::Next = self {
            *self = Self::To(ticket);
        }
    }
}

impl Partition {
    /// Has what is appended next synced, and all before it, whatever the topic asks for. Only then it counts as durable.
    ///
    /// # Errors
    /// What the store says. Nothing is to be appended that has to be synced.
    pub(crate) fn sync_next(&mut self, store: &mut dyn Store) -> Result<(), Error> {
        if self.topic.config.options.durability == Durability::Fsync {
            return Ok(());
        }
        if let Synced::AsAsked = self.synced {
            store.open(&log_name(self.id), &self.synced_options())?;
        }
        self.synced = Synced::Next;
        Ok(())
    }

    fn synced_options(&self) -> Options {
        Options { durability: Durability::Fsync, ..self.topic.config.options.clone() }
    }

    /// How its log is kept at the moment.
    pub(super) fn options(&self) -> Options {
        match self.synced {
            Synced::AsAsked => self.topic.config.options.clone(),
            Synced::Next | Synced::To(_) => self.synced_options(),
        }
    }

    /// What was to be synced has come to its end, if the completion says so: what comes now is as durable as it was.
    pub(crate) fn stop_syncing(&mut self, store: &mut dyn Store, completion: &Completion) {
        if !matches!(self.synced, Synced::To(ticket) if ticket <= completion.ticket) {
            return;
        }
        match store.open(&log_name(self.id), &self.topic.config.options) {
            Ok(_) => self.synced = Synced::AsAsked,
            Err(error) => {
                log::warn!("partition {}-{} is still synced: {error}", self.topic.name, self.id.index);
            }
        }
    }
}
