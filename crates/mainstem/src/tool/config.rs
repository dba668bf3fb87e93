//! `mainstem config reload`, over HTTP.

use serde_json::Value;
use ureq::http::Method;

use super::http::Http;
use super::table::print;
use crate::cli::ConfigReloadArgs;
use crate::tool::failure::Failure;

/// Runs `mainstem config reload`.
///
/// # Errors
/// If the broker does not answer, or the configuration is invalid.
pub(super) fn reload(args: &ConfigReloadArgs) -> Result<(), Failure> {
    let report =
        Http::new(&args.http)?.request("nothing has changed", Method::POST, "/v1/config/reload", None)?;
    if args.json {
        return print(&format!("{report}\n"));
    }
    let list = |field: &str| report[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("absent").to_owned();
    let applied = list("applied").iter().map(|change| {
        format!(
            "applied: {} = {} (was {})\n",
            text(&change["key"]),
            text(&change["after"]),
            text(&change["before"])
        )
    });
    let files = list("files").iter().map(|file| format!("read again: {}\n", text(file)));
    let restart = list("restart").iter().map(|change| {
        format!(
            "needs a restart: {} = {} (is {})\n",
            text(&change["key"]),
            text(&change["after"]),
            text(&change["before"])
        )
    });
    let lines: String = applied.chain(files).chain(restart).collect();
    print(if lines.is_empty() { "nothing has changed\n" } else { &lines })
}
