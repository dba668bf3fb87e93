//! `mainstem user` and `mainstem acl`, over HTTP.

use std::io::{BufRead, IsTerminal};

use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::http::{Http, escape};
use super::table::{Table, print};
use crate::cli::{AclAddArgs, AclArgs, AclCommand, AclExplainArgs, NewPasswordArgs, UserArgs, UserCommand};
use crate::tool::failure::Failure;

const USERS: &str = "/v1/users";
const ACLS: &str = "/v1/acls";

/// Runs `mainstem user`.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run_user(args: &UserArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    let change = |name: &str, body: Value| {
        http.request(&format!("user {name}"), Method::PATCH, &path(name), Some(&body)).map(drop)
    };
    match &args.command {
        UserCommand::Add { name, password, role, .. } => {
            let body = json!({ "password": new_password(password)?, "roles": role });
            http.request(&format!("user {name}"), Method::PUT, &path(name), Some(&body)).map(drop)
        }
        UserCommand::List { json } => list_users(&http, *json),
        UserCommand::Passwd { name, password } => {
            change(name, json!({ "password": new_password(password)? }))
        }
        UserCommand::Role { name, roles } => change(name, json!({ "roles": roles })),
        UserCommand::Delete { name } => {
            http.request(&format!("user {name}"), Method::DELETE, &path(name), None).map(drop)
        }
        UserCommand::Disable { name } => change(name, json!({ "disabled": true })),
        UserCommand::Enable { name } => change(name, json!({ "disabled": false })),
    }
}

/// Runs `mainstem acl`.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run_acl(args: &AclArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        AclCommand::Add(args) => add_rules(&http, args),
        AclCommand::List { json } => list_rules(&http, *json),
        AclCommand::Delete { id } => {
            http.request(&format!("rule {id}"), Method::DELETE, &format!("{ACLS}/{id}"), None).map(drop)
        }
        AclCommand::Explain(args) => explain(&http, args),
    }
}

fn path(name: &str) -> String {
    format!("{USERS}/{}", escape(name))
}

/// The password of a flag, or the first line of standard input.
///
/// # Errors
/// Standard input is a terminal, which would show the password, or has no line.
pub(crate) fn new_password(args: &NewPasswordArgs) -> Result<String, Failure> {
    if let Some(password) = &args.new_password {
        return Ok(password.clone());
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::new(
            "the password comes from standard input, which is a terminal: use `read -rs PW; printf '%s\\n' \"$PW\" | \
             mainstem user …`, or --new-password"
                .to_owned(),
        ));
    }
    let mut line = String::new();
    stdin.lock().read_line(&mut line).map_err(|error| Failure::new(format!("stdin: {error}")))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn list_users(http: &Http, as_json: bool) -> Result<(), Failure> {
    let response = http.request("users", Method::GET, USERS, None)?;
    let users = response["users"].as_array().map(Vec::as_slice).unwrap_or_default();
    if as_json {
        let lines: Vec<String> = users.iter().map(|user| format!("{user}\n")).collect();
        return print(&lines.concat());
    }
    let mut table = Table::new(&["USER", "ROLES", "STATE", "FROM"]);
    for user in users {
        let text = |field: &str| user[field].as_str().unwrap_or_default().to_owned();
        let roles: Vec<&str> =
            user["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let state = match (user["disabled"].as_bool(), user["super_user"].as_bool()) {
            (Some(true), _) => "disabled",
            (_, Some(true)) => "super user",
            _ => "",
        };
        table.push(vec![text("name"), roles.join(","), state.to_owned(), text("origin")]);
    }
    table.print()
}

fn add_rules(http: &Http, args: &AclAddArgs) -> Result<(), Failure> {
    let subject = match (&args.user, &args.role) {
        (Some(name), _) => format!("user:{name}"),
        (_, Some(name)) => format!("role:{name}"),
        _ if args.anonymous => "anonymous".to_owned(),
        _ => "*".to_owned(),
    };
    let (effect, actions) = if args.deny.is_empty() { ("allow", &args.allow) } else { ("deny", &args.deny) };
    let mut body = Map::new();
    body.insert("effect".into(), effect.into());
    body.insert("subject".into(), subject.into());
    body.insert("actions".into(), json!(actions));
    body.insert("resource".into(), args.resource.as_str().into());
    for (field, value) in [("listener", &args.listener), ("network", &args.network)] {
        if let Some(value) = value {
            body.insert(field.into(), value.as_str().into());
        }
    }
    let response = http.request("rule", Method::POST, ACLS, Some(&Value::Object(body)))?;
    print_rules(&response)
}

fn list_rules(http: &Http, as_json: bool) -> Result<(), Failure> {
    let response = http.request("rules", Method::GET, ACLS, None)?;
    if as_json {
        let rules = response["acls"].as_array().map(Vec::as_slice).unwrap_or_default();
        let lines: Vec<String> = rules.iter().map(|rule| format!("{rule}\n")).collect();
        return print(&lines.concat());
    }
    print_rules(&response)
}

fn print_rules(response: &Value) -> Result<(), Failure> {
    let mut table = Table::new(&["ID", "EFFECT", "SUBJECT", "ACTION", "RESOURCE", "CONDITIONS"]);
    for rule in response["acls"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let conditions: Vec<String> = ["listener", "network"]
            .into_iter()
            .filter_map(|field| Some(format!("{field}={}", rule[field].as_str()?)))
            .collect();
        let id = rule["id"].to_string();
        table.push(vec![
            id,
            text("effect"),
            text("subject"),
            text("action"),
            text("resource"),
            conditions.join(" "),
        ]);
    }
    table.print()
}

fn explain(http: &Http, args: &AclExplainArgs) -> Result<(), Failure> {
    let mut query = format!("action={}&resource={}", escape(&args.action), escape(&args.resource));
    let address = args.address.map(|address| address.to_string());
    let user = Some(&args.user).filter(|user| *user != "anonymous");
    let more = [
        ("user", user),
        ("client_id", args.client_id.as_ref()),
        ("listener", args.listener.as_ref()),
        ("address", address.as_ref()),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            query.extend(["&", name, "=", &escape(value)]);
        }
    }
    let answer = http.request("explain", Method::GET, &format!("{ACLS}/explain?{query}"), None)?;
    let decision = if answer["allowed"] == true { "allowed" } else { "denied" };
    let reason = answer["reason"].as_str().unwrap_or_default();
    let rule = match &answer["acl"] {
        Value::Null => String::new(),
        rule => {
            let text = |field: &str| rule[field].as_str().unwrap_or_default();
            let (effect, subject) = (text("effect"), text("subject"));
            format!(" ({}: {effect} {subject} {} {})", rule["id"], text("action"), text("resource"))
        }
    };
    print(&format!("{decision}: {reason}{rule}\n"))
}
