//! Flags of `mainstem key`.

use clap::{Args, Subcommand};

use super::queue::HttpArgs;

/// Add, show and delete API keys, with which programs log in.
#[derive(Args, Debug)]
#[command(after_help = KEY_HELP)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem key`.
#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Add a key and print it, which nothing does again
    Add {
        /// The user that the key logs in as
        user: String,
        /// Let the key do only what the rules of this role of the user allow; may be repeated
        #[arg(long, value_name = "ROLE")]
        role: Vec<String>,
        /// What the key is for, for those who read the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        /// End the key after so many seconds
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
        expires: Option<u32>,
    },
    /// Print all keys, without their secrets
    List {
        /// Only the keys of this user
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// Print each key as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Delete a key, and disconnect who has logged in with it
    Delete {
        /// Identifier of the key, as `list` prints it
        id: String,
    },
}

const KEY_HELP: &str = "\
A key is the password of its user for MQTT, for SASL PLAIN and for HTTP basic authentication, or a bearer token.

Examples:
  mainstem key add press-7 --description 'press 7, line 2' --expires 31536000
  mainstem key add ci --role readers
  mainstem key list --user press-7
  mainstem key delete 0123456789abcdef";
