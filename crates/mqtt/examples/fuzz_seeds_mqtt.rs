//! Writes the test vectors of the codec as seeds for the fuzz target `decode`.
//!
//! Each file is named after its vector and contains a version byte and the packet. Run from the root of the repository.

use std::path::Path;
use std::{fs, io};

use vectors::{Expected, all};

#[expect(dead_code, reason = "the fuzzer does not use the expected packets")]
#[path = "../tests/codec/vectors/mod.rs"]
mod vectors;

fn main() -> io::Result<()> {
    let corpus = Path::new("fuzz/corpus/decode");
    fs::create_dir_all(corpus)?;
    for vector in all() {
        let kind = match vector.expected {
            Expected::Canonical(_) | Expected::Lenient(_) => "valid",
            Expected::Rejected(..) => "refused",
        };
        let name: String =
            vector.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let seed = [&[vector.version as u8], vector.bytes].concat();
        fs::write(corpus.join(format!("{kind}_{name}")), seed)?;
    }
    Ok(())
}
