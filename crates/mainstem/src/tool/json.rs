//! MQTT messages as JSON, one object per line.

use std::fmt::Write as _;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstem_mqtt::packet::{Publish, QoS};
use serde_json::{Map, Value, json};

use super::clock::Moment;

/// How to encode the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// As a string, or in base64 under another name if it is not UTF-8.
    Text,
    /// As a JSON value.
    Json,
}

/// Returns the message as a JSON object. `None` if `payload` is [`Payload::Json`] and the payload is not JSON.
pub(crate) fn object(publish: &Publish<'_>, topic: &str, at: &Moment, payload: Payload) -> Option<String> {
    let mut out = format!(
        "{{\"tst\":{},\"topic\":{},\"qos\":{},\"retain\":{}",
        json!(at.iso_micros()),
        json!(topic),
        publish.qos as u8,
        u8::from(publish.retain)
    );
    if publish.dup {
        out.push_str(",\"dup\":1");
    }
    if publish.qos != QoS::AtMostOnce {
        append(&mut out, "mid", &json!(publish.packet_id));
    }
    append(&mut out, "payloadlen", &json!(publish.payload.len()));
    let properties = properties(publish);
    if !properties.is_empty() {
        append(&mut out, "properties", &Value::Object(properties));
    }
    match (payload, std::str::from_utf8(publish.payload)) {
        (Payload::Json, Ok(text)) => {
            // Copied instead of parsed and printed, which would change numbers and the order of keys.
            serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
            let one_line = text.trim().replace(['\n', '\r'], " ");
            write!(out, ",\"payload\":{one_line}").expect("writing to a string cannot fail");
        }
        (Payload::Json, Err(_)) => return None,
        (Payload::Text, Ok(text)) => append(&mut out, "payload", &json!(text)),
        (Payload::Text, Err(_)) => {
            append(&mut out, "payload_base64", &json!(STANDARD.encode(publish.payload)));
        }
    }
    out.push('}');
    Some(out)
}

fn append(out: &mut String, name: &str, value: &Value) {
    write!(out, ",\"{name}\":{value}").expect("writing to a string cannot fail");
}

fn properties(publish: &Publish<'_>) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            map.insert(name.into(), value);
        }
    };
    let message = &publish.properties;
    put("payload-format-indicator", message.payload_format.map(Value::from));
    put("message-expiry-interval", message.message_expiry.map(Value::from));
    put("content-type", message.content_type.map(Value::from));
    put("response-topic", message.response_topic.map(Value::from));
    match message.correlation_data.map(|data| (data, std::str::from_utf8(data))) {
        None => {}
        Some((_, Ok(text))) => put("correlation-data", Some(text.into())),
        Some((data, Err(_))) => put("correlation-data-base64", Some(STANDARD.encode(data).into())),
    }
    put("topic-alias", publish.topic_alias.map(Value::from));
    let ids: Vec<u32> = publish.subscription_ids.iter().collect();
    put("subscription-identifiers", (!ids.is_empty()).then(|| json!(ids)));
    // A list of pairs, because names may repeat and their order matters.
    let user: Vec<(&str, &str)> = message.user_properties.iter().collect();
    put("user-properties", (!user.is_empty()).then(|| json!(user)));
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_mqtt::packet::MessageProperties;
    use std::time::Duration;

    fn at() -> Moment {
        Moment::at(Duration::ZERO)
    }

    #[test]
    fn a_plain_message_has_the_keys_of_mosquitto_sub() {
        let publish = Publish { payload: b"say \"hi\"\n", ..Publish::default() };
        assert_eq!(
            object(&publish, "a/b", &at(), Payload::Text).unwrap(),
            r#"{"tst":"1970-01-01T00:00:00.000000Z","topic":"a/b","qos":0,"retain":0,"payloadlen":9,"payload":"say \"hi\"\n"}"#
        );
    }

    #[test]
    fn prints_every_property() {
        let user = [("k", "1"), ("k", "2")];
        let publish = Publish {
            qos: QoS::AtLeastOnce,
            retain: true,
            dup: true,
            packet_id: 7,
            subscription_ids: [4, 5].as_slice().into(),
            properties: MessageProperties {
                payload_format: Some(1),
                message_expiry: Some(60),
                content_type: Some("t/p"),
                response_topic: Some("r"),
                correlation_data: Some(&[0xFF]),
                user_properties: user.as_slice().into(),
            },
            payload: &[0, 0xFF],
            ..Publish::default()
        };
        let value: Value =
            serde_json::from_str(&object(&publish, "t", &at(), Payload::Text).unwrap()).unwrap();
        assert_eq!((&value["mid"], &value["dup"], &value["retain"]), (&json!(7), &json!(1), &json!(1)));
        assert_eq!(value["payload_base64"], "AP8=");
        assert_eq!(
            value["properties"],
            json!({
                "payload-format-indicator": 1,
                "message-expiry-interval": 60,
                "content-type": "t/p",
                "response-topic": "r",
                "correlation-data-base64": "/w==",
                "subscription-identifiers": [4, 5],
                "user-properties": [["k", "1"], ["k", "2"]],
            })
        );
    }

    #[test]
    fn copies_a_json_payload_unchanged() {
        let publish = Publish { payload: b"{\"b\": 1.50,\n \"a\":2}", ..Publish::default() };
        let object = |publish: &Publish<'_>| super::object(publish, "t", &at(), Payload::Json);
        assert!(object(&publish).unwrap().ends_with(r#""payload":{"b": 1.50,  "a":2}}"#));
        assert_eq!(object(&Publish { payload: b"{", ..Publish::default() }), None);
        assert_eq!(object(&Publish { payload: &[0xFF], ..Publish::default() }), None);
    }
}
