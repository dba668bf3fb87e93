//! Changes of topics in the audit log.

use mainstem_security::ChangedSettings;

use crate::catalogue::Catalogue;
use crate::shard_message::RequestContext;

/// A topic's settings and number of partitions; `None` if there is no such topic.
pub(crate) fn audited_topic(catalogue: &Catalogue, name: &str) -> Option<ChangedSettings> {
    let topic = catalogue.topic(name)?;
    let mut settings = topic.config.set.clone();
    settings.insert("partitions".into(), topic.partitions().to_string());
    Some(settings)
}

/// Notes a change of a topic; nothing if it is as before.
pub(crate) fn note_topic_change(
    catalogue: &Catalogue,
    call: &RequestContext,
    change: &'static str,
    name: &str,
    before: Option<ChangedSettings>,
) {
    let after = audited_topic(catalogue, name);
    if before != after {
        call.note_change(change, name, before, after);
    }
}
