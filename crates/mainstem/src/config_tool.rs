//! `mainstem config check`, `show`, `diff` and `schema`: configurations on this machine, without a broker.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::{ConfigArgs, ConfigCommand, ConfigSourceArgs, ServeArgs};
use crate::config::{self, Change, Entry, Loaded, Origin, Problems, Step};
use crate::listeners::Certificates;
use crate::tool;

/// Runs `mainstem config`.
pub(crate) fn run(args: &ConfigArgs) -> ExitCode {
    let outcome = match &args.command {
        ConfigCommand::Check(source) => return check(source),
        ConfigCommand::Show { source, effective } => {
            load(source).map(|loaded| show(&loaded, *effective, source.json))
        }
        ConfigCommand::Diff { source, against } => diff(source, against.as_ref()),
        ConfigCommand::Reload(args) => return tool::reload_config(args),
        ConfigCommand::Schema => Ok(format!("{:#}\n", config::schema())),
        ConfigCommand::Reference => Ok(config::reference()),
    };
    conclude(outcome.and_then(|text| print(&text)))
}

fn conclude(outcome: Result<(), String>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("mainstem config: {error}");
    ExitCode::FAILURE
}

fn print(text: &str) -> Result<(), String> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("stdout: {error}"))
}

fn arguments(source: &ConfigSourceArgs) -> ServeArgs {
    ServeArgs { config: source.file.clone(), set: source.set.clone(), ..ServeArgs::default() }
}

fn load(source: &ConfigSourceArgs) -> Result<Loaded, String> {
    config::load(&arguments(source)).map_err(|problems| problems.to_string())
}

/// Reports all errors. Files that the configuration names are read once it has none itself.
fn check(source: &ConfigSourceArgs) -> ExitCode {
    let checked = config::load(&arguments(source)).and_then(|loaded| {
        let (certificates, users) =
            (Certificates::load(&loaded.config.listener), loaded.config.security.configured_users());
        let errors = [certificates.err(), users.err()];
        let problems: Vec<_> = errors.into_iter().flatten().map(config::Problem::of_file).collect();
        if problems.is_empty() { Ok(()) } else { Err(Problems { file: loaded.file, problems }) }
    });
    let is_valid = checked.is_ok();
    let text = match (&checked, source.json) {
        (Ok(()), false) => "no errors\n".to_owned(),
        (Ok(()), true) => format!("{}\n", json!({ "errors": [] })),
        (Err(problems), true) => format!("{}\n", problems_json(problems)),
        (Err(problems), false) => {
            eprintln!("{problems}");
            String::new()
        }
    };
    match print(&text) {
        Ok(()) if is_valid => ExitCode::SUCCESS,
        outcome => {
            conclude(outcome);
            ExitCode::FAILURE
        }
    }
}

fn problems_json(problems: &Problems) -> Value {
    let errors = problems.problems.iter().map(|problem| {
        let mut error = json!({ "message": problem.message });
        match &problem.origin {
            Some(Origin::File(span)) => {
                let (line, column) = problems.file.position(span.start);
                error["file"] = problems.file.path.as_str().into();
                error["line"] = line.into();
                error["column"] = column.into();
            }
            Some(Origin::Environment(name)) => error["variable"] = name.as_str().into(),
            Some(Origin::Flag(flag)) => error["flag"] = flag.as_str().into(),
            None => {}
        }
        error
    });
    json!({ "errors": errors.collect::<Vec<_>>() })
}

/// The configuration as TOML with a comment per line, or as JSON. Keys with their defaults are left out unless
/// `effective`.
fn show(loaded: &Loaded, effective: bool, as_json: bool) -> String {
    let entries: Vec<Entry> = config::entries(loaded)
        .into_iter()
        .filter(|entry| effective || loaded.origin(&entry.path).is_some())
        .collect();
    if as_json {
        let keys = entries.iter().map(|entry| {
            let mut key = json!({ "key": entry.path.to_string(), "value": shown_json(entry) });
            let origin = loaded.origin_text(&entry.path);
            key["origin"] = if origin.is_empty() { "default".into() } else { origin.into() };
            key
        });
        return format!("{}\n", json!({ "keys": keys.collect::<Vec<_>>() }));
    }
    let (mut text, mut header) = (String::new(), String::new());
    for entry in &entries {
        let (new_header, key) = place(entry);
        if header != new_header.0 {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.extend([gap, &new_header.1, "\n"]);
            header = new_header.0;
        }
        let origin = loaded.origin_text(&entry.path);
        let origin = if origin.is_empty() { "default" } else { &origin };
        text.extend([&key, " = ", &entry.shown(), " # ", origin, "\n"]);
    }
    text
}

/// The table that an entry is in, as an identifier and as a header of TOML; and its key there.
fn place(entry: &Entry) -> ((String, String), String) {
    let section = entry.path.section();
    let item = entry.path.enclosing_item();
    let steps = &entry.path.0[if item.is_some() { 2 } else { 1 }..];
    let key: Vec<String> = steps
        .iter()
        .map(|step| match step {
            Step::Key(key) => config::key_literal(key),
            Step::Index(index) => index.to_string(),
        })
        .collect();
    let table = match item {
        Some(item) => (item.to_string(), format!("[[{section}]]")),
        None => (section.to_owned(), format!("[{section}]")),
    };
    (table, key.join("."))
}

/// A value as JSON. Only arrays that contain tables, and special floats, differ from TOML: they become text.
fn shown_json(entry: &Entry) -> Value {
    let shown = entry.shown();
    serde_json::from_str(&shown).unwrap_or(Value::String(shown))
}

fn diff(source: &ConfigSourceArgs, against: Option<&PathBuf>) -> Result<String, String> {
    let after = load(source)?;
    let before = match against {
        None => Loaded::default(),
        Some(path) => {
            let args = ServeArgs { config: Some(path.clone()), ..ServeArgs::default() };
            config::load(&args).map_err(|problems| problems.to_string())?
        }
    };
    let changes = config::changes(&config::entries(&before), &config::entries(&after));
    if source.json {
        let changes: Vec<Value> = changes.iter().map(change_json).collect();
        return Ok(format!("{}\n", json!({ "changes": changes })));
    }
    let lines = changes.iter().map(|change| {
        let line = |sign: char, entry: &Option<Entry>, comment: String| {
            let shown =
                entry.as_ref().map(|entry| format!("{sign}{} = {}{comment}\n", change.path, entry.shown()));
            shown.unwrap_or_default()
        };
        let origin = after.origin_text(&change.path);
        let comment = if origin.is_empty() { String::new() } else { format!(" # {origin}") };
        line('-', &change.before, String::new()) + &line('+', &change.after, comment)
    });
    Ok(lines.collect())
}

fn change_json(change: &Change) -> Value {
    json!({
        "key": change.path.to_string(),
        "before": change.before.as_ref().map(shown_json),
        "after": change.after.as_ref().map(shown_json),
    })
}
