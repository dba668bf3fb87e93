//! `mainstem key`, over HTTP.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use ureq::http::Method;

use super::http::{Http, escape};
use super::table::{Table, print};
use crate::cli::{KeyArgs, KeyCommand};
use crate::tool::failure::Failure;

const KEYS: &str = "/v1/keys";

/// Runs `mainstem key`.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run(args: &KeyArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        KeyCommand::Add { user, role, description, expires } => {
            let body = json!({
                "user": user, "roles": role, "description": description, "expires_in_s": expires,
            });
            let response = http.request("key", Method::POST, KEYS, Some(&body))?;
            // Alone on its line, so that scripts can take it.
            print(&format!("{}\n", response["key"].as_str().unwrap_or_default()))
        }
        KeyCommand::List { user, json } => list(&http, user.as_deref(), *json),
        KeyCommand::Delete { id } => {
            let path = format!("{KEYS}/{}", escape(id));
            http.request(&format!("key {id}"), Method::DELETE, &path, None).map(drop)
        }
    }
}

fn list(http: &Http, user: Option<&str>, as_json: bool) -> Result<(), Failure> {
    let query = user.map(|user| format!("?user={}", escape(user))).unwrap_or_default();
    let response = http.request("keys", Method::GET, &format!("{KEYS}{query}"), None)?;
    let keys = response["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    if as_json {
        let lines: Vec<String> = keys.iter().map(|key| format!("{key}\n")).collect();
        return print(&lines.concat());
    }
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(unix.as_millis()).unwrap_or(i64::MAX);
    let mut table = Table::new(&["ID", "USER", "ROLES", "LAST USED", "EXPIRES", "DESCRIPTION"]);
    for key in keys {
        let text = |field: &str| key[field].as_str().unwrap_or_default().to_owned();
        let roles: Vec<&str> =
            key["roles"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        table.push(vec![
            text("id"),
            text("user"),
            roles.join(","),
            relative(key["last_used_ms"].as_i64(), now_ms),
            relative(key["expires_ms"].as_i64(), now_ms),
            text("description"),
        ]);
    }
    table.print()
}

/// How long ago or ahead a time is, in its largest unit.
fn relative(at_ms: Option<i64>, now_ms: i64) -> String {
    let Some(at_ms) = at_ms else { return "never".to_owned() };
    let seconds = (at_ms - now_ms) / 1000;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let (length, unit) = units.into_iter().find(|(length, _)| seconds.abs() >= *length).unwrap_or((1, "s"));
    let count = seconds.abs() / length;
    if at_ms <= now_ms { format!("{count} {unit} ago") } else { format!("in {count} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_relative_in_their_largest_unit() {
        for (at_ms, shown) in [
            (None, "never"),
            (Some(1_000_000), "0 s ago"),
            (Some(941_000), "59 s ago"),
            (Some(940_000), "1 min ago"),
            (Some(1_001_000), "in 1 s"),
            (Some(1_000_000 + 7_200_000), "in 2 h"),
            (Some(1_000_000 + 86_400_000 * 365), "in 365 d"),
        ] {
            assert_eq!(relative(at_ms, 1_000_000), shown);
        }
    }
}
