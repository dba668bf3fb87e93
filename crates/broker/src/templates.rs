//! Templates: a message encoded once for each variant of receiver, and patched for each receiver.

use std::sync::Arc;

use mainstem_mqtt::alias::{OutboundAliases, TopicRef};
use mainstem_mqtt::{Publish, PublishTemplate, QoS, SubscriptionIds, Version};

use crate::message::Message;

/// How the topic stands in a variant, as a part of its number.
fn part(naming: TopicRef) -> usize {
    match naming {
        TopicRef::Name => NAME,
        TopicRef::NameAndAlias(_) => NAME_AND_ALIAS,
        TopicRef::Alias(_) => ALIAS,
    }
}

const NAME: usize = 0;
const NAME_AND_ALIAS: usize = 1;
const ALIAS: usize = 2;
/// Version 5 or not, QoS above 0 or not, four ways (three used) to name the topic.
const VARIANTS: usize = 16;

/// The variants of the message being delivered, each encoded when the first receiver needs it.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    of: Option<Arc<Message>>,
    at_ms: u64,
    variants: [PublishTemplate; VARIANTS],
    /// One bit per variant that has been encoded for this message.
    encoded: u16,
    /// The variant for the last combination of subscription identifiers.
    with_ids: PublishTemplate,
    /// Which one that is; no variant if none.
    with_ids_of: Option<usize>,
    ids: Vec<u32>,
}

impl Templates {
    /// What follows is about `message`.
    #[inline]
    pub(crate) fn begin(&mut self, message: &Arc<Message>, now_ms: u64) {
        if let Some(of) = &self.of
            && Arc::ptr_eq(of, message)
            && (message.expires_at_ms.is_none() || now_ms == self.at_ms)
        {
            return;
        }
        self.of = Some(Arc::clone(message));
        self.at_ms = now_ms;
        self.encoded = 0;
        self.with_ids_of = None;
    }

    /// Lets go of the message, so that its memory can be used again.
    pub(crate) fn end(&mut self) {
        self.of = None;
    }

    /// The template for one receiver, and how it names the topic.
    #[inline]
    pub(crate) fn get(
        &mut self,
        version: Version,
        acknowledged: bool,
        message: &Message,
        ids: &[u32],
        aliases: Option<&OutboundAliases>,
    ) -> (&PublishTemplate, TopicRef) {
        let five = version == Version::V5;
        let naming = aliases.map_or(TopicRef::Name, |aliases| aliases.refer(message.topic()));
        let variant = usize::from(five) | usize::from(acknowledged) << 1 | part(naming) << 2;
        if five && !ids.is_empty() {
            if self.with_ids_of != Some(variant) || self.ids != ids {
                encode(variant, message, ids, self.at_ms, &mut self.with_ids);
                self.with_ids_of = Some(variant);
                self.ids.clear();
                self.ids.extend_from_slice(ids);
            }
            return (&self.with_ids, naming);
        }
        let template = &mut self.variants[variant];
        if self.encoded & (1 << variant) == 0 {
            encode(variant, message, &[], self.at_ms, template);
            self.encoded |= 1 << variant;
        }
        (template, naming)
    }
}

#[cold]
fn encode(variant: usize, message: &Message, ids: &[u32], now_ms: u64, template: &mut PublishTemplate) {
    let acknowledged = variant & 2 != 0;
    let naming = variant >> 2;
    let publish = Publish {
        qos: if acknowledged { QoS::AtLeastOnce } else { QoS::AtMostOnce },
        topic: if naming == ALIAS { "" } else { message.topic() },
        packet_id: u16::from(acknowledged),
        topic_alias: (naming != NAME).then_some(1),
        subscription_ids: SubscriptionIds::List(ids),
        properties: message.properties(now_ms),
        payload: message.payload(),
        ..Publish::default()
    };
    let version = if variant & 1 != 0 { Version::V5 } else { Version::V4 };
    let encoded = if message.shared_payload().is_some() {
        PublishTemplate::encode_head(version, &publish, template)
    } else {
        PublishTemplate::encode(version, &publish, template)
    };
    // What was decoded can be encoded, but for a packet at the protocol's limit that grows by an identifier.
    if let Err(error) = encoded {
        log::error!("a message on {:?} cannot be encoded: {error}", message.topic());
        *template = PublishTemplate::unsendable();
    }
}
