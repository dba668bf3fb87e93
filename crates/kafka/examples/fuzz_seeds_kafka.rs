//! Writes seeds for the fuzz targets `kafka_frame` and `kafka_records`: a request and a response of each API in each
//! version, and a few batches. Run it in the root of the repository.

use std::path::{Path, PathBuf};
use std::{fs, io};

use mainstem_kafka::api::{Visitor, find};
use mainstem_kafka::{Message, Request, RequestHeader, api};
use mainstem_log::{BatchBuilder, BatchKind, Origin};
use mainstem_log::{Header, put_headers};
use mainstem_partition::{MarkerRecord, TransactionOutcome};

fn main() -> io::Result<()> {
    let mut frames = Frames { corpus: corpus("kafka_frame")?, outcome: Ok(()) };
    api::visit(&mut frames);
    frames.outcome?;
    write_batches(&corpus("kafka_records")?)
}

fn corpus(target: &str) -> io::Result<PathBuf> {
    let path = Path::new("fuzz/corpus").join(target);
    fs::create_dir_all(&path)?;
    Ok(path)
}

struct Frames {
    corpus: PathBuf,
    outcome: io::Result<()>,
}

impl Visitor for Frames {
    fn visit<R: Request>(&mut self) {
        for version in R::VERSIONS {
            let written = self
                .write(0, version, &R::default(), R::KEY)
                .and_then(|()| self.write(1, version, &R::Response::default(), R::KEY));
            if written.is_err() {
                self.outcome = written;
            }
        }
    }
}

impl Frames {
    /// `direction` is 0 for a request and 1 for a response.
    fn write(&self, direction: u8, version: i16, message: &impl Message, key: i16) -> io::Result<()> {
        let header = RequestHeader { api_key: key, api_version: version, correlation_id: 1, client_id: None };
        let mut seed = vec![direction];
        header.put(&mut seed);
        message.encode(&mut seed, version);
        let api = find(key).map_or("unknown", |api| api.name);
        fs::write(self.corpus.join(format!("{api}_{version}_{direction}")), seed)
    }
}

fn write_batches(corpus: &Path) -> io::Result<()> {
    let mut headers = Vec::new();
    let all = [Header { key: "a", value: Some(b"1") }, Header { key: "b", value: None }];
    put_headers(all.into_iter(), &mut headers);
    let mut builder = BatchBuilder::default();
    builder.push_with_headers(1_700_000_000_000, Some(b"key"), Some(b"value"), &headers);
    builder.push(1_700_000_000_007, None, None);
    let plain = builder.finish().to_vec();
    builder.push(0, Some(b"key"), Some(b"value"));
    let kind = BatchKind::Transactional;
    let origin = Origin { producer_id: 7, producer_epoch: 1, base_sequence: 0, kind };
    let transactional = builder.finish_as(&origin).bytes().to_vec();
    let marker = MarkerRecord { outcome: TransactionOutcome::Commit, coordinator_epoch: 3 };
    let marker = marker.batch(&mut builder, 5, 7, 1).bytes().to_vec();
    fs::write(corpus.join("transaction"), [transactional, marker].concat())?;
    fs::write(corpus.join("plain"), plain)
}
