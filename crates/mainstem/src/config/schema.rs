//! The JSON Schema of configuration files, with which editors complete and check keys.
//!
//! It has no list of keys of its own: sections come from `settings!`, and arrays of tables from the rows of the
//! reference page.

use mainstem_mqtt_server::config::Field;
use mainstem_mqtt_server::config_value::{Kind, parse_quantity};
use serde_json::{Map, Value, json};

use super::SECTIONS;
use crate::{bindings, listener_section, queues};

/// Keys that each item of an array must have, where the reference page has no default.
const REQUIRED: [&str; 9] =
    ["name", "protocol", "listen", "filter", "topic", "queue", "publish", "certificate", "key"];

/// The schema. It names no version of JSON Schema: it means the same in all from draft 6 on.
pub(crate) fn schema() -> Value {
    let mut properties = Map::new();
    for section in &SECTIONS {
        let fields = (section.fields)();
        let keys: Map<String, Value> =
            fields.iter().map(|field| (field.key.to_owned(), field_schema(field))).collect();
        properties.insert(
            section.name.to_owned(),
            json!({
                "type": "object", "description": section.doc, "properties": keys, "additionalProperties": false,
            }),
        );
    }
    let tables =
        [listener_section::REFERENCE.to_owned(), queues::reference(), bindings::REFERENCE.to_owned()];
    for (section, rows) in array_rows(&tables.concat()) {
        let items = table_schema(&rows);
        properties.insert(section, json!({ "type": "array", "items": items }));
    }
    json!({
        "title": "Configuration of Mainstem",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

fn field_schema(field: &Field) -> Value {
    let mut schema = match field.kind {
        Kind::Number => {
            let (low, high) = field.range.unwrap_or((i128::from(i64::MIN), i128::from(i64::MAX)));
            number_schema(field.key, i64::try_from(low).ok(), i64::try_from(high).ok())
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Choice => json!({ "enum": choices(field.bounds) }),
    };
    schema["description"] = field.doc.into();
    // Literals of TOML that sections have are JSON, too.
    schema["default"] = serde_json::from_str(&field.default).unwrap_or_default();
    schema
}

/// A number; also text with a unit if the name of the key has one.
fn number_schema(key: &str, low: Option<i64>, high: Option<i64>) -> Value {
    let mut number = json!({ "type": "integer" });
    for (name, bound) in [("minimum", low), ("maximum", high)] {
        if let Some(bound) = bound {
            number[name] = bound.into();
        }
    }
    if parse_quantity(key, "").is_none() {
        return number;
    }
    json!({ "anyOf": [number, { "type": "string", "pattern": "^\\s*[0-9]+\\s*[A-Za-z]+\\s*$" }] })
}

/// The choices in a list such as `"a", "b"` or `true, false, auto`.
fn choices(bounds: &str) -> Vec<Value> {
    let choice = |text: &str| match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => text.trim_matches('"').into(),
    };
    bounds.split(", ").map(choice).collect()
}

/// A row of a table of the reference page.
struct Row {
    key: String,
    default: String,
    bounds: String,
    doc: String,
}

/// The rows of each array of tables on the reference page.
fn array_rows(page: &str) -> Vec<(String, Vec<Row>)> {
    let mut sections: Vec<(String, Vec<Row>)> = Vec::new();
    for line in page.lines() {
        if let Some(name) = line.strip_prefix("## `[[").and_then(|rest| rest.strip_suffix("]]`")) {
            sections.push((name.to_owned(), Vec::new()));
        }
        let Some(row) = line.strip_prefix("| `").and_then(|rest| rest.strip_suffix(" |")) else { continue };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [key, default, middle @ .., doc] = cells.as_slice() else { continue };
        let row = Row {
            key: key.trim_end_matches('`').to_owned(),
            default: default.trim_matches('`').to_owned(),
            bounds: middle.first().copied().unwrap_or_default().to_owned(),
            doc: (*doc).to_owned(),
        };
        if let Some((_, rows)) = sections.last_mut() {
            rows.push(row);
        }
    }
    sections
}

/// The schema of a table with these rows. A key such as `tls.key` is one of a table within it.
fn table_schema(rows: &[Row]) -> Value {
    let mut table =
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    for row in rows {
        let (target, key) = match row.key.split_once('.') {
            None => (&mut table, row.key.as_str()),
            Some((outer, key)) => {
                let inner = &mut table["properties"][outer];
                if inner.is_null() {
                    *inner = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
                }
                (inner, key)
            }
        };
        target["properties"][key] = row_schema(key, row);
        if row.default.is_empty()
            && REQUIRED.contains(&key)
            && let Some(required) = target["required"].as_array_mut()
        {
            required.push(key.into());
        }
    }
    table
}

fn row_schema(key: &str, Row { default, bounds, doc, .. }: &Row) -> Value {
    let both =
        bounds.split_once(" to ").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    let (low, high) = match both {
        Some((low, high)) => (Some(low), Some(high)),
        None => (bounds.strip_prefix("from ").and_then(|low| low.parse().ok()), None),
    };
    let mut schema = if key == "more_certificates" {
        json!({ "type": "array", "items": { "type": "object" } })
    } else if default.starts_with('[') || key == "from" {
        json!({ "type": "array", "items": { "type": "string" } })
    } else if default == "{}" {
        json!({ "type": "object" })
    } else if default.parse::<i64>().is_ok() || low.is_some() {
        number_schema(key, low, high)
    } else if default.parse::<bool>().is_ok() {
        json!({ "type": "boolean" })
    } else if is_choice(bounds) {
        json!({ "enum": choices(bounds) })
    } else {
        json!({ "type": "string" })
    };
    schema["description"] = doc.as_str().into();
    schema
}

/// Whether bounds list single words, which are all values that there are.
fn is_choice(bounds: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    bounds.contains(", ") && bounds.split(", ").all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_bounds_and_choices_come_from_the_tables() {
        let schema = schema();
        let at =
            |pointer: &str| schema.pointer(&format!("/properties{pointer}")).unwrap_or(&Value::Null).clone();
        let listener = "/listener/items/properties";
        assert_eq!(at("/mqtt/properties/maximum_qos/maximum"), 2);
        assert_eq!(at("/mqtt/properties/max_queued_bytes/anyOf/1/type"), "string");
        assert_eq!(at("/mqtt/properties/queue_overflow/enum"), json!(["drop-newest", "drop-oldest"]));
        assert_eq!(at("/security/properties/allow_anonymous/enum"), json!([true, false, "auto"]));
        assert_eq!(at(&format!("{listener}/protocol/enum")), json!(["mqtt", "kafka", "http"]));
        assert_eq!(at(&format!("{listener}/max_connections/minimum")), 1);
        assert_eq!(at(&format!("{listener}/name/type")), "string");
        assert_eq!(at(&format!("{listener}/tls/required")), json!(["certificate", "key"]));
        assert_eq!(at(&format!("{listener}/proxy_protocol/properties/from/type")), "array");
        assert_eq!(at("/listener/items/required"), json!(["name", "protocol", "listen"]));
        assert_eq!(at("/topic_to_mqtt/items/properties/qos/maximum"), 2);
        assert_eq!(at("/mqtt_to_topic/items/properties/key/type"), "string");
        assert_eq!(at("/queue/items/properties/lease_ms/anyOf/0/type"), "integer");
        assert_eq!(at("/queue/items/required"), json!(["name"]));
    }
}
