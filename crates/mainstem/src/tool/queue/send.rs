//! `mainstem queue send`.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::manage::{elements, label};
use crate::cli::SendArgs;
use crate::tool::failure::Failure;
use crate::tool::http::{Http, path};
use crate::tool::lines::Lines;
use crate::tool::stdout::StdoutWriter;

/// Maximum number of messages in a request.
const BATCH_MAX: usize = 1000;
/// Bytes of messages above which a request is sent.
const BATCH_BYTES: usize = 1024 * 1024;

/// Sends the payload, or all lines of standard input.
///
/// # Errors
/// If the broker rejects a message or does not answer. Later messages are not sent.
pub(super) fn run(http: &Http, args: &SendArgs) -> Result<(), Failure> {
    let mut sender = Sender {
        http,
        args,
        common: common(args),
        batch: Vec::new(),
        bytes: 0,
        out: StdoutWriter::default(),
    };
    if let Some(payload) = &args.payload {
        sender.add(payload.as_bytes())?;
        return sender.send();
    }
    let mut lines = Lines::new(std::io::stdin());
    while !lines.is_ended() {
        lines.read()?;
        // Lines that arrive together are sent in one request.
        while let Some(line) = lines.next() {
            sender.add(line)?;
        }
        sender.send()?;
    }
    Ok(())
}

struct Sender<'a> {
    http: &'a Http,
    args: &'a SendArgs,
    common: Map<String, Value>,
    batch: Vec<Value>,
    bytes: usize,
    out: StdoutWriter,
}

impl Sender<'_> {
    fn add(&mut self, body: &[u8]) -> Result<(), Failure> {
        let mut message = self.common.clone();
        match std::str::from_utf8(body) {
            Ok(text) => message.insert("body".into(), json!(text)),
            Err(_) => message.insert("body_base64".into(), json!(STANDARD.encode(body))),
        };
        self.batch.push(Value::Object(message));
        self.bytes += body.len();
        if self.batch.len() < BATCH_MAX && self.bytes < BATCH_BYTES { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), Failure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let context = label(&self.args.queue);
        let body = json!({ "messages": std::mem::take(&mut self.batch) });
        self.bytes = 0;
        let path = path(&self.args.queue, "/messages");
        let response = self.http.request(&context, Method::POST, &path, Some(&body))?;
        for result in elements(&response["results"]) {
            if let Some(detail) = result["problem"]["detail"].as_str() {
                return Err(Failure::new(format!("{context}: {detail}")));
            }
            if self.args.verbose {
                self.out.write(format!("{}\n", result["offset"]).as_bytes())?;
            }
        }
        self.out.flush()
    }
}

/// Fields of all messages.
fn common(args: &SendArgs) -> Map<String, Value> {
    let mut common = Map::new();
    let mut put = |name: &str, value: Option<Value>| common.extend(value.map(|value| (name.into(), value)));
    let millis = |span: Option<Duration>| span.map(|span| json!(span.as_millis() as u64));
    put("key", args.key.as_ref().map(|key| json!(key)));
    put("priority", args.priority.map(|priority| json!(priority)));
    put("delay_ms", millis(args.delay));
    put("ttl_ms", millis(args.ttl));
    put("dedup_id", args.dedup_id.as_ref().map(|id| json!(id)));
    let mut headers = Map::new();
    for (name, value) in &args.header {
        let values = headers.entry(name.clone()).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(json!(value));
        }
    }
    put("headers", Some(Value::Object(headers)));
    common
}
