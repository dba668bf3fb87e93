//! Flags of `mainstem quota` and `mainstem ban`.

use std::net::IpAddr;

use clap::{ArgGroup, Args, Subcommand};

use super::connect::parse_pair;
use super::queue::HttpArgs;

/// Set, show and delete quotas of users, client ids and addresses.
#[derive(Args, Debug)]
#[command(after_help = QUOTA_HELP)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    pub(crate) command: QuotaCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem quota`.
#[derive(Subcommand, Debug)]
pub(crate) enum QuotaCommand {
    /// Set quotas; others of the same user, client id or address stay
    Set {
        /// The user, client id or address.
        #[command(flatten)]
        entity: EntityArgs,
        /// Quotas, such as `publish_rate=100`
        #[arg(required = true, value_name = "QUOTA=VALUE", value_parser = parse_pair)]
        quotas: Vec<(String, String)>,
    },
    /// Print all quotas
    List {
        /// Print the quotas of each user, client id or address as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Delete quotas
    Delete {
        /// The user, client id or address.
        #[command(flatten)]
        entity: EntityArgs,
        /// Quotas to delete, such as `publish_rate`; without any, all
        #[arg(value_name = "QUOTA")]
        quotas: Vec<String>,
    },
}

/// The user, client id or address of quotas.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("entity").required(true).multiple(true).args([
    "user", "default_user", "client_id", "default_client_id", "ip", "default_ip",
]))]
pub(crate) struct EntityArgs {
    /// This user; ANONYMOUS for clients without one
    #[arg(long, value_name = "NAME", conflicts_with = "default_user")]
    pub(crate) user: Option<String>,
    /// Each user without a quota of its own
    #[arg(long)]
    pub(crate) default_user: bool,
    /// This client id; with --user, of this user only
    #[arg(long, value_name = "ID", conflicts_with = "default_client_id")]
    pub(crate) client_id: Option<String>,
    /// Each client id without a quota of its own
    #[arg(long)]
    pub(crate) default_client_id: bool,
    /// This address
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["user", "default_user", "client_id", "default_client_id", "default_ip"])]
    pub(crate) ip: Option<IpAddr>,
    /// Each address without a quota of its own
    #[arg(long, conflicts_with_all = ["user", "default_user", "client_id", "default_client_id"])]
    pub(crate) default_ip: bool,
}

/// Ban users, client ids and networks.
#[derive(Args, Debug)]
#[command(after_help = BAN_HELP)]
pub(crate) struct BanArgs {
    #[command(subcommand)]
    pub(crate) command: BanCommand,
    /// Connection flags.
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Subcommands of `mainstem ban`.
#[derive(Subcommand, Debug)]
pub(crate) enum BanCommand {
    /// Add a ban, and disconnect its clients
    Add {
        /// Who is banned.
        #[command(flatten)]
        subject: BanSubjectArgs,
        /// Why, for those who read the list
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// End the ban after so many seconds
        #[arg(long, value_name = "SECONDS")]
        duration: Option<u32>,
    },
    /// Print all bans
    List {
        /// Print each ban as one line of JSON
        #[arg(short = 'J', long)]
        json: bool,
    },
    /// Delete a ban
    Delete {
        /// Who is banned.
        #[command(flatten)]
        subject: BanSubjectArgs,
    },
}

/// Who is banned.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("subject").required(true).args(["user", "client_id", "network"]))]
pub(crate) struct BanSubjectArgs {
    /// This user
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// This client id
    #[arg(long, value_name = "ID")]
    pub(crate) client_id: Option<String>,
    /// This address or network, such as 192.0.2.0/24
    #[arg(long, value_name = "NETWORK")]
    pub(crate) network: Option<String>,
}

const QUOTA_HELP: &str = "\
Quotas per second: producer_byte_rate, consumer_byte_rate, controller_mutation_rate of Kafka clients; publish_rate and
publish_byte_rate of MQTT clients; http_request_rate; connection_creation_rate of addresses. request_percentage is the
share of one shard's time that Kafka requests may take.

Examples:
  mainstem quota set --user alice publish_rate=100 producer_byte_rate=1048576
  mainstem quota set --default-client-id publish_rate=10
  mainstem quota set --default-ip connection_creation_rate=20
  mainstem quota delete --user alice publish_rate";

const BAN_HELP: &str = "\
Examples:
  mainstem ban add --client-id press-7 --reason 'sends nonsense' --duration 3600
  mainstem ban add --network 192.0.2.0/24
  mainstem ban delete --client-id press-7";
