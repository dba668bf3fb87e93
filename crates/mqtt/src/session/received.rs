//! The receiver side of QoS 2: packet identifiers received and not yet released (4.3.3, method A).
//!
//! A message is published onward with its PUBLISH; until PUBREL, a repeated PUBLISH with the same identifier is
//! acknowledged but not published again. Most clients have few identifiers in flight, so they are kept in a list, which
//! becomes a bitmap for the rare client with many.

/// Maximum number of identifiers in the list. A client with more in flight gets a bitmap.
const LIST_MAX: usize = 32;
const WORDS: usize = 65_536 / 64;

/// Packet identifiers of QoS 2 publishes received but not released, of one session.
///
/// Owns no memory while unused, and at most 8 KiB.
#[derive(Debug, Default)]
pub struct Received {
    ids: IdSet,
    len: u32,
}

#[derive(Debug)]
enum IdSet {
    List(Vec<u16>),
    Bits(Box<[u64; WORDS]>),
}

impl Default for IdSet {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Why a QoS 2 publish is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedError {
    /// More messages are in flight than Receive Maximum allows [MQTT-3.3.4-7].
    Exceeded,
}

impl Received {
    /// Returns the number of unreleased identifiers.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no unreleased identifiers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Records a QoS 2 PUBLISH. Returns true if it is new and must be published onward, and false if it is a repetition
    /// that only needs another PUBREC.
    ///
    /// # Errors
    /// [`ReceivedError::Exceeded`] if `maximum` identifiers are already in flight.
    pub fn publish(&mut self, packet_id: u16, maximum: u16) -> Result<bool, ReceivedError> {
        debug_assert_ne!(packet_id, 0);
        if self.contains(packet_id) {
            return Ok(false);
        }
        if self.len >= u32::from(maximum) {
            return Err(ReceivedError::Exceeded);
        }
        if let IdSet::List(list) = &mut self.ids
            && list.len() == LIST_MAX
        {
            let mut bits = Box::new([0; WORDS]);
            for id in list.drain(..) {
                bits[usize::from(id) / 64] |= 1 << (id % 64);
            }
            self.ids = IdSet::Bits(bits);
        }
        match &mut self.ids {
            IdSet::List(list) => list.push(packet_id),
            IdSet::Bits(bits) => bits[usize::from(packet_id) / 64] |= 1 << (packet_id % 64),
        }
        self.len += 1;
        Ok(true)
    }

    /// Records a PUBREL. Returns false if the identifier is unknown [MQTT-4.3.3-11].
    pub fn release(&mut self, packet_id: u16) -> bool {
        if !self.contains(packet_id) {
            return false;
        }
        self.len -= 1;
        match &mut self.ids {
            IdSet::List(list) => list.retain(|id| *id != packet_id),
            IdSet::Bits(bits) => bits[usize::from(packet_id) / 64] &= !(1 << (packet_id % 64)),
        }
        if self.len == 0 && matches!(self.ids, IdSet::Bits(_)) {
            self.ids = IdSet::default();
        }
        true
    }

    /// Returns the unreleased identifiers, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let (list, bits): (&[u16], &[u64]) = match &self.ids {
            IdSet::List(list) => (list, &[]),
            IdSet::Bits(bits) => (&[], &**bits),
        };
        let is_set =
            |id: &u16| bits.get(usize::from(*id) / 64).is_some_and(|word| word & (1 << (id % 64)) != 0);
        let highest = if bits.is_empty() { 0 } else { u16::MAX };
        list.iter().copied().chain((1..=highest).filter(is_set).collect::<Vec<_>>())
    }

    fn contains(&self, packet_id: u16) -> bool {
        match &self.ids {
            IdSet::List(list) => list.contains(&packet_id),
            IdSet::Bits(bits) => bits[usize::from(packet_id) / 64] & (1 << (packet_id % 64)) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compared with a plain set.
        #[test]
        fn behaves_as_a_bounded_set(steps in prop::collection::vec((any::<bool>(), 1_u16..120), 0..600)) {
            let mut received = Received::default();
            let mut model = HashSet::new();
            for (publish, id) in steps {
                if publish {
                    let expected = if model.contains(&id) {
                        Ok(false)
                    } else if model.len() >= 60 {
                        Err(ReceivedError::Exceeded)
                    } else {
                        model.insert(id);
                        Ok(true)
                    };
                    prop_assert_eq!(received.publish(id, 60), expected);
                } else {
                    prop_assert_eq!(received.release(id), model.remove(&id));
                }
                prop_assert_eq!(received.len(), model.len());
            }
        }
    }
}
