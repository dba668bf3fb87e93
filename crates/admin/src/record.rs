//! Conversion of messages from and to JSON.
//!
//! UTF-8 bytes become a string. Other bytes become base64, in a field of another name (`body_base64`, `key_base64`) or,
//! for a header, as `{"base64": "…"}`. A header that occurs several times becomes a list of its values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_log::{Header, Headers, Record, put_headers};
use mainstem_queue_core::{NewMessage, SPAN_MS_MAX, TIME_MS_MAX, check_option, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::input::{integer, text};

/// Longest deduplication id, in bytes.
const DEDUP_ID_BYTES_MAX: usize = 255;

/// A message to send, as a client describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Draft {
    #[serde(deserialize_with = "text")]
    pub(crate) body: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(crate) body_base64: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(crate) key: Option<String>,
    #[serde(deserialize_with = "text")]
    pub(crate) key_base64: Option<String>,
    pub(crate) headers: Map<String, Value>,
    #[serde(deserialize_with = "integer")]
    pub(crate) priority: Option<u64>,
    #[serde(deserialize_with = "integer")]
    pub(crate) delay_ms: Option<u64>,
    #[serde(deserialize_with = "integer")]
    pub(crate) deliver_at: Option<u64>,
    #[serde(deserialize_with = "integer")]
    pub(crate) ttl_ms: Option<u64>,
    #[serde(deserialize_with = "text")]
    pub(crate) dedup_id: Option<String>,
}

impl Draft {
    /// Takes the fields that are not set here from `defaults`, except the body. Headers are taken by name.
    #[must_use]
    pub(crate) fn or(mut self, defaults: &Self) -> Self {
        if self.key.is_none() && self.key_base64.is_none() {
            self.key.clone_from(&defaults.key);
        }
        for (name, value) in &defaults.headers {
            self.headers.entry(name).or_insert_with(|| value.clone());
        }
        Self {
            priority: self.priority.or(defaults.priority),
            delay_ms: self.delay_ms.or(defaults.delay_ms),
            deliver_at: self.deliver_at.or(defaults.deliver_at),
            ttl_ms: self.ttl_ms.or(defaults.ttl_ms),
            dedup_id: self.dedup_id.or_else(|| defaults.dedup_id.clone()),
            ..self
        }
    }

    /// Returns the message. Priority, delay, expiry and deduplication id become headers, where the queue reads them.
    ///
    /// # Errors
    /// A description of the field that is invalid or contradicts another one.
    pub(crate) fn message(self) -> Result<NewMessage, String> {
        let value = bytes("body", self.body, self.body_base64)?.unwrap_or_default();
        let key = bytes("key", self.key, self.key_base64)?;
        let mut headers = Vec::new();
        for (name, value) in self.headers {
            header_values(&name, value, &mut headers)?;
        }
        for (name, number, max) in [
            ("priority", self.priority, 9),
            ("delay_ms", self.delay_ms, SPAN_MS_MAX),
            ("deliver_at", self.deliver_at, TIME_MS_MAX),
            ("ttl_ms", self.ttl_ms, SPAN_MS_MAX),
        ] {
            if number.is_some_and(|number| number > max) {
                return Err(format!("{name}: must be 0 to {max}"));
            }
        }
        let is_id = |id: &String| (1..=DEDUP_ID_BYTES_MAX).contains(&id.len());
        if self.dedup_id.as_ref().is_some_and(|id| !is_id(id)) {
            return Err(format!("dedup_id: must be 1 to {DEDUP_ID_BYTES_MAX} bytes"));
        }
        let numbers = [
            (header::PRIORITY, self.priority),
            (header::DELAY_MS, self.delay_ms),
            (header::DELIVER_AT, self.deliver_at),
            (header::TTL_MS, self.ttl_ms),
        ];
        for (name, number) in numbers {
            headers.extend(number.map(|number| (name.to_owned(), Some(number.to_string().into_bytes()))));
        }
        headers.extend(self.dedup_id.map(|id| (header::DEDUP_ID.to_owned(), Some(id.into_bytes()))));
        let mut encoded = Vec::new();
        if !headers.is_empty() {
            let all = headers.iter().map(|(key, value)| Header { key, value: value.as_deref() });
            put_headers(all, &mut encoded);
        }
        Ok(NewMessage { key, value, headers: encoded })
    }
}

fn bytes(name: &str, text: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, String> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(format!("{name} and {name}_base64 exclude each other")),
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, Some(base64)) => {
            STANDARD.decode(base64).map(Some).map_err(|error| format!("{name}_base64: {error}"))
        }
        (None, None) => Ok(None),
    }
}

type HeaderValue = (String, Option<Vec<u8>>);

fn header_values(name: &str, value: Value, into: &mut Vec<HeaderValue>) -> Result<(), String> {
    let Value::Array(values) = value else {
        into.push((name.to_owned(), header_value(name, value)?));
        return Ok(());
    };
    for value in values {
        into.push((name.to_owned(), header_value(name, value)?));
    }
    Ok(())
}

fn header_value(name: &str, value: Value) -> Result<Option<Vec<u8>>, String> {
    let explain = |what: &dyn std::fmt::Display| format!("header {name:?}: {what}");
    match value {
        Value::Null => Ok(None),
        Value::String(text) => {
            check_option(name, &text).map_err(|what| explain(&what))?;
            Ok(Some(text.into_bytes()))
        }
        Value::Object(mut object) if object.len() == 1 => match object.remove("base64") {
            Some(Value::String(base64)) => STANDARD.decode(base64).map(Some).map_err(|error| explain(&error)),
            _ => Err(explain(&"an object must have exactly one field, base64")),
        },
        _ => Err(explain(&"must be a string, null, {\"base64\": …}, or a list of those")),
    }
}

