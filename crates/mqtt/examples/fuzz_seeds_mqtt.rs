//! Writes the wire cases of the codec tests as seeds for the fuzz target `decode`, one file per case, named
//! after it: a version byte, then the packet. Run in the root of the repository.

use std::path::Path;
use std::{fs, io};

use vectors::{Expected, all};

#[expect(dead_code, reason = "what a case decodes to is of no use to a fuzzer")]
#[path = "../tests/codec/vectors/mod.rs"]
mod vectors;

fn main() -> io::Result<()> {
    let corpus = Path::new("fuzz/corpus/decode");
    fs::create_dir_all(corpus)?;
    for vector in all() {
        let kind = match vector.expected {
            Expected::Canonical(_) | Expected::Lenient(_) => "valid",
            Expected::Refused(..) => "refused",
        };
        let name: String =
            vector.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let seed = [&[vector.version as u8], vector.bytes].concat();
        fs::write(corpus.join(format!("{kind}_{name}")), seed)?;
    }
    Ok(())
}
