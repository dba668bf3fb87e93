//! Flags of `mainstem config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Setting;
use super::queue::HttpArgs;

/// Check, show, compare and reload configurations.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// Subcommands of `mainstem config`.
#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Report all errors of a configuration; exit with 1 if there are any
    Check(ConfigSourceArgs),
    /// Print the keys that are set, as TOML, each with its origin
    Show {
        /// Which configuration.
        #[command(flatten)]
        source: ConfigSourceArgs,
        /// Print all keys, also those that have their defaults
        #[arg(long)]
        effective: bool,
    },
    /// Print the keys whose values differ from their defaults
    Diff {
        /// Which configuration.
        #[command(flatten)]
        source: ConfigSourceArgs,
        /// Compare with this file instead of the defaults
        #[arg(long, value_name = "FILE")]
        against: Option<PathBuf>,
    },
    /// Let a running broker read its configuration again, and print what has changed and what needs a restart
    Reload(Box<ConfigReloadArgs>),
    /// Print the JSON Schema of configuration files, with which editors complete and check keys
    Schema,
    /// Print the reference of all keys, docs/configuration.md
    Reference,
}

/// A configuration: a file, the environment, and settings.
#[derive(Args, Debug)]
pub(crate) struct ConfigSourceArgs {
    /// TOML configuration file [default: none, every key has its default]
    pub(crate) file: Option<PathBuf>,
    /// Override one configuration key, for example `mqtt.max_queued_messages=10`; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// Print JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

/// Flags of `mainstem config reload`.
#[derive(Args, Debug)]
pub(crate) struct ConfigReloadArgs {
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    /// Print JSON
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
}

const HELP: &str = "\
Environment variables MAINSTEM_SECTION__KEY apply as they do to the broker. Secrets are not shown.

Examples:
  mainstem config check mainstem.toml
  mainstem config show --effective mainstem.toml
  MAINSTEM_MQTT__LISTEN=0.0.0.0:1883 mainstem config diff mainstem.toml
  mainstem config reload --username admin --password secret";
