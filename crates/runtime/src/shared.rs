//! Bytes that several outputs send without a copy, counted once in the memory budget.

use std::ops::Deref;
use std::sync::Arc;

use crate::memory::{MemoryCharge, MemoryMeter};

/// Immutable bytes with any number of owners. They count as long as one of them exists.
#[derive(Clone, Debug)]
pub struct SharedBytes(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    bytes: Box<[u8]>,
    _charge: MemoryCharge,
}

impl SharedBytes {
    /// Copies `bytes`, and charges them to `meter`.
    pub fn copy(bytes: &[u8], meter: &MemoryMeter) -> Self {
        Self::new(bytes.into(), meter)
    }

    /// Takes over `bytes`, and charges them to `meter`.
    pub fn new(bytes: Box<[u8]>, meter: &MemoryMeter) -> Self {
        let charge = meter.charge(bytes.len());
        Self(Arc::new(Counted { bytes, _charge: charge }))
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// Bytes that are not counted.
impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self::copy(bytes, &MemoryMeter::default())
    }
}

/// Bytes that are not counted.
impl FromIterator<u8> for SharedBytes {
    fn from_iter<T: IntoIterator<Item = u8>>(bytes: T) -> Self {
        Self::new(bytes.into_iter().collect(), &MemoryMeter::default())
    }
}
