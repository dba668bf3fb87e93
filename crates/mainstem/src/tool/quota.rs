//! `mainstem quota` and `mainstem ban`, over HTTP.

use serde_json::{Map, Value};
use ureq::http::Method;

use super::http::{Http, escape};
use super::table::{Table, print};
use crate::cli::{BanArgs, BanCommand, BanSubjectArgs, EntityArgs, QuotaArgs, QuotaCommand};
use crate::tool::failure::Failure;

const QUOTAS: &str = "/v1/quotas";
const BANS: &str = "/v1/bans";

/// Runs `mainstem quota`.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run_quota(args: &QuotaArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        QuotaCommand::Set { entity, quotas } => {
            let mut body = Map::new();
            for (key, value) in quotas {
                let number: f64 =
                    value.parse().map_err(|_| Failure::new(format!("{key}: {value:?} is not a number")))?;
                body.insert(key.clone(), number.into());
            }
            let path = format!("{QUOTAS}?{}", entity.query());
            http.request("quota", Method::PATCH, &path, Some(&body.into())).map(drop)
        }
        QuotaCommand::List { json } => list_quotas(&http, *json),
        QuotaCommand::Delete { entity, quotas } => {
            let path = format!("{QUOTAS}?{}", entity.query());
            if quotas.is_empty() {
                return http.request("quota", Method::DELETE, &path, None).map(drop);
            }
            let body: Map<String, Value> = quotas.iter().map(|key| (key.clone(), Value::Null)).collect();
            http.request("quota", Method::PATCH, &path, Some(&body.into())).map(drop)
        }
    }
}

/// Runs `mainstem ban`.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run_ban(args: &BanArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        BanCommand::Add { subject, reason, duration } => {
            let mut body = Map::new();
            for (field, value) in subject.fields() {
                body.insert(field.into(), value.into());
            }
            body.insert("reason".into(), reason.as_str().into());
            if let Some(duration) = duration {
                body.insert("duration_s".into(), (*duration).into());
            }
            http.request("ban", Method::POST, BANS, Some(&body.into())).map(drop)
        }
        BanCommand::List { json } => list_bans(&http, *json),
        BanCommand::Delete { subject } => {
            let fields = subject.fields();
            let query: Vec<String> =
                fields.map(|(field, value)| format!("{field}={}", escape(value))).collect();
            let path = format!("{BANS}?{}", query.join("&"));
            http.request("ban", Method::DELETE, &path, None).map(drop)
        }
    }
}

impl EntityArgs {
    fn query(&self) -> String {
        let ip = self.ip.map(|ip| ip.to_string());
        let names = [("user", &self.user), ("client_id", &self.client_id), ("ip", &ip)];
        let names = names
            .into_iter()
            .filter_map(|(field, value)| value.as_ref().map(|value| format!("{field}={}", escape(value))));
        let defaults = [
            ("default_user", self.default_user),
            ("default_client_id", self.default_client_id),
            ("default_ip", self.default_ip),
        ];
        let defaults = defaults.into_iter().filter(|(_, is_set)| *is_set);
        names.chain(defaults.map(|(field, _)| format!("{field}=true"))).collect::<Vec<_>>().join("&")
    }
}

impl BanSubjectArgs {
    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [("user", &self.user), ("client_id", &self.client_id), ("network", &self.network)];
        fields.into_iter().filter_map(|(field, value)| Some((field, value.as_deref()?)))
    }
}

fn items<'a>(response: &'a Value, field: &str) -> &'a [Value] {
    response[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn print_lines(items: &[Value]) -> Result<(), Failure> {
    let lines: Vec<String> = items.iter().map(|item| format!("{item}\n")).collect();
    print(&lines.concat())
}

fn list_quotas(http: &Http, as_json: bool) -> Result<(), Failure> {
    let response = http.request("quotas", Method::GET, QUOTAS, None)?;
    let quotas = items(&response, "quotas");
    if as_json {
        return print_lines(quotas);
    }
    let mut table = Table::new(&["USER", "CLIENT ID", "IP", "QUOTAS"]);
    for entity in quotas {
        let text = |field: &str| match entity.get(field) {
            None => String::new(),
            Some(name) => name.as_str().unwrap_or("<default>").to_owned(),
        };
        let values = entity["quotas"].as_object().into_iter().flatten();
        let values: Vec<String> = values.map(|(key, value)| format!("{key}={value}")).collect();
        table.push(vec![text("user"), text("client_id"), text("ip"), values.join(" ")]);
    }
    table.print()
}

fn list_bans(http: &Http, as_json: bool) -> Result<(), Failure> {
    let response = http.request("bans", Method::GET, BANS, None)?;
    let bans = items(&response, "bans");
    if as_json {
        return print_lines(bans);
    }
    let mut table = Table::new(&["BANNED", "NAME", "UNTIL", "REASON"]);
    for ban in bans {
        let kind = ["user", "client_id", "network"].into_iter().find(|kind| ban.get(kind).is_some());
        let kind = kind.unwrap_or_default();
        let text = |field: &str| ban[field].as_str().unwrap_or_default().to_owned();
        let until = ban["until_ms"].as_u64().map_or_else(String::new, |until_ms| until_ms.to_string());
        table.push(vec![kind.replace('_', " "), text(kind), until, text("reason")]);
    }
    table.print()
}
