//! `/v1/bindings`: lists, shows, adds and removes bindings between MQTT topics, queues and Kafka topics.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_security::ChangedSettings;
use serde_json::{Map, Value, json};

use crate::access::Caller;
use crate::app::App;
use crate::input::{JsonBody, PathParams};
use crate::problem::Problem;
use crate::response::json_response;

pub(crate) async fn list(State(app): State<App>) -> Response {
    json_response(StatusCode::OK, &json!({ "bindings": app.broker().bindings() }))
}

pub(crate) async fn show(
    State(app): State<App>,
    PathParams(name): PathParams<String>,
) -> Result<Response, Problem> {
    let binding = find(&app, &name).ok_or_else(Problem::no_binding)?;
    Ok(json_response(StatusCode::OK, &Value::Object(binding)))
}

pub(crate) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(name): PathParams<String>,
    JsonBody(binding): JsonBody<Map<String, Value>>,
) -> Result<Response, Problem> {
    if let Some((field, _)) = binding.iter().find(|(_, value)| value.is_null()) {
        return Err(Problem::invalid(format!("{field}: must not be null; omit it for the default")));
    }
    let change = {
        let app = app.clone();
        async move {
            let exists = find(&app, &name).is_some();
            app.await_change(|reply| app.broker().add_binding(&name, binding, reply)).await?;
            let binding = find(&app, &name).unwrap_or_default();
            if !exists {
                caller.note(&app, "add-binding", &name, None, Some(audited(&binding)));
            }
            let status = if exists { StatusCode::OK } else { StatusCode::CREATED };
            Ok(json_response(status, &Value::Object(binding)))
        }
    };
    app.carry_out(change).await
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(name): PathParams<String>,
) -> Result<Response, Problem> {
    let change = {
        let app = app.clone();
        async move {
            let binding = find(&app, &name).ok_or_else(Problem::no_binding)?;
            app.await_change(|reply| app.broker().remove_binding(&name, reply)).await?;
            caller.note(&app, "remove-binding", &name, Some(audited(&binding)), None);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    };
    app.carry_out(change).await
}

/// The fields of a binding for the audit log.
fn audited(binding: &Map<String, Value>) -> ChangedSettings {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    binding.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

fn find(app: &App, name: &str) -> Option<Map<String, Value>> {
    let mut bindings = app.broker().bindings().into_iter();
    bindings.find(|binding| binding.get("name").and_then(Value::as_str) == Some(name))
}
