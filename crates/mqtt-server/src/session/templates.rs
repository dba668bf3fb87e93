//! Encoded PUBLISH packets of the current message, one for each variant of receiver.
//!
//! A fan-out encodes each variant when the first receiver needs it. Other receivers get a copy in which the packet
//! identifier, the flags and the topic alias are patched.

use std::sync::Arc;

use mainstem_mqtt::alias::{OutboundAliases, TopicRef};
use mainstem_mqtt::{Publish, PublishTemplate, QoS, SubscriptionIds, UserProperties, Version};

use crate::message::Message;

/// How a variant names the topic, as part of its number.
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

/// The variants of the current message.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    of: Option<Arc<Message>>,
    at_ms: u64,
    variants: [PublishTemplate; VARIANTS],
    /// One bit per variant that has been encoded for this message.
    encoded: u16,
    /// The template for the last list of subscription identifiers.
    with_ids: PublishTemplate,
    /// Its variant, if there is one.
    with_ids_of: Option<usize>,
    ids: Vec<u32>,
}

impl Templates {
    /// Begins another message, if it is another.
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

    /// Drops the reference to the message, so that its memory can be used again.
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
    // Shared properties are sent from where they are.
    let mut properties = message.properties(now_ms);
    let omitted = match message.shared_user_properties() {
        Some(user) if variant & 1 != 0 => {
            properties.user_properties = UserProperties::default();
            user.len()
        }
        _ => 0,
    };
    let publish = Publish {
        qos: if acknowledged { QoS::AtLeastOnce } else { QoS::AtMostOnce },
        topic: if naming == ALIAS { "" } else { message.topic() },
        packet_id: u16::from(acknowledged),
        topic_alias: (naming != NAME).then_some(1),
        subscription_ids: SubscriptionIds::List(ids),
        properties,
        payload: message.payload(),
        ..Publish::default()
    };
    let version = if variant & 1 != 0 { Version::V5 } else { Version::V4 };
    let encoded = if omitted > 0 || message.shared_payload().is_some() {
        PublishTemplate::encode_head(version, &publish, omitted, template)
    } else {
        PublishTemplate::encode(version, &publish, template)
    };
    // What was decoded can be encoded, unless a packet at the size limit of the protocol grows by an identifier.
    if let Err(error) = encoded {
        log::error!("a message on {:?} cannot be encoded: {error}", message.topic());
        *template = PublishTemplate::unsendable();
    }
}
