//! Tests of the codec through its public API: test vectors, round trips, comparison with another codec, and the PUBLISH
//! template.

mod decode;
mod encode;
mod other_codec;
mod roundtrip;
mod strategies;
mod template;
mod vectors;
