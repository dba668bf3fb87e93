//! A message of a queue as it is printed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::cli::OutputArgs;
use crate::tool::failure::Failure;
use crate::tool::out::Out;
use crate::tool::pieces::Pieces;

/// Letters after `%`.
const FIELDS: &str = "sSkKhqocrxT";

/// Standard output, and how messages are printed there.
pub(super) struct Output {
    pub(super) out: Out,
    /// Without one, as JSON.
    pieces: Option<Pieces>,
    line: Vec<u8>,
}

impl Output {
    /// As the flags say.
    ///
    /// # Errors
    /// If the format holds a sequence that does not exist.
    pub(super) fn new(args: &OutputArgs) -> Result<Self, Failure> {
        let pieces = match &args.format {
            Some(text) => Some(Pieces::parse(text, FIELDS)?),
            None if args.json => None,
            None => Some(Pieces::line_of('s')),
        };
        Ok(Self { out: Out::default(), pieces, line: Vec::new() })
    }

    /// Prints a message of `queue` as the door shows it.
    ///
    /// # Errors
    /// If the output fails, other than by nobody reading it.
    pub(super) fn print(&mut self, queue: &str, message: &Value) -> Result<(), Failure> {
        self.line.clear();
        match &self.pieces {
            None => self.line.extend(format!("{message}\n").bytes()),
            Some(pieces) => pieces.fill(&mut self.line, |out, letter| field(out, letter, queue, message)),
        }
        self.out.write(&self.line)
    }
}

fn field(out: &mut Vec<u8>, letter: char, queue: &str, message: &Value) {
    match letter {
        's' => out.extend(bytes(message, "body").unwrap_or_default()),
        'S' => out.extend(len(message, "body").bytes()),
        'k' => out.extend(bytes(message, "key").unwrap_or_default()),
        'K' => out.extend(len(message, "key").bytes()),
        'q' => out.extend(queue.bytes()),
        'o' => text(out, &message["offset"]),
        'c' => text(out, &message["delivery_count"]),
        'r' => text(out, &message["receipt"]),
        'x' => text(out, &message["state"]),
        'T' => text(out, &message["enqueued_at"]),
        'h' => headers(out, message["headers"].as_object()),
        _ => unreachable!("parse() lets no other letter pass"),
    }
}

/// Body or key, however it stands there.
fn bytes(message: &Value, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = message[name].as_str() {
        return Some(text.into());
    }
    STANDARD.decode(message[format!("{name}_base64")].as_str()?).ok()
}

fn len(message: &Value, name: &str) -> String {
    bytes(message, name).map_or("-1".into(), |bytes| bytes.len().to_string())
}

fn text(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => {}
        Value::String(text) => out.extend(text.bytes()),
        value => out.extend(value.to_string().bytes()),
    }
}

fn headers(out: &mut Vec<u8>, headers: Option<&Map<String, Value>>) {
    let begin = out.len();
    for (name, value) in headers.into_iter().flatten() {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            if out.len() > begin {
                out.push(b',');
            }
            out.extend(format!("{name}=").bytes());
            match value["base64"].as_str().and_then(|base64| STANDARD.decode(base64).ok()) {
                Some(bytes) => out.extend(bytes),
                None => text(out, value),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_letter() {
        let message = json!({
            "body": "hi", "key_base64": "/w==", "offset": 7, "delivery_count": 2, "receipt": "7-2-5d3c09e2",
            "enqueued_at": 5, "headers": { "a": "1", "b": ["x", { "base64": "/w==" }], "c": null },
        });
        let format = Some("%q %o %c %r %T%x %S:%s %K:%k %h".to_owned());
        let mut output = Output::new(&OutputArgs { format, json: false }).unwrap();
        let pieces = output.pieces.take().unwrap();
        let mut out = Vec::new();
        pieces.fill(&mut out, |out, letter| field(out, letter, "jobs", &message));
        assert_eq!(out, b"jobs 7 2 7-2-5d3c09e2 5 2:hi 1:\xFF a=1,b=x,b=\xFF,c=");
    }
}
