//! All routes in one table, and the middleware around them.

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, patch, post, put};
use axum::{Extension, Router};
use mainstem_security::Action;

use crate::access::{Access, authorize};
use crate::app::App;
use crate::gate::{REJECTED_METHOD, Rejection};
use crate::hosts::check_host;
use crate::origins::{allow, check_origin, is_preflight, preflight};
use crate::problem::Problem;
use crate::response::with_json;
use crate::watched_body::watch_body;
use crate::{
    bans, bindings, config, health, keys, metrics, queues, quotas, receive, rules, send, settle, snapshots,
    users,
};

/// The OpenAPI 3.1 description of the API.
pub const OPENAPI: &str = include_str!("openapi.json");

type Route = (Method, &'static str, MethodRouter<App>, Access);

/// Queues and bindings.
fn queue_routes() -> Vec<Route> {
    const QUEUE: &str = "/v1/queues/{name}";
    const BINDING: &str = "/v1/bindings/{name}";
    vec![
        (Method::GET, "/v1/queues", get(queues::list), Access::Cluster(Action::AdminRead)),
        (Method::PUT, QUEUE, put(queues::create), Access::Queue(Action::Manage)),
        (Method::GET, QUEUE, get(queues::show), Access::Queue(Action::Describe)),
        (Method::PATCH, QUEUE, patch(queues::configure), Access::Queue(Action::Manage)),
        (Method::DELETE, QUEUE, delete(queues::delete), Access::Queue(Action::Manage)),
        (Method::POST, "/v1/queues/{name}/messages", post(send::send), Access::Queue(Action::Send)),
        (Method::POST, "/v1/queues/{name}/receive", post(receive::receive), Access::Queue(Action::Receive)),
        (Method::POST, "/v1/queues/{name}/ack", post(settle::ack), Access::Queue(Action::Receive)),
        (Method::POST, "/v1/queues/{name}/nack", post(settle::nack), Access::Queue(Action::Receive)),
        (Method::POST, "/v1/queues/{name}/reject", post(settle::reject), Access::Queue(Action::Receive)),
        (Method::POST, "/v1/queues/{name}/extend", post(settle::extend), Access::Queue(Action::Receive)),
        (Method::GET, "/v1/queues/{name}/peek", get(queues::peek), Access::Queue(Action::Receive)),
        (Method::POST, "/v1/queues/{name}/purge", post(queues::purge), Access::Queue(Action::Manage)),
        (Method::POST, "/v1/queues/{name}/redrive", post(queues::redrive), Access::Queue(Action::Manage)),
        (
            Method::POST,
            "/v1/queues/{name}/groups/{group}/replay",
            post(queues::replay),
            Access::Queue(Action::Manage),
        ),
        (
            Method::DELETE,
            "/v1/queues/{name}/groups/{group}",
            delete(queues::remove_group),
            Access::Queue(Action::Manage),
        ),
        (Method::GET, "/v1/bindings", get(bindings::list), Access::Cluster(Action::AdminRead)),
        (Method::PUT, BINDING, put(bindings::add), Access::Cluster(Action::Bind)),
        (Method::GET, BINDING, get(bindings::show), Access::Cluster(Action::AdminRead)),
        (Method::DELETE, BINDING, delete(bindings::remove), Access::Cluster(Action::Bind)),
    ]
}

/// Everything else.
fn admin_routes() -> Vec<Route> {
    const USER: &str = "/v1/users/{name}";
    vec![
        (Method::GET, "/v1/health/live", get(health::live), Access::Open),
        (Method::GET, "/v1/health/ready", get(health::ready), Access::Open),
        (Method::GET, "/metrics", get(metrics::scrape), Access::Cluster(Action::AdminRead)),
        (Method::GET, "/openapi.json", get(openapi), Access::LoggedIn),
        (Method::GET, "/v1/users", get(users::list), Access::Cluster(Action::AdminRead)),
        (Method::PUT, USER, put(users::add), Access::Security),
        (Method::GET, USER, get(users::show), Access::Cluster(Action::AdminRead)),
        (Method::PATCH, USER, patch(users::edit), Access::Security),
        (Method::DELETE, USER, delete(users::remove), Access::Security),
        (Method::GET, "/v1/acls", get(rules::list), Access::Cluster(Action::AdminRead)),
        (Method::POST, "/v1/acls", post(rules::add), Access::Security),
        (Method::DELETE, "/v1/acls/{id}", delete(rules::remove), Access::Security),
        (Method::GET, "/v1/quotas", get(quotas::list), Access::Cluster(Action::AdminRead)),
        (Method::PATCH, "/v1/quotas", patch(quotas::set), Access::Security),
        (Method::DELETE, "/v1/quotas", delete(quotas::remove), Access::Security),
        (Method::GET, "/v1/bans", get(bans::list), Access::Cluster(Action::AdminRead)),
        (Method::POST, "/v1/bans", post(bans::add), Access::Security),
        (Method::DELETE, "/v1/bans", delete(bans::remove), Access::Security),
        (Method::GET, "/v1/keys", get(keys::list), Access::Cluster(Action::AdminRead)),
        (Method::POST, "/v1/keys", post(keys::add), Access::Security),
        (Method::DELETE, "/v1/keys/{id}", delete(keys::remove), Access::Security),
        (Method::GET, "/v1/log", get(config::show_log), Access::Cluster(Action::AdminRead)),
        (Method::PATCH, "/v1/log", patch(config::set_log), Access::Cluster(Action::AdminWrite)),
        (
            Method::POST,
            "/v1/config/reload",
            post(config::reload).route_layer(from_fn(reject_body)),
            Access::Cluster(Action::AdminWrite),
        ),
        (Method::GET, "/v1/snapshots", get(snapshots::list), Access::Cluster(Action::AdminRead)),
        (
            Method::POST,
            "/v1/snapshots",
            post(snapshots::take).route_layer(from_fn(reject_body)),
            Access::Cluster(Action::AdminWrite),
        ),
        (
            Method::DELETE,
            "/v1/snapshots/{id}",
            delete(snapshots::remove),
            Access::Cluster(Action::AdminWrite),
        ),
        (Method::GET, "/v1/acls/explain", get(rules::explain), Access::Cluster(Action::AdminRead)),
    ]
}

pub(crate) fn router(app: App) -> Router {
    let add = |router: Router<App>, (method, path, handler, access): Route| {
        let takes_body = !matches!(method, Method::GET | Method::DELETE);
        let handler = if takes_body { handler } else { handler.route_layer(from_fn(reject_body)) };
        router.route(path, handler.route_layer(from_fn_with_state((app.clone(), access), authorize)))
    };
    queue_routes()
        .into_iter()
        .chain(admin_routes())
        .fold(Router::new(), add)
        .fallback(async || Problem::no_route())
        .method_not_allowed_fallback(async || Problem::method())
        .layer(from_fn_with_state(app.clone(), guard))
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

/// Rejects invalid requests, and those from web pages that are not allowed: any page could otherwise use the API
/// through the browser of a user who can reach it, or who has logged in.
async fn guard(
    State(app): State<App>,
    Extension(rejection): Extension<Rejection>,
    request: Request,
    next: Next,
) -> Response {
    let (request, body) = watch_body(request);
    let checked = check(&app, &rejection, &request);
    let page = checked.as_ref().ok().cloned().flatten();
    let mut response = match checked {
        Ok(Some(_)) if is_preflight(&request) => preflight(&request),
        Ok(_) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(origin) = page {
        allow(response.headers_mut(), origin);
    }
    if !body.is_read() {
        // The server closes the connection then. A client that does not know would send its next request over it.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The origin of the page that has sent the request, if a page has.
fn check(app: &App, rejection: &Rejection, request: &Request) -> Result<Option<HeaderValue>, Problem> {
    if request.method().as_str() == REJECTED_METHOD {
        return Err(rejection.problem().unwrap_or_else(Problem::method));
    }
    check_host(request, app.allowed_hosts())?;
    check_origin(request.headers(), app.allowed_origins())
}

/// Rejects a body where none is expected: it would be ignored, and its parameters with it.
async fn reject_body(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    Problem::invalid(format!("a {} request has no body", request.method())).into_response()
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
        let served: BTreeSet<(String, String)> = queue_routes()
            .into_iter()
            .chain(admin_routes())
            .map(|(method, path, _, _)| (path.to_owned(), method.as_str().to_lowercase()))
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
