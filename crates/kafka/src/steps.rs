//! The place of a message that is decoded in steps, see `decoder.rs`.
//!
//! It is a stack of positions, one per array and struct that has begun and not ended. A value that must stop pushes its
//! position while the calls return, so the innermost comes first. To continue, each call takes its position back from
//! the top. As long as nothing stops, the stack is empty and costs nothing.

/// Bytes of an element that count as one more.
const BYTES_PER_ELEMENT: usize = 256;

/// Whether a value is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Complete,
    /// The step has ended before.
    Partial,
}

/// What is left of a step, and where the last one has stopped.
#[derive(Debug, Default)]
pub struct Steps {
    /// Positions of the values that have begun and not ended, the innermost first.
    places: Vec<usize>,
    /// Elements that this step may still decode.
    left: usize,
}

impl Steps {
    /// Begins a step of so many elements, one at least.
    pub(crate) fn begin(&mut self, elements: usize) {
        self.left = elements.max(1);
    }

    /// Where to continue a value, `None` if it begins.
    pub(crate) fn resume(&mut self) -> Option<usize> {
        self.places.pop()
    }

    /// Whether the last step has stopped inside of the value that was resumed last.
    pub(crate) fn is_inside(&self) -> bool {
        !self.places.is_empty()
    }

    /// Stops a value at this position.
    pub(crate) fn stop(&mut self, position: usize) -> Progress {
        self.places.push(position);
        Progress::Partial
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Counts an element of so many bytes, besides those of its own arrays.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(1 + bytes / BYTES_PER_ELEMENT);
    }
}
