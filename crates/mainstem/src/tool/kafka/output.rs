//! Output of `mainstem consume`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_log::Record;
use mainstem_log::{Header, Headers};
use serde_json::{Map, Value, json};

use super::cluster::Partition;
use crate::tool::failure::Failure;
use crate::tool::format_string::FormatString;
use crate::tool::stdout::StdoutWriter;

/// Output format of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Format string of `-f`.
    FormatString(FormatString),
    /// One JSON object per line.
    Json,
}

/// Letters after `%`.
const FIELDS: &str = "sSkKhtpoT";

impl Format {
    /// The value and a newline.
    pub(super) fn value() -> Self {
        Self::FormatString(FormatString::field_line('s'))
    }

    /// Parses a format string.
    ///
    /// # Errors
    /// If it has an unknown sequence.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        FormatString::parse(text, FIELDS).map(Self::FormatString)
    }

    fn append(&self, out: &mut Vec<u8>, partition: &Partition, record: &Record<'_>) {
        match self {
            Self::Json => out.extend(format!("{}\n", object(partition, record)).bytes()),
            Self::FormatString(format_string) => {
                format_string.fill(out, |out, letter| field(out, letter, partition, record));
            }
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
        _ => unreachable!("parse() accepts no other letter"),
    }
}

/// Headers up to the first malformed one.
fn headers<'a>(record: &Record<'a>) -> impl Iterator<Item = Header<'a>> {
    Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok)
}

fn object((topic, index): &Partition, record: &Record<'_>) -> Value {
    let mut map = Map::new();
    map.insert("topic".into(), json!(topic));
    map.insert("partition".into(), json!(index));
    map.insert("offset".into(), json!(record.offset));
    map.insert("timestamp".into(), json!(record.timestamp_ms));
    // A list of pairs, because names may repeat and their order matters.
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

/// A header's value as text. Invalid UTF-8 becomes replacement characters.
fn text(value: Option<&[u8]>) -> Option<String> {
    value.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Prints records to standard output.
#[derive(Debug)]
pub(super) struct Output {
    format: Format,
    out: StdoutWriter,
    line: Vec<u8>,
}

impl Output {
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: StdoutWriter::default(), line: Vec::new() }
    }

    /// Whether standard output is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Prints a record.
    ///
    /// # Errors
    /// If writing fails, except when standard output is closed.
    pub(super) fn print(&mut self, partition: &Partition, record: &Record<'_>) -> Result<(), Failure> {
        self.line.clear();
        self.format.append(&mut self.line, partition, record);
        self.out.write(&self.line)
    }

    /// Flushes standard output.
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
        let pairs = [("a", Some(b"1".as_slice())), ("a", None)].map(|(key, value)| Header { key, value });
        put_headers(pairs.into_iter(), &mut headers);
        let record = Record { offset: 42, timestamp_ms: 1_700, key, value, headers: &headers };
        let mut out = Vec::new();
        format.append(&mut out, &("t".to_owned(), 3), &record);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn prints_every_field() {
        let format = Format::parse("%t %p %o %T %K:%k %S:%s %h %%\\n\\x41\\t\\\\").unwrap();
        assert_eq!(printed(&format, Some(b"key"), None), "t 3 42 1700 3:key -1: a=1,a= %\nA\t\\");
        assert_eq!(printed(&Format::value(), None, Some(b"v")), "v\n");
    }

    #[test]
    fn json_encodes_other_bytes_in_base64() {
        let value: Value = serde_json::from_str(&printed(&Format::Json, Some(&[0xFF]), None)).unwrap();
        let expected = json!({
            "topic": "t", "partition": 3, "offset": 42, "timestamp": 1700,
            "headers": [["a", "1"], ["a", null]], "key_base64": "/w==", "value": null,
        });
        assert_eq!(value, expected);
    }
}
