//! Traits that a queue protocol implements to be benchmarked.

use crate::error::BenchError;
use crate::wire::Stamp;

use super::blocking::BlockingConnection;

/// Role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Publisher,
    Consumer,
}

/// An event from the server.
#[derive(Debug)]
pub(super) enum ServerEvent<'a> {
    /// The server acknowledged the message in this slot.
    Acknowledged(u32),
    /// The server refused the message in this slot, with this reason.
    Refused(u32, String),
    /// Payload of a delivered message; its acknowledgement is already in the output.
    Delivered(&'a [u8]),
    /// The server has processed everything sent before [`Protocol::close`].
    Closed,
}

/// Protocol state of one connection.
pub(super) trait Protocol {
    /// Appends the request that starts deliveries. Called once per consumer.
    fn start_consuming(&mut self, out: &mut Vec<u8>);

    /// Appends a message whose payload is `stamp` followed by the rest of `filler`. `slot` is unique among the messages
    /// in flight on this connection, and less than the in-flight limit.
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>);

    /// Handles the first server message in `bytes`, and appends the response. Returns the length of the message, or 0
    /// if it is incomplete.
    ///
    /// # Errors
    /// If the message is malformed, or ends the run.
    fn handle_input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        on_event: impl FnMut(ServerEvent<'_>),
    ) -> Result<usize, BenchError>;

    /// Appends the request to close. If the server closes the connection, that counts as [`ServerEvent::Closed`] too.
    fn close(&mut self, out: &mut Vec<u8>);
}

/// A queue server, and the queue of a run.
pub(super) trait Server {
    type Protocol: Protocol;

    /// Creates the queue, empty.
    ///
    /// # Errors
    /// If the server refuses or cannot be reached.
    fn declare(&mut self) -> Result<(), BenchError>;

    /// Opens and authenticates the `number`th connection of a role.
    ///
    /// # Errors
    /// If the server refuses or cannot be reached.
    fn open(&self, role: Role, number: u32) -> Result<(BlockingConnection, Self::Protocol), BenchError>;

    /// Number of unacknowledged messages in the queue; `None` if the server cannot be queried.
    ///
    /// # Errors
    /// If the server does not respond.
    fn depth(&mut self) -> Result<Option<u64>, BenchError>;
}
