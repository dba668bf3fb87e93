//! Long requests, which are decoded in steps: as data.
//!
//! What is decoded is a request of any API, so it has no type until its handler takes it. How frames are decoded is
//! told in `frame_decoding.rs`.

use std::any::Any;
use std::fmt::Debug;

use mainstem_kafka::{DecodeError, Decoder, Request};
use mainstem_runtime::MemoryCharge;

/// Size from which on a frame is decoded in steps, bytes. Shorter ones have at most some ten thousand elements.
pub(crate) const LONG_FRAME_BYTES: usize = 32 * 1024;
/// Elements of arrays that are decoded at once: about 0.1 ms.
const STEP_ELEMENTS: usize = 2_000;
/// Cost of that, units.
pub(crate) const STEP_UNITS: u32 = 1_200;

/// A request of any API that is decoded in steps.
pub(crate) trait LongRequest: Any + Debug + Send {
    /// Decodes a part of the body, which must be the same each time. Returns whether it was the last.
    ///
    /// # Errors
    /// The body is malformed.
    fn step(&mut self, body: &[u8]) -> Result<bool, DecodeError>;

    /// Elements that were decoded, except those of the last step.
    fn elements(&self) -> usize;

    /// Memory of what is decoded, besides the bytes of its strings.
    fn array_bytes(&self) -> usize;
}

/// A request of one API.
#[derive(Debug)]
struct Decoding<R> {
    decoder: Decoder<R>,
    /// Elements of all steps but the last one.
    elements: usize,
    decoded: Option<R>,
}

/// Begins to decode a request.
pub(crate) fn begin<R: Request + Send + 'static>(version: i16) -> Box<dyn LongRequest> {
    Box::new(Decoding { decoder: Decoder::<R>::new(version), elements: 0, decoded: None })
}

/// The decoded request, of the type with which it was begun; `None` if it is not complete.
pub(crate) fn take<R: Request + Send + 'static>(request: Box<dyn LongRequest>) -> Option<R> {
    let request: Box<dyn Any> = request;
    request.downcast::<Decoding<R>>().ok()?.decoded
}

impl<R: Request + Send + 'static> LongRequest for Decoding<R> {
    fn step(&mut self, body: &[u8]) -> Result<bool, DecodeError> {
        self.decoded = self.decoder.step(body, STEP_ELEMENTS)?;
        if self.decoded.is_none() {
            self.elements += STEP_ELEMENTS;
        }
        Ok(self.decoded.is_some())
    }

    fn elements(&self) -> usize {
        self.elements
    }

    fn array_bytes(&self) -> usize {
        self.decoder.array_bytes()
    }
}

/// A request that is decoded in part.
#[derive(Debug)]
pub(crate) struct PartlyDecoded {
    pub(crate) request: Box<dyn LongRequest>,
    /// Charges what is decoded to the memory budget.
    _memory: Option<MemoryCharge>,
}

impl PartlyDecoded {
    pub(crate) fn new(request: Box<dyn LongRequest>, memory: Option<MemoryCharge>) -> Self {
        Self { request, _memory: memory }
    }
}
