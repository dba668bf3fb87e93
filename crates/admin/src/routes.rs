//! All routes in one table, and the middleware around them.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, post, put};

use crate::app::App;
use crate::problem::Problem;
use crate::response::with_json;
use crate::{bindings, health, metrics, queues, receive, send, settle};

/// The OpenAPI 3.1 description. A test compares its paths with [`table`].
const OPENAPI: &str = include_str!("openapi.json");

type Route = (Method, &'static str, MethodRouter<App>);

fn table() -> Vec<Route> {
    const QUEUE: &str = "/v1/queues/{name}";
    const BINDING: &str = "/v1/bindings/{name}";
    vec![
        (Method::GET, "/v1/queues", get(queues::list)),
        (Method::PUT, QUEUE, put(queues::create)),
        (Method::GET, QUEUE, get(queues::show)),
        (Method::PATCH, QUEUE, patch(queues::configure)),
        (Method::DELETE, QUEUE, delete(queues::delete)),
        (Method::POST, "/v1/queues/{name}/messages", post(send::send)),
        (Method::POST, "/v1/queues/{name}/receive", post(receive::receive)),
        (Method::POST, "/v1/queues/{name}/ack", post(settle::ack)),
        (Method::POST, "/v1/queues/{name}/nack", post(settle::nack)),
        (Method::POST, "/v1/queues/{name}/reject", post(settle::reject)),
        (Method::POST, "/v1/queues/{name}/extend", post(settle::extend)),
        (Method::GET, "/v1/queues/{name}/peek", get(queues::peek)),
        (Method::POST, "/v1/queues/{name}/purge", post(queues::purge)),
        (Method::POST, "/v1/queues/{name}/redrive", post(queues::redrive)),
        (Method::POST, "/v1/queues/{name}/groups/{group}/replay", post(queues::replay)),
        (Method::DELETE, "/v1/queues/{name}/groups/{group}", delete(queues::remove_group)),
        (Method::GET, "/v1/bindings", get(bindings::list)),
        (Method::PUT, BINDING, put(bindings::add)),
        (Method::GET, BINDING, get(bindings::show)),
        (Method::DELETE, BINDING, delete(bindings::remove)),
        (Method::GET, "/v1/health/live", get(health::live)),
        (Method::GET, "/v1/health/ready", get(health::ready)),
        (Method::GET, "/metrics", get(metrics::metrics)),
        (Method::GET, "/openapi.json", get(openapi)),
    ]
}

pub(crate) fn router(app: App) -> Router {
    let add = |router: Router<App>, (_, path, handler): Route| router.route(path, handler);
    table()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(async || Problem::no_route())
        .method_not_allowed_fallback(async || Problem::method())
        .layer(from_fn(guard))
        .with_state(app)
}

/// The router of reserved connections, which other requests than those for health and metrics must not occupy.
pub(crate) fn monitoring_router(app: App) -> Router {
    router(app).layer(from_fn(monitoring_only))
}

async fn monitoring_only(request: Request, next: Next) -> Response {
    const PATHS: [&str; 3] = ["/metrics", "/v1/health/live", "/v1/health/ready"];
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_read && PATHS.contains(&request.uri().path()) {
        next.run(request).await
    } else {
        Problem::too_many_connections().into_response()
    }
}

/// Rejects requests with an `Origin` header: without authentication, any web page could otherwise use the API through
/// the browser of a user who can reach it.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = if request.headers().contains_key(header::ORIGIN) {
        Problem::cross_site().into_response()
    } else {
        next.run(request).await
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn openapi() -> Response {
    with_json(StatusCode::OK, OPENAPI.into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn openapi_describes_every_route_and_no_other() {
        let served: BTreeSet<(String, String)> = table()
            .into_iter()
            .map(|(method, path, _)| (path.to_owned(), method.as_str().to_lowercase()))
            .collect();
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, item) in description["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
                described.insert((path.clone(), method.clone()));
            }
        }
        assert_eq!(served, described);
    }

    #[test]
    fn every_openapi_reference_resolves() {
        fn check(value: &Value, root: &Value) {
            match value {
                Value::Object(object) => {
                    if let Some(Value::String(reference)) = object.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(root.pointer(pointer).is_some(), "{reference}");
                    }
                    object.values().for_each(|value| check(value, root));
                }
                Value::Array(values) => values.iter().for_each(|value| check(value, root)),
                _ => {}
            }
        }
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        check(&description, &description);
    }
}
