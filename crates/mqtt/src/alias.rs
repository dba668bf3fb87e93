//! Topic aliases (3.3.2.3.4), with one table per direction and connection.
//!
//! The client may reassign an inbound alias at any time. Outbound aliases are assigned once, in order of first use, and
//! never reassigned, so an alias cannot change its meaning while packets are in flight.

use crate::reason::ReasonCode;

/// Aliases set by the client: alias number to topic name.
#[derive(Debug, Default)]
pub struct InboundAliases {
    topics: Vec<Option<Box<str>>>,
}

impl InboundAliases {
    /// Returns the topic of a PUBLISH, given by name or by alias. If the packet has both, sets the alias.
    ///
    /// `maximum` is the Topic Alias Maximum that the server announced.
    ///
    /// # Errors
    /// Topic Alias Invalid if the alias is 0 or above `maximum` [MQTT-3.3.2-8, MQTT-3.3.2-9]; Protocol Error if the
    /// packet has neither a topic nor an alias that is set.
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

/// Aliases set by the server for one client, assigned in order of first use.
///
/// Aliases are never reassigned. Once all are in use, further topics are sent by name.
#[derive(Debug)]
pub struct OutboundAliases {
    maximum: u16,
    topics: Vec<Box<str>>,
}

/// How to refer to a topic in an outgoing PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// Topic name only.
    Name,
    /// Topic name together with a new alias, which the client then remembers.
    NameAndAlias(u16),
    /// Alias only.
    Alias(u16),
}

/// Maximum number of outbound aliases. Lookup is a linear scan, so more would be slow even if the client allows them.
const OUTBOUND_MAX: u16 = 64;

impl OutboundAliases {
    /// Creates a table for a client that announced Topic Alias Maximum `maximum`.
    pub fn new(maximum: u16) -> Self {
        Self { maximum: maximum.min(OUTBOUND_MAX), topics: Vec::new() }
    }

    /// Returns how to refer to `topic` in the next PUBLISH. A new alias takes effect with
    /// [`introduced`](Self::introduced).
    pub fn refer(&self, topic: &str) -> TopicRef {
        if let Some(index) = self.topics.iter().position(|aliased| **aliased == *topic) {
            return TopicRef::Alias(index as u16 + 1);
        }
        if self.topics.len() >= usize::from(self.maximum) {
            return TopicRef::Name;
        }
        TopicRef::NameAndAlias(self.topics.len() as u16 + 1)
    }

    /// Records that a PUBLISH with a new alias for `topic` ([`TopicRef::NameAndAlias`]) was sent.
    ///
    /// Do not call this for a packet that was dropped: the client would not know the alias.
    pub fn introduced(&mut self, topic: &str) {
        debug_assert!(self.topics.len() < usize::from(self.maximum));
        self.topics.push(topic.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_alias_refers_to_its_latest_topic() {
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
    fn outbound_alias_is_introduced_once_and_never_reassigned() {
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
