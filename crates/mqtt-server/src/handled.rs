//! The result of handling a packet: how its connection continues, or why it ends.

use mainstem_mqtt::{DecodeError, ReasonCode};

/// Result of handling a packet.
pub(crate) type Handled = Result<Next, ProtocolError>;

/// How a connection continues after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With the next packet.
    Packet,
    /// With this packet again, in a later turn.
    Hold,
    /// With this packet again, not before this many milliseconds have passed.
    Pause(u32),
    /// Not at all: the connection has ended or was handed to another shard.
    Gone,
}

impl Next {
    /// How long the connection is held at least, ms.
    pub(crate) fn pause_ms(self) -> u32 {
        if let Self::Pause(pause_ms) = self { pause_ms } else { 0 }
    }
}

/// Why a connection ends.
#[derive(Clone, Debug)]
pub(crate) struct ProtocolError {
    pub(crate) reason: ReasonCode,
    pub(crate) what: &'static str,
}

impl ProtocolError {
    pub(crate) fn new(reason: ReasonCode, what: &'static str) -> Self {
        Self { reason, what }
    }
}

impl From<DecodeError> for ProtocolError {
    fn from(error: DecodeError) -> Self {
        Self { reason: error.reason, what: error.what }
    }
}
