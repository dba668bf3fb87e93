//! Topic aliases (3.3.2.3.4), one table per direction and connection.

use crate::reason::ReasonCode;

/// Aliases that the client has set: number → topic name.
#[derive(Debug, Default)]
pub struct InboundAliases {
    topics: Vec<Option<Box<str>>>,
}

impl InboundAliases {
    /// The topic that a PUBLISH names, by itself or by alias; sets the alias if it carries both.
    /// `maximum` is the Topic Alias Maximum that the server announced.
    ///
    /// # Errors
    /// Topic Alias Invalid if the alias is 0 or above `maximum` [MQTT-3.3.2-8, MQTT-3.3.2-9]; Protocol Error
    /// if neither a topic nor a known alias is given.
    pub fn resolve<'a>(
        &'a mut self,
        topic: &'a str,
        alias: Option<u16>,
        maximum: u16,
    ) -> Result<&'a str, ReasonCode> {
        let Some(alias) = alias else {
            return if topic.is_empty() { Err(ReasonCode::ProtocolError) } else { Ok(topic) };
        };
        if alias == 0 || alias > maximum {
            return Err(ReasonCode::TopicAliasInvalid);
        }
        let index = usize::from(alias) - 1;
        if topic.is_empty() {
            return self.topics.get(index).and_then(Option::as_deref).ok_or(ReasonCode::ProtocolError);
        }
        if self.topics.len() <= index {
            self.topics.resize(index + 1, None);
        }
        self.topics[index] = Some(topic.into());
        Ok(topic)
    }
}

/// Aliases that the server has set towards one client, first come, first served.
///
/// A client that asks for aliases has few topics or pays a full name for the others: nothing is ever
/// replaced, so no alias changes its meaning while packets are on their way.
#[derive(Debug)]
pub struct OutboundAliases {
    maximum: u16,
    topics: Vec<Box<str>>,
}

/// How to name a topic to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By its name alone.
    Name,
    /// By its name, and let this alias stand for it from now on.
    NameAndAlias(u16),
    /// By this alias alone.
    Alias(u16),
}

/// Aliases are looked up by a scan, so no more than this are used, whatever the client allows.
const OUTBOUND_MAX: u16 = 64;

impl OutboundAliases {
    /// A table for a client that announced Topic Alias Maximum `maximum`.
    pub fn new(maximum: u16) -> Self {
        Self { maximum: maximum.min(OUTBOUND_MAX), topics: Vec::new() }
    }

    /// How to name `topic` in the next PUBLISH.
    pub fn refer(&self, topic: &str) -> TopicRef {
        if let Some(index) = self.topics.iter().position(|known| **known == *topic) {
            return TopicRef::Alias(index as u16 + 1);
        }
        if self.topics.len() >= usize::from(self.maximum) {
            return TopicRef::Name;
        }
        TopicRef::NameAndAlias(self.topics.len() as u16 + 1)
    }

    /// A PUBLISH that introduces an alias for `topic`, as [`TopicRef::NameAndAlias`] asked, has been sent. Not
    /// to be called for one that was dropped: the client would never learn what the alias stands for.
    pub fn introduced(&mut self, topic: &str) {
        debug_assert!(self.topics.len() < usize::from(self.maximum));
        self.topics.push(topic.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbound_alias_stands_for_the_last_topic_it_came_with() {
        let mut aliases = InboundAliases::default();
        assert_eq!(aliases.resolve("", None, 4), Err(ReasonCode::ProtocolError));
        assert_eq!(aliases.resolve("", Some(2), 4), Err(ReasonCode::ProtocolError));
        assert_eq!(aliases.resolve("a", Some(0), 4), Err(ReasonCode::TopicAliasInvalid));
        assert_eq!(aliases.resolve("a", Some(5), 4), Err(ReasonCode::TopicAliasInvalid));
        assert_eq!(aliases.resolve("a", Some(4), 4), Ok("a"));
        assert_eq!(aliases.resolve("", Some(4), 4), Ok("a"));
        assert_eq!(aliases.resolve("b", Some(4), 4), Ok("b"));
        assert_eq!(aliases.resolve("", Some(4), 4), Ok("b"));
        assert_eq!(aliases.resolve("c", None, 4), Ok("c"));
    }

    #[test]
    fn an_outbound_alias_is_introduced_once_and_never_reassigned() {
        let mut aliases = OutboundAliases::new(2);
        assert_eq!(aliases.refer("a"), TopicRef::NameAndAlias(1));
        assert_eq!(aliases.refer("a"), TopicRef::NameAndAlias(1), "not sent, not introduced");
        aliases.introduced("a");
        assert_eq!(aliases.refer("a"), TopicRef::Alias(1));
        assert_eq!(aliases.refer("b"), TopicRef::NameAndAlias(2));
        aliases.introduced("b");
        assert_eq!(aliases.refer("c"), TopicRef::Name);
        assert_eq!(aliases.refer("a"), TopicRef::Alias(1));
    }
}
