//! The segment log: the store that keeps its logs in files.
//!
//! # What this crate must never know
//! Who appends, and what is in a record beyond its key and its time. Protocols, sockets, clocks.
//!
//! # Entry points
//! [`Fs`] and [`File`] are all it asks of a file system; [`RealFs`] is that of the machine, and
//! [`fault::FaultFs`] one that fails as it is told.
//!
//! # Files
//! `fs` the seam to the file system, and the real one behind it · `fault` the faulty one.

pub mod fault;
mod fs;

pub use fs::{File, Fs, Mode, RealFs};
