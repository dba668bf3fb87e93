//! Bindings between MQTT topics, queues and Kafka topics: listed, added and taken away.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::input::{At, Json};
use crate::problem::Problem;
use crate::routes::answer;

pub(crate) async fn list(State(app): State<App>) -> Response {
    answer(StatusCode::OK, &json!({ "bindings": app.broker().bindings() }))
}

pub(crate) async fn show(State(app): State<App>, At(name): At<String>) -> Result<Response, Problem> {
    let binding = find(&app, &name).ok_or_else(Problem::no_binding)?;
    Ok(answer(StatusCode::OK, &Value::Object(binding)))
}

pub(crate) async fn add(
    State(app): State<App>,
    At(name): At<String>,
    Json(binding): Json<Map<String, Value>>,
) -> Result<Response, Problem> {
    let is_there = find(&app, &name).is_some();
    app.await_reply(|reply| app.broker().bind(&name, binding, reply)).await?;
    let binding = find(&app, &name).unwrap_or_default();
    Ok(answer(if is_there { StatusCode::OK } else { StatusCode::CREATED }, &Value::Object(binding)))
}

pub(crate) async fn remove(State(app): State<App>, At(name): At<String>) -> Result<Response, Problem> {
    find(&app, &name).ok_or_else(Problem::no_binding)?;
    app.await_reply(|reply| app.broker().unbind(&name, reply)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn find(app: &App, name: &str) -> Option<Map<String, Value>> {
    let mut bindings = app.broker().bindings().into_iter();
    bindings.find(|binding| binding.get("name").and_then(Value::as_str) == Some(name))
}
