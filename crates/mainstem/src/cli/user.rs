//! Flags of `mainstem user` and `mainstem acl`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::queue::HttpArgs;

/// Add, show, change and delete users.
#[derive(Args, Debug)]
#[command(after_help = USER_HELP)]
pub(crate) struct UserArgs {
    #[command(subcommand)]
    pub(crate) command: UserCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem user`.
#[derive(Subcommand, Debug)]
pub(crate) enum UserCommand {
    /// Add a user
    Add {
        /// Name of the user
        name: String,
        /// Where the password comes from.
        #[command(flatten)]
        password: NewPasswordArgs,
        /// Give the user this role; may be repeated
        #[arg(long, value_name = "ROLE")]
        role: Vec<String>,
        /// Write to this data directory, which no broker uses, instead of asking a broker
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
    },
    /// Print all users
    List {
        /// Print each user as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Change the password of a user
    Passwd {
        /// Name of the user
        name: String,
        /// Where the password comes from.
        #[command(flatten)]
        password: NewPasswordArgs,
    },
    /// Replace the roles of a user
    Role {
        /// Name of the user
        name: String,
        /// The roles; none to take all away
        roles: Vec<String>,
    },
    /// Delete a user
    Delete {
        /// Name of the user
        name: String,
    },
    /// Keep a user from logging in
    Disable {
        /// Name of the user
        name: String,
    },
    /// Let a disabled user log in again
    Enable {
        /// Name of the user
        name: String,
    },
}

/// Where the password of a user comes from.
#[derive(Args, Debug)]
pub(crate) struct NewPasswordArgs {
    /// The password, which other users of this machine may see; without this flag, it is the first line of standard
    /// input
    #[arg(long, value_name = "PASSWORD")]
    pub(crate) new_password: Option<String>,
}

/// Add, show, delete and explain access rules.
#[derive(Args, Debug)]
#[command(after_help = ACL_HELP)]
pub(crate) struct AclArgs {
    #[command(subcommand)]
    pub(crate) command: AclCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem acl`.
#[derive(Subcommand, Debug)]
pub(crate) enum AclCommand {
    /// Add rules, one for each action
    Add(AclAddArgs),
    /// Print all rules
    List {
        /// Print each rule as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Delete a rule
    Delete {
        /// Identifier of the rule, as `list` prints it
        id: u64,
    },
    /// Say whether an action is allowed, and which rule decides
    Explain(AclExplainArgs),
}

/// Flags of `mainstem acl add`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("subject").required(true).args(["user", "role", "anonymous", "everyone"]))]
#[command(group = ArgGroup::new("effect").required(true).args(["allow", "deny"]))]
pub(crate) struct AclAddArgs {
    /// The rule applies to this user
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// The rule applies to users with this role
    #[arg(long, value_name = "NAME")]
    pub(crate) role: Option<String>,
    /// The rule applies to clients without a user
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// The rule applies to everyone
    #[arg(long)]
    pub(crate) everyone: bool,
    /// Actions to allow; `*` for all
    #[arg(long, value_name = "ACTION,…", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Actions to deny; `*` for all
    #[arg(long, value_name = "ACTION,…", value_delimiter = ',')]
    pub(crate) deny: Vec<String>,
    /// Objects: mqtt:FILTER, KIND:NAME, KIND:PREFIX*, cluster, or * for everything
    pub(crate) resource: String,
    /// Only connections of this listener
    #[arg(long, value_name = "NAME")]
    pub(crate) listener: Option<String>,
    /// Only connections from this network, such as 192.0.2.0/24
    #[arg(long, value_name = "NETWORK")]
    pub(crate) network: Option<String>,
}

/// Flags of `mainstem acl explain`.
#[derive(Args, Debug)]
pub(crate) struct AclExplainArgs {
    /// Name of the user; `anonymous` for a client without one
    pub(crate) user: String,
    /// The action
    pub(crate) action: String,
    /// One object, such as mqtt:plant/7/temp, topic:orders or cluster
    pub(crate) resource: String,
    /// Client identifier of MQTT
    #[arg(long, value_name = "ID")]
    pub(crate) client_id: Option<String>,
    /// Name of the listener
    #[arg(long, value_name = "NAME")]
    pub(crate) listener: Option<String>,
    /// Address of the client
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Option<IpAddr>,
}

const USER_HELP: &str = "\
The first user of a broker is added from its own machine. From then on, the API needs --username and --password.

Examples:
  echo secret | mainstem user add alice
  echo secret | mainstem user add alice --data ./data
  mainstem user list --username alice --password secret";

const ACL_HELP: &str = "\
Without rules, every user may do everything. As soon as there is a rule, what no rule allows is denied. A rule that
denies wins. ${user} and ${clientid} in a filter stand for those of the connection.

Actions: connect; publish and subscribe on mqtt; produce, consume, create, delete, alter, describe, describe-configs and
alter-configs on topic; group on group; send, receive, manage and describe on queue; produce on transactional-id; bind,
admin-read and admin-write on cluster; * for all.

Examples:
  mainstem acl add --user alice --allow publish,subscribe 'mqtt:plant/${user}/#'
  mainstem acl add --role ops --allow '*' '*'
  mainstem acl explain alice publish mqtt:plant/alice/temp";
