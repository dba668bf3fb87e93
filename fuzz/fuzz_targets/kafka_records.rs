//! Reads arbitrary bytes as record batches: reading never panics, and a valid batch can be rebuilt from its records.
//!
//! Input: batches. Checksums are not verified; otherwise almost every mutation would be rejected.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_log::{Batch, Compression, Header, Headers, Record, batches, put_headers, rebuild};
use mainstem_partition::MarkerRecord;

fuzz_target!(|input: &[u8]| {
    for batch in batches(input) {
        if batch.header.compression() != Compression::None {
            continue;
        }
        let all: Result<Vec<Record<'_>>, _> = batch.records().collect();
        let Ok(all) = all else { continue };
        for record in &all {
            check_headers(record.headers);
            std::hint::black_box(MarkerRecord::parse(record).is_ok());
        }
        // There may be fewer records than the header says, and timestamps too far apart for a delta.
        let apart = |record: &Record<'_>| record.timestamp_ms.checked_sub(batch.header.base_timestamp_ms);
        if all.iter().all(|record| apart(record).is_some()) {
            let mut bytes = Vec::new();
            rebuild(&batch.header, all.iter().copied(), &mut bytes);
            let again = Batch::parse(&bytes).expect("what was read can be written");
            assert!(again.records().map(Result::unwrap).eq(all));
        }
    }
});

/// Encodes the records that were read; they must read as the same again.
fn check_headers(encoded: &[u8]) {
    let Ok(headers) = Headers::parse(encoded) else { return };
    let Ok(all) = headers.collect::<Result<Vec<Header<'_>>, _>>() else { return };
    let mut put = Vec::new();
    put_headers(all.iter().copied(), &mut put);
    assert!(put.len() <= encoded.len(), "the canonical form is never longer");
    let again: Result<Vec<_>, _> = Headers::parse(&put).expect("a count").collect();
    assert_eq!(again, Ok(all));
}
