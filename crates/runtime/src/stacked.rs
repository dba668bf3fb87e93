//! Two layers on one connection, such as WebSocket above TLS.
//!
//! The lower layer may take only a part of what the upper one sends, while its handshake runs or its buffer is full.
//! What it has not taken is kept in between, and nothing new is accepted before it is gone, so that the order holds and
//! the memory is bounded by one output.

use std::io;

use crate::layer::{StreamState, TransportLayer};

/// A layer above another one. What the upper one sends is encoded by the lower one.
pub(crate) struct StackedLayer {
    lower: Box<dyn TransportLayer>,
    upper: Box<dyn TransportLayer>,
    /// Sent by the upper layer and not yet encoded by the lower one.
    between: Vec<u8>,
}

impl StackedLayer {
    pub(crate) fn new(lower: Box<dyn TransportLayer>, upper: Box<dyn TransportLayer>) -> Self {
        Self { lower, upper, between: Vec::new() }
    }

    /// Lets the lower layer encode what the upper one has sent, as far as it does.
    fn encode(&mut self, to_send: &mut Vec<u8>) {
        let mut sent = 0;
        while sent < self.between.len() {
            match self.lower.send(&self.between[sent..], to_send) {
                0 => break,
                count => sent += count,
            }
        }
        if sent == self.between.len() {
            // An idle connection keeps no buffer.
            self.between = Vec::new();
        } else {
            self.between.drain(..sent);
        }
    }
}

impl TransportLayer for StackedLayer {
    fn receive(
        &mut self,
        received: &[u8],
        input: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> io::Result<StreamState> {
        let mut decoded = Vec::new();
        let lower = self.lower.receive(received, &mut decoded, to_send);
        let upper = match decoded.as_slice() {
            [] => Ok(StreamState::Open),
            decoded => self.upper.receive(decoded, input, &mut self.between),
        };
        self.encode(to_send);
        match lower? {
            StreamState::Ended => upper.map(|_| StreamState::Ended),
            StreamState::Open => upper,
        }
    }

    fn send(&mut self, output: &[u8], to_send: &mut Vec<u8>) -> usize {
        if !self.between.is_empty() {
            self.encode(to_send);
            if !self.between.is_empty() {
                return 0;
            }
        }
        let count = self.upper.send(output, &mut self.between);
        self.encode(to_send);
        count
    }

    fn close(&mut self, to_send: &mut Vec<u8>) {
        self.upper.close(&mut self.between);
        self.encode(to_send);
        self.lower.close(to_send);
    }

    fn is_handshaking(&self) -> bool {
        self.lower.is_handshaking() || self.upper.is_handshaking()
    }

    fn peer_certificate(&self) -> Option<&[u8]> {
        self.upper.peer_certificate().or_else(|| self.lower.peer_certificate())
    }

    fn take_charge(&mut self) -> u32 {
        self.lower.take_charge() + self.upper.take_charge()
    }
}
