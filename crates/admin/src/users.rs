//! `/v1/users`: lists, adds, changes and deletes users.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_security::{
    Change, ChangeError, Edit, SecurityHost, SecurityState, User, change_user, create_user, delete_user,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;

use crate::access::Caller;
use crate::app::App;
use crate::input::{JsonBody, PathParams};
use crate::problem::Problem;
use crate::response::json_response;

/// A new user, or what changes of one.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UserBody {
    password: Option<String>,
    roles: Option<Vec<String>>,
    disabled: Option<bool>,
}

pub(crate) async fn list(State(app): State<App>) -> Result<Response, Problem> {
    let state = host(&app)?.published().state();
    let users: Vec<Value> = state.all_users().map(|user| show_user(&state, user)).collect();
    Ok(json_response(StatusCode::OK, &json!({ "users": users })))
}

pub(crate) async fn show(
    State(app): State<App>,
    PathParams(name): PathParams<String>,
) -> Result<Response, Problem> {
    respond(&host(&app)?, &name, StatusCode::OK)
}

pub(crate) async fn add(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<UserBody>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    let password = body.password.clone().ok_or_else(|| Problem::invalid("password: is missing"))?;
    let mut user = User::new(&name).map_err(|error| Problem::invalid(error.to_string()))?;
    body.apply(&mut user);
    let user = derive(&host, user, password).await?;
    change(&host, &caller, Box::new(move |state| create_user(state, user))).await?;
    respond(&host, &name, StatusCode::CREATED)
}

pub(crate) async fn edit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(name): PathParams<String>,
    JsonBody(body): JsonBody<UserBody>,
) -> Result<Response, Problem> {
    let host = host(&app)?;
    if body.password.is_none() && body.roles.is_none() && body.disabled.is_none() {
        return Err(Problem::invalid("the body changes nothing"));
    }
    let derived = match &body.password {
        Some(password) => {
            let user = User::new(&name).map_err(|error| Problem::invalid(error.to_string()))?;
            Some(derive(&host, user, password.clone()).await?)
        }
        None => None,
    };
    let user_name = name.clone();
    let edit = move |state: &SecurityState| {
        change_user(state, &user_name, |user| {
            body.apply(user);
            if let Some(derived) = derived {
                user.password = derived.password;
                user.scram_sha_256 = derived.scram_sha_256;
                user.scram_sha_512 = derived.scram_sha_512;
            }
        })
    };
    change(&host, &caller, Box::new(edit)).await?;
    respond(&host, &name, StatusCode::OK)
}

pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(name): PathParams<String>,
) -> Result<Response, Problem> {
    change(&host(&app)?, &caller, Box::new(move |state| delete_user(state, &name))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl UserBody {
    fn apply(&self, user: &mut User) {
        if let Some(roles) = &self.roles {
            user.roles = roles.iter().map(|role| role.as_str().into()).collect();
        }
        if let Some(disabled) = self.disabled {
            user.disabled = disabled;
        }
    }
}

/// The users and rules; a broker without them has no such routes.
pub(crate) fn host(app: &App) -> Result<Arc<dyn SecurityHost>, Problem> {
    app.broker().security().ok_or_else(Problem::no_route)
}

/// Makes changes and waits until they are durable.
pub(crate) async fn change(
    host: &Arc<dyn SecurityHost>,
    caller: &Caller,
    edit: Edit,
) -> Result<Vec<Change>, Problem> {
    let (sender, receiver) = oneshot::channel();
    host.change(edit, caller.actor(), Box::new(move |result| drop(sender.send(result))));
    receiver.await.map_err(|_| Problem::unanswered())?.map_err(|error| Problem::from(&error))
}

async fn derive(host: &Arc<dyn SecurityHost>, user: User, password: String) -> Result<User, Problem> {
    let (sender, receiver) = oneshot::channel();
    host.derive(user, password.into_bytes(), Box::new(move |result| drop(sender.send(result))));
    receiver.await.map_err(|_| Problem::unanswered())?.map_err(|error| Problem::from(&error))
}

fn respond(host: &Arc<dyn SecurityHost>, name: &str, status: StatusCode) -> Result<Response, Problem> {
    let state = host.published().state();
    let not_found = || Problem::from(&ChangeError::NotFound(format!("user {name:?}")));
    let user = state.user(name).ok_or_else(not_found)?;
    Ok(json_response(status, &show_user(&state, user)))
}

/// A user without its verifiers.
fn show_user(state: &SecurityState, user: &User) -> Value {
    let mut verifiers = Vec::new();
    verifiers.extend(user.password.as_ref().map(|_| "password"));
    verifiers.extend(user.scram_sha_256.as_ref().map(|_| "scram-sha-256"));
    verifiers.extend(user.scram_sha_512.as_ref().map(|_| "scram-sha-512"));
    json!({
        "name": *user.name,
        "roles": user.roles.iter().map(|role| &**role).collect::<Vec<_>>(),
        "disabled": user.disabled,
        "super_user": state.settings().super_users.contains(&user.name),
        "verifiers": verifiers,
        "origin": if state.is_in_log(&user.name) { "log" } else { "password-file" },
    })
}
