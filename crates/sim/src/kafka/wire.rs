//! A client's connection to the Kafka door: requests on their way out, and responses in the order of those.

use std::collections::VecDeque;

use mainstem_kafka::header::parse_response_header;
use mainstem_kafka::{Message, Reader, Request, RequestHeader, frame};

use super::flaw::Flaw;
use crate::ledger::Violation;
use crate::machine::LinkId;

/// A response is never larger.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A request that waits for its response.
#[derive(Clone, Copy, Debug)]
struct Expected {
    correlation_id: i32,
    api_key: i16,
    version: i16,
}

/// A response that has come.
#[derive(Debug)]
pub(crate) struct Response {
    api_key: i16,
    pub(crate) version: i16,
    body: Vec<u8>,
}

impl Response {
    /// For those who read a trace.
    pub(crate) fn show(&self) -> String {
        let Self { api_key, version, body } = self;
        format!("API {api_key} v{version}: {:.300}", body.escape_ascii().to_string())
    }

    /// Lets a flaw change it.
    pub(crate) fn pass(&mut self, flaw: &mut dyn Flaw) {
        flaw.response(self.api_key, self.version, &mut self.body);
    }

    /// What the response to such a request says.
    pub(crate) fn read<R: Request>(&self) -> Result<R::Response, Violation> {
        let mut reader = Reader::new(&self.body);
        let response = R::Response::decode(&mut reader, self.version)
            .map_err(|error| Violation(format!("cannot read an answer to API {}: {error:?}", R::KEY)))?;
        if reader.rest().is_empty() {
            Ok(response)
        } else {
            Err(Violation(format!("bytes behind an answer to API {}", R::KEY)))
        }
    }
}

/// A connection, as long as there is one.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) link: Option<LinkId>,
    partial: Vec<u8>,
    expected: VecDeque<Expected>,
    next_correlation_id: i32,
    /// Frames to be put on their way.
    pub(crate) sends: Vec<Vec<u8>>,
}

impl Wire {
    /// Sends a request that is answered.
    pub(crate) fn ask<R: Request>(&mut self, version: i16, request: &R) {
        let correlation_id = self.tell(version, request);
        self.expected.push_back(Expected { correlation_id, api_key: R::KEY, version });
    }

    /// Sends a request that is not answered.
    pub(crate) fn tell<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.next_correlation_id += 1;
        let correlation_id = self.next_correlation_id;
        let mut bytes = Vec::new();
        let begun = frame::begin(&mut bytes);
        let client_id = Some("sim".to_owned());
        RequestHeader { api_key: R::KEY, api_version: version, correlation_id, client_id }.put(&mut bytes);
        request.encode(&mut bytes, version);
        frame::end(&mut bytes, begun, 0);
        self.sends.push(bytes);
        correlation_id
    }

    /// Bytes from the broker.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
    }

    /// The next response that is there in full.
    pub(crate) fn next(&mut self) -> Result<Option<Response>, Violation> {
        let Some(len) = whole(&self.partial)? else { return Ok(None) };
        let rest = self.partial.split_off(len);
        let bytes = std::mem::replace(&mut self.partial, rest);
        let Some(expected) = self.expected.pop_front() else {
            return Err(Violation("a response that nobody waits for".to_owned()));
        };
        let Expected { correlation_id, api_key, version } = expected;
        let parsed = parse_response_header(&bytes[frame::LENGTH_BYTES..], api_key, version);
        match parsed {
            Ok((found, body)) if found == correlation_id => {
                Ok(Some(Response { api_key, version, body: body.to_vec() }))
            }
            other => Err(Violation(format!("a response to {expected:?} begins with {other:?}"))),
        }
    }

    /// The connection is gone, and all that was under way.
    pub(crate) fn close(&mut self) {
        self.link = None;
        self.partial.clear();
        self.expected.clear();
        self.sends.clear();
    }
}

/// Length of the frame that `bytes` begin with, if it is there in full.
pub(crate) fn whole(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let len = frame::len(bytes, RESPONSE_BYTES_MAX)
        .map_err(|error| Violation(format!("a frame that cannot be: {error:?}")))?;
    Ok(len.filter(|len| *len <= bytes.len()))
}

/// A request, for those who read a trace.
pub(crate) fn show(frame: &[u8]) -> String {
    let parsed = frame.get(frame::LENGTH_BYTES..).and_then(|frame| RequestHeader::parse(frame).ok());
    parsed.map_or_else(String::new, |(RequestHeader { api_key, api_version, correlation_id, .. }, body)| {
        let text = body.escape_ascii().to_string();
        format!("{correlation_id}: API {api_key} v{api_version}: {text:.300}")
    })
}
