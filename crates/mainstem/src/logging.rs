//! The log: its section of the configuration, its format, and its level, which changes at run time.
//!
//! `env_logger` formats lines; its filter is fixed once it is built. A change builds another logger and swaps it in, so
//! that a thread that logs takes a read lock and nothing else.

use std::io::Write;
use std::sync::{Arc, PoisonError, RwLock};

use log::{LevelFilter, Log, Metadata, Record};
use mainstem_mqtt_server::{choices, settings};
use serde::{Deserialize, Serialize};

settings! {
    /// The log, on standard error.
    pub struct LogConfig {
        /// Level: off, error, warn, info, debug, or trace. Levels of modules follow after commas:
        /// `info,mainstem_kafka_server=debug`. The longest module that a line's module begins with decides.
        level: String = "info", [reloadable];
        /// `text`, or `json`: one object per line, with `time`, `level`, `module`, `thread` and `message`.
        format: LogFormat = LogFormat::Text, one of "\"text\", \"json\"", [reloadable];
    }
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

choices!(LogFormat);

impl LogFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl LogConfig {
    /// Checks what the bounds leave open.
    pub(crate) fn check_more(&self) -> Result<(), (&'static str, String)> {
        parse_levels(&self.level).map(drop).map_err(|error| ("level", error))
    }
}

/// Levels of modules; the one without a module is the default.
type Levels = Vec<(Option<String>, LevelFilter)>;

/// Parses `LEVEL,MODULE=LEVEL,…`.
///
/// # Errors
/// Names the invalid part.
fn parse_levels(text: &str) -> Result<Levels, String> {
    let mut levels: Levels = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (module, level) = match part.split_once('=') {
            Some((module, level)) => (Some(module.trim().to_owned()), level.trim()),
            None => (None, part),
        };
        let level = level.parse().map_err(|_| {
            format!("{part:?}: expected off, error, warn, info, debug or trace, or MODULE=LEVEL")
        })?;
        let is_module = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte))
        };
        if module.as_ref().is_some_and(|name| !is_module(name)) {
            return Err(format!("{part:?}: expected a module such as mainstem_kafka_server"));
        }
        // The last one for a module counts.
        levels.retain(|(other, _)| *other != module);
        levels.push((module, level));
    }
    if !levels.iter().any(|(module, _)| module.is_none()) {
        return Err("a level for all other modules is missing, such as info".into());
    }
    Ok(levels)
}

/// A line in the format `json`, in the order of its fields.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    level: &'a str,
    module: &'a str,
    thread: &'a str,
    message: String,
}

/// What the log does at present.
struct Current {
    logger: env_logger::Logger,
    level: String,
    format: LogFormat,
}

impl Current {
    fn build(level: &str, format: LogFormat) -> Result<Self, String> {
        let mut builder = env_logger::Builder::new();
        builder.format_target(false);
        for (module, filter) in parse_levels(level)? {
            builder.filter(module.as_deref(), filter);
        }
        if format == LogFormat::Json {
            builder.format(|out, record| {
                let thread = std::thread::current();
                let line = Line {
                    time: out.timestamp_micros().to_string(),
                    level: record.level().as_str(),
                    module: record.target(),
                    thread: thread.name().unwrap_or_default(),
                    message: record.args().to_string(),
                };
                writeln!(out, "{}", serde_json::to_string(&line)?)
            });
        }
        Ok(Self { logger: builder.build(), level: level.to_owned(), format })
    }
}

/// The log of the process.
pub(crate) struct LogControl(RwLock<Current>);

struct Logger(Arc<LogControl>);

impl LogControl {
    /// Logs to standard error from now on.
    ///
    /// # Errors
    /// The level is invalid, or the process logs already.
    pub(crate) fn start(config: &LogConfig) -> Result<Arc<Self>, String> {
        let current = Current::build(&config.level, config.format)?;
        let filter = current.logger.filter();
        let control = Arc::new(Self(RwLock::new(current)));
        log::set_boxed_logger(Box::new(Logger(Arc::clone(&control)))).map_err(|error| error.to_string())?;
        log::set_max_level(filter);
        Ok(control)
    }

    /// Replaces level and format.
    ///
    /// # Errors
    /// The level is invalid. The one in use stays.
    pub(crate) fn set(&self, level: &str, format: LogFormat) -> Result<(), String> {
        let current = Current::build(level, format)?;
        let filter = current.logger.filter();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = current;
        log::set_max_level(filter);
        Ok(())
    }

    /// Level and format, as in the configuration.
    pub(crate) fn level_and_format(&self) -> (String, LogFormat) {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        (current.level.clone(), current.format)
    }

    /// Level and format for the HTTP API.
    pub(crate) fn show(&self) -> serde_json::Value {
        let (level, format) = self.level_and_format();
        serde_json::json!({ "level": level, "format": format.name() })
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0.0.read().unwrap_or_else(PoisonError::into_inner).logger.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.0.0.read().unwrap_or_else(PoisonError::into_inner).logger.log(record);
    }

    fn flush(&self) {
        self.0.0.read().unwrap_or_else(PoisonError::into_inner).logger.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_of_modules_and_of_all_others() {
        let module = |name: &str| Some(name.to_owned());
        assert_eq!(
            parse_levels("info, mainstem_disk::read = trace,mainstem_auth=off"),
            Ok(vec![
                (None, LevelFilter::Info),
                (module("mainstem_disk::read"), LevelFilter::Trace),
                (module("mainstem_auth"), LevelFilter::Off),
            ])
        );
        assert_eq!(parse_levels("info,a=off,warn,a=debug"), parse_levels("warn,a=debug"));
        for (text, error) in [
            ("loud", "\"loud\": expected off, error"),
            ("", "\"\": expected off, error"),
            ("info,mainstem_disk", "\"mainstem_disk\": expected off"),
            ("mainstem_disk=debug", "a level for all other modules is missing"),
            ("info,=debug", "\"=debug\": expected a module"),
        ] {
            let found = parse_levels(text).unwrap_err();
            assert!(found.starts_with(error), "{text}: {found}");
        }
    }

    #[test]
    fn the_longest_module_decides() {
        let current = Current::build("warn,a=info,a::b=trace", LogFormat::Text).unwrap();
        let is_enabled = |level: log::Level, target: &str| {
            current.logger.enabled(&Metadata::builder().level(level).target(target).build())
        };
        assert!(is_enabled(log::Level::Trace, "a::b::c") && is_enabled(log::Level::Info, "a::x"));
        assert!(!is_enabled(log::Level::Debug, "a::x") && !is_enabled(log::Level::Info, "other"));
    }
}
