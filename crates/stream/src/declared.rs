//! What other doors have declared, such as bindings: texts by name, kept beside the topics for them, and not read here.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_queue::{Refusal, Reply};
use mainstem_runtime::Io;

use crate::mail::Mail;
use crate::queues::ReplyTo;
use crate::shard::Shard;
use crate::shared::Shared;

/// Texts by name.
pub(crate) type Declared = BTreeMap<Arc<str>, Arc<str>>;

/// Most declarations.
const DECLARED_MAX: usize = 10_000;

impl Shared {
    /// What has been declared, by name.
    pub fn declared(&self) -> BTreeMap<Arc<str>, Arc<str>> {
        self.snapshot().declared.clone()
    }
}

impl Shard {
    /// Keeps a declaration, or takes it back, on shard 0.
    pub(crate) fn declare(
        &mut self,
        io: &mut Io<'_, Mail>,
        name: Arc<str>,
        text: Option<Arc<str>>,
        to: ReplyTo,
    ) {
        if text.is_some() && self.catalogue.declared.len() >= DECLARED_MAX {
            return self.answer_queue(io, to, Reply::Refused(Refusal::TooMany));
        }
        self.keep_declaration(io, name, text, move |shard, io, outcome| {
            let reply = outcome.map_or(Reply::Refused(Refusal::Storage), |()| Reply::Done);
            shard.answer_queue(io, to, reply);
        });
    }
}
