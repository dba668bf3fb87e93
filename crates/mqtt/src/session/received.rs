//! The receiver's half of QoS 2: identifiers that were received and not yet released (4.3.3, method A).

/// Identifiers up to this count stand in a list; a client with more in flight gets a bit map.
const LIST_MAX: usize = 32;
const WORDS: usize = 65_536 / 64;

/// Packet identifiers of QoS 2 publishes received but not released, of one session.
///
/// Unused it owns no memory; it never owns more than 8 KiB.
#[derive(Debug, Default)]
pub struct Received {
    held: Held,
    len: u32,
}

#[derive(Debug)]
enum Held {
    List(Vec<u16>),
    Bits(Box<[u64; WORDS]>),
}

impl Default for Held {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Why a QoS 2 publish is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedError {
    /// More are in flight than Receive Maximum allows [MQTT-3.3.4-7].
    Exceeded,
}

impl Received {
    /// Number of identifiers held.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes a QoS 2 PUBLISH. True if it is new and to be published onward, false if it was received before
    /// and only wants its PUBREC again.
    ///
    /// # Errors
    /// [`ReceivedError::Exceeded`] if it would be more than `maximum` at once.
    pub fn publish(&mut self, packet_id: u16, maximum: u16) -> Result<bool, ReceivedError> {
        debug_assert_ne!(packet_id, 0);
        if self.contains(packet_id) {
            return Ok(false);
        }
        if self.len >= u32::from(maximum) {
            return Err(ReceivedError::Exceeded);
        }
        if let Held::List(list) = &mut self.held
            && list.len() == LIST_MAX
        {
            let mut bits = Box::new([0; WORDS]);
            for id in list.drain(..) {
                bits[usize::from(id) / 64] |= 1 << (id % 64);
            }
            self.held = Held::Bits(bits);
        }
        match &mut self.held {
            Held::List(list) => list.push(packet_id),
            Held::Bits(bits) => bits[usize::from(packet_id) / 64] |= 1 << (packet_id % 64),
        }
        self.len += 1;
        Ok(true)
    }

    /// Notes a PUBREL. False if the identifier was not held [MQTT-4.3.3-11].
    pub fn release(&mut self, packet_id: u16) -> bool {
        if !self.contains(packet_id) {
            return false;
        }
        self.len -= 1;
        match &mut self.held {
            Held::List(list) => list.retain(|id| *id != packet_id),
            Held::Bits(bits) => bits[usize::from(packet_id) / 64] &= !(1 << (packet_id % 64)),
        }
        if self.len == 0 && matches!(self.held, Held::Bits(_)) {
            self.held = Held::default();
        }
        true
    }

    /// The identifiers held, in no order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        let (list, bits): (&[u16], &[u64]) = match &self.held {
            Held::List(list) => (list, &[]),
            Held::Bits(bits) => (&[], &**bits),
        };
        let is_set =
            |id: &u16| bits.get(usize::from(*id) / 64).is_some_and(|word| word & (1 << (id % 64)) != 0);
        let highest = if bits.is_empty() { 0 } else { u16::MAX };
        list.iter().copied().chain((1..=highest).filter(is_set).collect::<Vec<_>>())
    }

    fn contains(&self, packet_id: u16) -> bool {
        match &self.held {
            Held::List(list) => list.contains(&packet_id),
            Held::Bits(bits) => bits[usize::from(packet_id) / 64] & (1 << (packet_id % 64)) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain set: what is new is new once, until it is released.
        #[test]
        fn it_is_a_set_with_a_maximum(steps in prop::collection::vec((any::<bool>(), 1_u16..120), 0..600)) {
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
