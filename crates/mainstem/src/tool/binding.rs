//! `mainstem binding`, over HTTP.

use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::http::{Http, escape};
use super::table::{Table, print};
use crate::cli::{BindingAddArgs, BindingArgs, BindingCommand};
use crate::tool::failure::Failure;

const BINDINGS: &str = "/v1/bindings";

/// Runs the subcommand.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run(args: &BindingArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        BindingCommand::List { json } => list(&http, *json),
        BindingCommand::Add(args) => add(&http, args),
        BindingCommand::Remove { binding } => {
            http.request(&label(binding), Method::DELETE, &path(binding), None).map(drop)
        }
    }
}

fn label(binding: &str) -> String {
    format!("binding {binding}")
}

fn path(binding: &str) -> String {
    format!("{BINDINGS}/{}", escape(binding))
}

fn list(http: &Http, as_json: bool) -> Result<(), Failure> {
    let response = http.request("bindings", Method::GET, BINDINGS, None)?;
    let bindings = response["bindings"].as_array().map(Vec::as_slice).unwrap_or_default();
    if as_json {
        let lines: Vec<String> = bindings.iter().map(|binding| format!("{binding}\n")).collect();
        return print(&lines.concat());
    }
    let mut table = Table::new(&["BINDING", "FROM", "TO", "DECLARED"]);
    for binding in bindings {
        let text = |field: &str| binding[field].as_str().unwrap_or_default().to_owned();
        let (from, to) = match binding["kind"].as_str() {
            Some("topic-to-mqtt") => {
                (format!("topic {}", text("topic")), format!("mqtt {}", text("publish")))
            }
            Some("mqtt-to-queue") => (format!("mqtt {}", text("filter")), format!("queue {}", text("queue"))),
            _ => (format!("mqtt {}", text("filter")), format!("topic {}", text("topic"))),
        };
        table.push(vec![text("name"), from, to, text("origin")]);
    }
    table.print()
}

fn add(http: &Http, args: &BindingAddArgs) -> Result<(), Failure> {
    let kind = match (&args.to_topic, &args.to_queue) {
        (Some(_), _) => "mqtt-to-topic",
        (_, Some(_)) => "mqtt-to-queue",
        _ => "topic-to-mqtt",
    };
    let mut binding = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            binding.insert(field.to_owned(), value);
        }
    };
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    put("kind", Some(kind.into()));
    put("filter", text(&args.from_mqtt));
    put("topic", text(&args.to_topic).or_else(|| text(&args.from_topic)));
    put("queue", text(&args.to_queue));
    put("publish", text(&args.to_mqtt));
    put("key", text(&args.key));
    put("partitions", args.partitions.map(Value::from));
    put("durability", text(&args.durability));
    put("qos", args.qos.map(Value::from));
    put("retain", args.retain.then_some(Value::Bool(true)));
    put("start", args.from_beginning.then(|| "earliest".into()));
    let set: Map<String, Value> =
        args.set.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    put("config", (!set.is_empty()).then(|| json!(set)));
    http.request(&label(&args.binding), Method::PUT, &path(&args.binding), Some(&Value::Object(binding)))
        .map(drop)
}
