//! How `mainstem consume` prints records.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_log::Record;
use mainstem_log::{Header, Headers};
use serde_json::{Map, Value, json};

use super::cluster::Partition;
use crate::tool::failure::Failure;
use crate::tool::out::Out;
use crate::tool::pieces::Pieces;

/// A format, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// As `-f` has it.
    Pieces(Pieces),
    /// One JSON object to a line.
    Json,
}

/// Letters after `%`.
const FIELDS: &str = "sSkKhtpoT";

impl Format {
    /// The value, and a new line.
    pub(super) fn value() -> Self {
        Self::Pieces(Pieces::line_of('s'))
    }

    /// Reads a format string.
    ///
    /// # Errors
    /// If it holds a sequence that does not exist.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        Pieces::parse(text, FIELDS).map(Self::Pieces)
    }

    fn append(&self, out: &mut Vec<u8>, partition: &Partition, record: &Record<'_>) {
        match self {
            Self::Json => out.extend(format!("{}\n", object(partition, record)).bytes()),
            Self::Pieces(pieces) => pieces.fill(out, |out, letter| field(out, letter, partition, record)),
        }
    }
}

fn field(out: &mut Vec<u8>, letter: char, (topic, index): &Partition, record: &Record<'_>) {
    let len = |part: Option<&[u8]>| part.map_or("-1".to_owned(), |bytes| bytes.len().to_string());
    match letter {
        's' => out.extend_from_slice(record.value.unwrap_or_default()),
        'S' => out.extend(len(record.value).bytes()),
        'k' => out.extend_from_slice(record.key.unwrap_or_default()),
        'K' => out.extend(len(record.key).bytes()),
        't' => out.extend(topic.bytes()),
        'p' => out.extend(index.to_string().bytes()),
        'o' => out.extend(record.offset.to_string().bytes()),
        'T' => out.extend(record.timestamp_ms.to_string().bytes()),
        'h' => {
            for (place, Header { key, value }) in headers(record).enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                out.extend(key.bytes());
                out.push(b'=');
                out.extend_from_slice(value.unwrap_or_default());
            }
        }
        _ => unreachable!("parse() lets no other letter pass"),
    }
}

/// The headers that can be read.
fn headers<'a>(record: &Record<'a>) -> impl Iterator<Item = Header<'a>> {
    Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok)
}

fn object((topic, index): &Partition, record: &Record<'_>) -> Value {
    let mut map = Map::new();
    map.insert("topic".into(), json!(topic));
    map.insert("partition".into(), json!(index));
    map.insert("offset".into(), json!(record.offset));
    map.insert("timestamp".into(), json!(record.timestamp_ms));
    // A list of pairs: names may repeat, and their order counts.
    let headers: Vec<Value> = headers(record).map(|header| json!([header.key, text(header.value)])).collect();
    if !headers.is_empty() {
        map.insert("headers".into(), Value::Array(headers));
    }
    for (name, part) in [("key", record.key), ("value", record.value)] {
        match part.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
            Some((bytes, Err(_))) => map.insert(format!("{name}_base64"), json!(STANDARD.encode(bytes))),
            Some((_, Ok(text))) => map.insert(name.into(), json!(text)),
            None => map.insert(name.into(), Value::Null),
        };
    }
    Value::Object(map)
}

/// A header's value, with signs in place of what is no text.
fn text(value: Option<&[u8]>) -> Option<String> {
    value.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Standard output, until nobody reads it any more.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    out: Out,
    line: Vec<u8>,
}

impl Output {
    /// Prints by `format`.
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: Out::default(), line: Vec::new() }
    }

    /// Whether nobody reads any more.
    pub(super) fn is_gone(&self) -> bool {
        self.out.is_gone()
    }

    /// Prints a record.
    ///
    /// # Errors
    /// If the output fails, other than by nobody reading it.
    pub(super) fn print(&mut self, partition: &Partition, record: &Record<'_>) -> Result<(), Failure> {
        self.line.clear();
        self.format.append(&mut self.line, partition, record);
        self.out.write(&self.line)
    }

    /// Hands everything printed to the operating system.
    ///
    /// # Errors
    /// As [`Self::print`].
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::put_headers;

    use super::*;

    fn printed(format: &Format, key: Option<&[u8]>, value: Option<&[u8]>) -> String {
        let mut headers = Vec::new();
        let given = [("a", Some(b"1".as_slice())), ("a", None)].map(|(key, value)| Header { key, value });
        put_headers(given.into_iter(), &mut headers);
        let record = Record { offset: 42, timestamp_ms: 1_700, key, value, headers: &headers };
        let mut out = Vec::new();
        format.append(&mut out, &("t".to_owned(), 3), &record);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_letter() {
        let format = Format::parse("%t %p %o %T %K:%k %S:%s %h %%\\n\\x41\\t\\\\").unwrap();
        assert_eq!(printed(&format, Some(b"key"), None), "t 3 42 1700 3:key -1: a=1,a= %\nA\t\\");
        assert_eq!(printed(&Format::value(), None, Some(b"v")), "v\n");
    }

    #[test]
    fn json_has_base64_for_what_is_no_text() {
        let value: Value = serde_json::from_str(&printed(&Format::Json, Some(&[0xFF]), None)).unwrap();
        let expected = json!({
            "topic": "t", "partition": 3, "offset": 42, "timestamp": 1700,
            "headers": [["a", "1"], ["a", null]], "key_base64": "/w==", "value": null,
        });
        assert_eq!(value, expected);
    }
}
