//! A connection of a Kafka client: requests to be sent, and responses in the order of the requests.

use std::collections::VecDeque;

use mainstem_kafka::header::parse_response_header;
use mainstem_kafka::{Message, Reader, Request, RequestHeader, frame};

use crate::engine::LinkId;
use crate::{FaultInjector, Violation};

/// Longest response.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A request without a response.
#[derive(Clone, Copy, Debug)]
struct Expected {
    correlation_id: i32,
    api_key: i16,
    version: i16,
}

#[derive(Debug)]
pub(crate) struct Response {
    api_key: i16,
    pub(crate) version: i16,
    body: Vec<u8>,
}

impl Response {
    /// Describes it for a trace.
    pub(crate) fn show(&self) -> String {
        let Self { api_key, version, body } = self;
        format!("API {api_key} v{version}: {:.300}", body.escape_ascii().to_string())
    }

    /// Lets a fault injector change it.
    pub(crate) fn pass(&mut self, injector: &mut dyn FaultInjector) {
        injector.kafka_response(self.api_key, self.version, &mut self.body);
    }

    /// Decodes it as the response to such a request.
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

/// A connection, or none.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) link: Option<LinkId>,
    partial: Vec<u8>,
    expected: VecDeque<Expected>,
    next_correlation_id: i32,
    /// Frames to be sent.
    pub(crate) sends: Vec<Vec<u8>>,
}

impl Connection {
    /// Sends a request with a response.
    pub(crate) fn send<R: Request>(&mut self, version: i16, request: &R) {
        let correlation_id = self.send_unanswered(version, request);
        self.expected.push_back(Expected { correlation_id, api_key: R::KEY, version });
    }

    /// Sends a request without a response. Returns its correlation id.
    pub(crate) fn send_unanswered<R: Request>(&mut self, version: i16, request: &R) -> i32 {
        self.next_correlation_id += 1;
        let correlation_id = self.next_correlation_id;
        let mut bytes = Vec::new();
        let begun = frame::begin_frame(&mut bytes);
        let client_id = Some("sim".to_owned());
        RequestHeader { api_key: R::KEY, api_version: version, correlation_id, client_id }.put(&mut bytes);
        request.encode(&mut bytes, version);
        frame::end_frame(&mut bytes, begun, 0);
        self.sends.push(bytes);
        correlation_id
    }

    /// Takes bytes from the broker.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
    }

    /// Returns the next complete response.
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

    /// The connection is gone, and everything in flight with it.
    pub(crate) fn close(&mut self) {
        self.link = None;
        self.partial.clear();
        self.expected.clear();
        self.sends.clear();
    }
}

/// Length of the frame at the front of `bytes`, if it is complete.
pub(crate) fn whole(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let len = frame::frame_len(bytes, RESPONSE_BYTES_MAX)
        .map_err(|error| Violation(format!("a frame that cannot be: {error:?}")))?;
    Ok(len.filter(|len| *len <= bytes.len()))
}

/// Describes a request for a trace.
pub(crate) fn show(frame: &[u8]) -> String {
    let parsed = frame.get(frame::LENGTH_BYTES..).and_then(|frame| RequestHeader::parse(frame).ok());
    parsed.map_or_else(String::new, |(RequestHeader { api_key, api_version, correlation_id, .. }, body)| {
        let text = body.escape_ascii().to_string();
        format!("{correlation_id}: API {api_key} v{api_version}: {text:.300}")
    })
}
