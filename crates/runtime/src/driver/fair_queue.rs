//! Connections that wait for their turn: client addresses take turns, and the connections of an address among
//! themselves. A client thus gains nothing by opening more connections, as far as others are concerned.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// A queue in which the entries of an address wait behind each other, and the addresses take turns.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// Addresses with entries. `None` stands for all peers without an address.
    addresses: VecDeque<Option<IpAddr>>,
    entries: HashMap<Option<IpAddr>, VecDeque<T>>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { addresses: VecDeque::new(), entries: HashMap::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of addresses with entries.
    pub(super) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Number of entries of an address.
    pub(super) fn len_of(&self, address: Option<IpAddr>) -> usize {
        self.entries.get(&address).map_or(0, VecDeque::len)
    }

    pub(super) fn push(&mut self, address: Option<IpAddr>, entry: T) {
        let entries = self.entries.entry(address).or_default();
        if entries.is_empty() {
            self.addresses.push_back(address);
        }
        entries.push_back(entry);
        self.len += 1;
    }

    /// Takes the entry that has waited longest, of the address whose turn it is. Also returns the number of entries of
    /// that address, this one included.
    pub(super) fn pop(&mut self) -> Option<(T, usize)> {
        let address = self.addresses.pop_front()?;
        let entries = self.entries.get_mut(&address)?;
        let count = entries.len();
        let entry = entries.pop_front()?;
        self.len -= 1;
        if entries.is_empty() {
            self.entries.remove(&address);
        } else {
            self.addresses.push_back(address);
        }
        Some((entry, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop().map(|(entry, _)| entry)).collect()
    }

    #[test]
    fn addresses_take_turns_and_each_keeps_its_order() {
        let [a, b, c] = [1, 2, 3].map(|last| Some(IpAddr::from([192, 0, 2, last])));
        let mut queue = FairQueue::default();
        for entry in 10..15 {
            queue.push(a, entry);
        }
        queue.push(b, 20);
        queue.push(b, 21);
        queue.push(None, 30);
        assert_eq!((queue.len(), queue.addresses()), (8, 3));
        assert_eq!((queue.len_of(a), queue.len_of(b), queue.len_of(c)), (5, 2, 0));
        assert_eq!(queue.pop(), Some((10, 5)));
        assert_eq!(queue.pop(), Some((20, 2)));
        // Whoever comes in the middle waits for one entry of each address at most.
        queue.push(c, 40);
        assert_eq!(drain(&mut queue), [30, 11, 21, 40, 12, 13, 14]);
        assert!(queue.is_empty() && queue.addresses() == 0 && queue.entries.is_empty());
    }
}
