//! TLS against clients of rustls, in memory.

mod certificates;
mod kit;
mod layer;
