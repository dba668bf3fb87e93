//! Declarations of other protocols, such as bindings.
//!
//! Other protocols have configuration that must survive a restart and reach every shard. The catalogue already does
//! both for topics, so it stores declarations too: named texts that it does not interpret.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_queue_core::{QueueError, Reply};
use mainstem_queue_server::ReplyTo;
use mainstem_runtime::Io;

use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::shared::Shared;

/// Most declarations in the catalogue.
const DECLARED_MAX: usize = 10_000;

impl Shared {
    /// All declarations, by name.
    pub fn declared(&self) -> BTreeMap<Arc<str>, Arc<str>> {
        (*self.snapshot().declared).clone()
    }
}

impl Shard {
    /// Stores a declaration on shard 0, or removes it if there is no text.
    pub(crate) fn declare(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        to: ReplyTo,
    ) {
        if text.is_some() && self.env.catalogue().declared.len() >= DECLARED_MAX {
            return self.reply_to_requester(io, to, Reply::Refused(QueueError::TooMany));
        }
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.store_declaration(first, io.clock.unix_ms, (name, text), to);
        }
    }
}
