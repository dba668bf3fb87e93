//! The codec from outside: wire cases, round trips, another codec's opinion, and the PUBLISH template.

mod decode;
mod encode;
mod other_codec;
mod roundtrip;
mod strategies;
mod template;
mod vectors;
