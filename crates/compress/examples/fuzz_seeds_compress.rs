//! Writes seeds for the fuzz target `decompress`: a short text and many zeros with each codec. Run it in the root of
//! the repository.

use std::path::Path;
use std::{fs, io};

use mainstem_compress::{Compression, compress};

fn main() -> io::Result<()> {
    let corpus = Path::new("fuzz/corpus/decompress");
    fs::create_dir_all(corpus)?;
    for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
        for (name, plain) in
            [("text", b"mainstem mainstem mainstem end".to_vec()), ("zeros", vec![0; 100_000])]
        {
            let compressed = compress(codec, None, &plain).map_err(io::Error::other)?;
            let seed = [&[codec.number()], compressed.as_slice()].concat();
            fs::write(corpus.join(format!("{codec:?}-{name}")), seed)?;
        }
    }
    Ok(())
}
