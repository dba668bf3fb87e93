//! WebSocket byte by byte: requests, frames from the peer, frames to the peer.

mod frames;
mod kit;
mod upgrade;