/// Adds the key, headers, body and arrival time of a record. Hides the header that identifies a message transferred
/// from another queue, which is internal.
pub(crate) fn show(record: &Record<'_>, into: &mut Map<String, Value>) {
    into.insert("enqueued_at".into(), json!(record.timestamp_ms));
    if let Some(key) = record.key {
        show_bytes("key", key, into);
    }
    show_bytes("body", record.value.unwrap_or_default(), into);
    let mut headers = Map::new();
    let all = Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok);
    for header in all.filter(|header| header.key != header::MOVED_BY) {
        let value = header.value.map_or(Value::Null, |bytes| match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
        });
        match headers.get_mut(header.key) {
            None => drop(headers.insert(header.key.into(), value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
        }
    }
    into.insert("headers".into(), Value::Object(headers));
}

fn show_bytes(name: &str, bytes: &[u8], into: &mut Map<String, Value>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => into.insert(name.into(), json!(text)),
        Err(_) => into.insert(format!("{name}_base64"), json!(STANDARD.encode(bytes))),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: Value) -> Result<NewMessage, String> {
        serde_json::from_value::<Draft>(json).map_err(|error| error.to_string())?.message()
    }

    fn shown(message: &NewMessage) -> Value {
        let record = Record {
            offset: 0,
            timestamp_ms: 5,
            key: message.key.as_deref(),
            value: Some(&message.value),
            headers: &message.headers,
        };
        let mut map = Map::new();
        show(&record, &mut map);
        Value::Object(map)
    }

    #[test]
    fn json_survives_a_round_trip() {
        let headers = json!({
            "a": "1", "b": ["x", null, {"base64": "/w=="}], "none": null, "odd": {"base64": "/w=="},
        });
        let text = message(json!({ "body": "hi", "key": "k", "headers": headers })).unwrap();
        assert_eq!(shown(&text), json!({ "enqueued_at": 5, "body": "hi", "key": "k", "headers": headers }));
        let bytes = message(json!({ "body_base64": "/wA=", "key_base64": "/w==" })).unwrap();
        assert_eq!((bytes.value.as_slice(), bytes.key.as_deref()), (&[0xFF, 0][..], Some(&[0xFF][..])));
        assert_eq!(
            shown(&bytes),
            json!({ "enqueued_at": 5, "body_base64": "/wA=", "key_base64": "/w==", "headers": {} })
        );
    }

    #[test]
    fn options_become_headers() {
        let draft = json!({ "priority": 9, "delay_ms": 5, "ttl_ms": 7, "dedup_id": "d" });
        let headers = shown(&message(draft).unwrap())["headers"].clone();
        assert_eq!(headers, json!({ "priority": "9", "delay-ms": "5", "ttl-ms": "7", "dedup-id": "d" }));
        let at = shown(&message(json!({ "deliver_at": 99 })).unwrap())["headers"].clone();
        assert_eq!(at, json!({ "deliver-at": "99" }));
    }

    #[test]
    fn defaults_apply_to_what_a_message_does_not_set() {
        let draft = |draft: Value| serde_json::from_value::<Draft>(draft).unwrap();
        let mut defaults =
            json!({ "key": "k", "headers": { "a": "1", "b": "2" }, "priority": 3, "delay_ms": 4 });
        defaults["ttl_ms"] = json!(5);
        let defaults = draft(defaults);
        let own =
            draft(json!({ "key_base64": "/w==", "headers": { "a": "x" }, "priority": 0, "deliver_at": 9 }));
        let headers =
            json!({ "a": "x", "b": "2", "priority": "0", "delay-ms": "4", "deliver-at": "9", "ttl-ms": "5" });
        let expected = json!({ "enqueued_at": 5, "body": "", "key_base64": "/w==", "headers": headers });
        assert_eq!(shown(&own.or(&defaults).message().unwrap()), expected);
        let none = draft(json!({ "body": "x" })).or(&defaults).message().unwrap();
        assert_eq!(none.key.as_deref(), Some(b"k".as_slice()));
    }

    #[test]
    fn hides_the_internal_transfer_header() {
        let moved = message(json!({ "headers": { "moved-by": "id/default/7", "a": "1" } })).unwrap();
        assert_eq!(shown(&moved)["headers"], json!({ "a": "1" }));
    }

    #[test]
    fn rejects_invalid_and_contradicting_fields() {
        for (draft, word) in [
            (json!({ "body": "a", "body_base64": "" }), "exclude"),
            (json!({ "body_base64": "?" }), "body_base64"),
            (json!({ "body": 7 }), "string"),
            (json!({ "key": null }), "string"),
            (json!({ "dedup_id": null }), "string"),
            (json!({ "boddy": "a" }), "boddy"),
            (json!({ "priority": 10 }), "0 to 9"),
            (json!({ "priority": -1 }), "invalid value"),
            (json!({ "priority": "1" }), "invalid type"),
            (json!({ "delay_ms": u64::MAX }), "delay_ms: must be"),
            (json!({ "ttl_ms": SPAN_MS_MAX + 1 }), "ttl_ms: must be"),
            (json!({ "deliver_at": TIME_MS_MAX + 1 }), "deliver_at: must be"),
            (json!({ "headers": { "delay-ms": u64::MAX.to_string() } }), "delay-ms: must be"),
            (json!({ "headers": { "ttl-ms": ["1", "9".repeat(30)] } }), "ttl-ms: must be"),
            (json!({ "dedup_id": "" }), "1 to 255"),
            (json!({ "headers": { "a": 7 } }), "header \"a\""),
            (json!({ "headers": { "a": { "base64": "?" } } }), "header \"a\""),
        ] {
            let error = message(draft.clone()).unwrap_err();
            assert!(error.contains(word), "{draft}: {error}");
        }
    }
}
