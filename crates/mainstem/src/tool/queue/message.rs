//! Output of queue messages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::cli::OutputArgs;
use crate::tool::failure::Failure;
use crate::tool::format_string::FormatString;
use crate::tool::stdout::StdoutWriter;

/// Letters after `%`.
const FIELDS: &str = "sSkKhqocrxT";

/// Prints messages to standard output.
pub(super) struct Output {
    pub(super) out: StdoutWriter,
    /// `None` for JSON.
    format: Option<FormatString>,
    line: Vec<u8>,
}

impl Output {
    /// # Errors
    /// If the format string is invalid.
    pub(super) fn new(args: &OutputArgs) -> Result<Self, Failure> {
        let format = match &args.format {
            Some(text) => Some(FormatString::parse(text, FIELDS)?),
            None if args.json => None,
            None => Some(FormatString::field_line('s')),
        };
        Ok(Self { out: StdoutWriter::default(), format, line: Vec::new() })
    }

    /// Prints a message of `queue`, which is in the JSON format of the HTTP API.
    ///
    /// # Errors
    /// If writing fails, except when standard output is closed.
    pub(super) fn print(&mut self, queue: &str, message: &Value) -> Result<(), Failure> {
        self.line.clear();
        match &self.format {
            None => self.line.extend(format!("{message}\n").bytes()),
            Some(format) => format.fill(&mut self.line, |out, letter| field(out, letter, queue, message)),
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
        _ => unreachable!("parse() accepts no other letter"),
    }
}

/// Body or key, decoded from base64 if necessary.
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
    fn prints_every_field() {
        let message = json!({
            "body": "hi", "key_base64": "/w==", "offset": 7, "delivery_count": 2, "receipt": "7-2-5d3c09e2",
            "enqueued_at": 5, "headers": { "a": "1", "b": ["x", { "base64": "/w==" }], "c": null },
        });
        let format = Some("%q %o %c %r %T%x %S:%s %K:%k %h".to_owned());
        let mut output = Output::new(&OutputArgs { format, json: false }).unwrap();
        let format = output.format.take().unwrap();
        let mut out = Vec::new();
        format.fill(&mut out, |out, letter| field(out, letter, "jobs", &message));
        assert_eq!(out, b"jobs 7 2 7-2-5d3c09e2 5 2:hi 1:\xFF a=1,b=x,b=\xFF,c=");
    }
}
