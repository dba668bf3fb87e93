//! Checks of the filters, keys and templates of bindings: what could never match or be published is refused.

use mainstem_mqtt_server::queue_of;
use mainstem_node::{Key, Template};
use mainstem_topic::check_filter;

/// Checks the filter of a binding from MQTT.
///
/// # Errors
/// Why no message can match it.
pub(super) fn check_source_filter(filter: &str, topic_levels_max: u16) -> Result<(), String> {
    let explain = |what: &str| Err(format!("filter {filter:?}: {what}"));
    check_filter(filter).map_err(|error| format!("filter {filter:?}: {error}"))?;
    match filter.split('/').next().unwrap_or_default() {
        "$share" => explain(
            "a binding gets every message, so it cannot share a subscription; use the filter behind it",
        ),
        "$queue" => {
            explain("messages to $queue/NAME are for that queue only; bind the topics they could come from")
        }
        "$SYS" => explain("messages of the broker itself are for MQTT clients only"),
        _ if levels(filter) > usize::from(topic_levels_max) => {
            explain(&format!("topics have at most {topic_levels_max} levels (mqtt.max_topic_levels)"))
        }
        _ => Ok(()),
    }
}

/// Parses the key of a binding with this filter.
///
/// # Errors
/// It is no key, or names a level that no matching topic has.
pub(super) fn parse_key(text: &str, filter: &str, topic_levels_max: u16) -> Result<Key, String> {
    let key = Key::parse(text).map_err(|error| format!("key: {error}"))?;
    let Key::Level(level) = key else { return Ok(key) };
    if !filter.ends_with('#') && usize::from(level) > levels(filter) {
        return Err(format!("key: {text:?}: topics that match {filter:?} have {} levels", levels(filter)));
    }
    if level > topic_levels_max {
        let limit = format!("topics have at most {topic_levels_max} levels (mqtt.max_topic_levels)");
        return Err(format!("key: {text:?}: {limit}"));
    }
    Ok(key)
}

/// Parses the template of a binding to MQTT.
///
/// # Errors
/// It is no template, or nothing can be published to its topics.
pub(super) fn parse_template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text).map_err(|error| format!("publish: {error}"))?;
    let explain = |what: &str| Err(format!("publish: {text:?}: {what}"));
    let fixed = text.split('{').next().unwrap_or_default();
    let is_whole = fixed.len() == text.len();
    let mut levels = fixed.split('/');
    match (levels.next(), levels.next()) {
        (Some("$SYS"), Some(_)) => explain("only the broker publishes to $SYS"),
        (Some("$share"), Some(_)) => explain("no client can subscribe to these topics"),
        // The name of the queue is known if a level follows it, or nothing.
        (Some("$queue"), Some(_)) if (is_whole || levels.next().is_some()) && queue_of(fixed).is_none() => {
            explain("$queue/ must be followed by the name of a queue")
        }
        _ => Ok(template),
    }
}

fn levels(topic: &str) -> usize {
    topic.split('/').count()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_openapi_description_has_the_names_that_are_checked() {
        fn collect<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
            if let Value::Array(values) = value {
                for value in values {
                    collect(name, value, found);
                }
            }
            for (key, value) in value.as_object().into_iter().flatten() {
                if key == name {
                    found.push(value);
                }
                collect(name, value, found);
            }
        }
        let description: Value = serde_json::from_str(mainstem_admin::OPENAPI).unwrap();
        let in_request = |pointer: &str, name: &str| {
            let mut found = Vec::new();
            collect(name, description.pointer(pointer).unwrap(), &mut found);
            assert!(!found.is_empty(), "{pointer}");
            found
        };
        let queue =
            ["/components/parameters/Queue", "/components/schemas/Settings/properties/dead_letter_queue"];
        for pointer in queue.into_iter().chain(["/components/schemas/NewBinding"]) {
            for not in in_request(pointer, "not") {
                let names: Vec<_> =
                    not["enum"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
                assert_eq!(names[..2], [".", ".."], "{pointer}");
                assert_eq!(names[2..], mainstem_partition::RESERVED_NAMES, "{pointer}");
            }
        }
        for keys in in_request("/components/schemas/NewBinding", "propertyNames") {
            let keys = keys["enum"].as_array().unwrap().iter().filter_map(|key| key.as_str());
            assert!(keys.eq(mainstem_kafka_server::topic_config_keys()));
        }
    }

    #[test]
    fn refuses_filters_that_match_nothing() {
        for filter in ["#", "a/+/b", "+/a", "$internal/#", "/", "$shared/a"] {
            assert_eq!(check_source_filter(filter, 200), Ok(()), "{filter}");
        }
        for filter in ["", "a/#/b", "$share/g/a", "$share/g/#", "$queue/jobs", "$queue/#", "$queue", "$SYS/#"]
        {
            let error = check_source_filter(filter, 200).unwrap_err();
            assert!(error.starts_with("filter "), "{error}");
        }
        assert!(check_source_filter("a/b/c", 2).unwrap_err().contains("mqtt.max_topic_levels"));
    }

    #[test]
    fn refuses_levels_that_no_topic_has() {
        assert_eq!(parse_key("level:2", "a/+", 200), Ok(Key::Level(2)));
        assert_eq!(parse_key("level:200", "a/#", 200), Ok(Key::Level(200)));
        for (key, filter) in
            [("level:3", "a/+"), ("level:9999", "a/#"), ("level:0", "#"), ("level:99999", "#")]
        {
            assert!(parse_key(key, filter, 200).unwrap_err().starts_with("key: "), "{key} {filter}");
        }
    }

    #[test]
    fn refuses_templates_that_cannot_be_published() {
        for text in
            ["a/{key}", "{key}", "$queue/jobs", "$queue/jobs/{key}", "$queue/{key}", "$queue/a-{key}", "$x/y"]
        {
            assert!(parse_template(text).is_ok(), "{text}");
        }
        for text in ["$SYS/{key}", "$share/g/{key}", "$queue/", "$queue/a b/{key}", "$queue//{key}", "a/+"] {
            assert!(parse_template(text).unwrap_err().starts_with("publish: "), "{text}");
        }
    }
}
