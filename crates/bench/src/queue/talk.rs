//! What a protocol has to be able to do to take part.

use crate::error::BenchError;
use crate::wire::Stamp;

use super::dialogue::Dialogue;

/// Which end of the queue a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It puts messages in.
    Publisher,
    /// It takes messages out.
    Consumer,
}

/// What a server said.
#[derive(Debug)]
pub(super) enum Heard<'a> {
    /// It has the message that had this slot.
    Taken(u32),
    /// It does not take the message that had this slot, and why.
    Refused(u32, String),
    /// A message, which is acknowledged in the output already.
    Delivered(&'a [u8]),
    /// It has heard everything that was said before [`Talk::leave`].
    Left,
}

/// One connection, beyond its socket.
pub(super) trait Talk {
    /// Appends what makes the server deliver. Consumers say it once.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Appends a message of `stamp` and what follows of `filler`. No other message under way on this connection has
    /// the same `slot`; slots count from 0 to less than what may be in flight.
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>);

    /// Takes what the server said first in `bytes`, and appends the answer. How many bytes that was; 0 if the rest of
    /// it has not come.
    ///
    /// # Errors
    /// If it makes no sense, or ends the run.
    fn take(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        heard: impl FnMut(Heard<'_>),
    ) -> Result<usize, BenchError>;

    /// Appends what says goodbye. A server that closes the connection upon it has heard it, too.
    fn leave(&mut self, out: &mut Vec<u8>);
}

/// A server of work queues, and the queue that a run is about.
pub(super) trait Server {
    type Talk: Talk;

    /// Makes the queue, with nothing in it.
    ///
    /// # Errors
    /// If that is refused, or the server cannot be reached.
    fn declare(&mut self) -> Result<(), BenchError>;

    /// Opens a connection, number `number` of its role: it can be used.
    ///
    /// # Errors
    /// If that is refused, or the server cannot be reached.
    fn open(&self, role: Role, number: u32) -> Result<(Dialogue, Self::Talk), BenchError>;

    /// How many messages the queue has that nobody has acknowledged, if the server can be asked.
    ///
    /// # Errors
    /// If it does not answer.
    fn depth(&mut self) -> Result<Option<u64>, BenchError>;
}
