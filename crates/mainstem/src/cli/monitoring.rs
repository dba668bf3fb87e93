//! Flags of `mainstem monitoring`.

use clap::{Args, Subcommand, ValueEnum};

const AFTER_HELP: &str = "\
Examples:
  mainstem monitoring dashboard overview > mainstem-overview.json
  mainstem monitoring alerts > /etc/prometheus/mainstem.rules.yml

docs/monitoring.md tells where the files belong.";

/// Print dashboards for Grafana and alerts for Prometheus.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP, arg_required_else_help = true)]
pub(crate) struct MonitoringArgs {
    #[command(subcommand)]
    pub(crate) command: MonitoringCommand,
}

/// What to print.
#[derive(Subcommand, Debug)]
pub(crate) enum MonitoringCommand {
    /// Print a dashboard that Grafana imports (JSON)
    Dashboard {
        /// Which one
        name: DashboardArg,
    },
    /// Print alerting rules for Prometheus (YAML)
    Alerts,
}

/// A dashboard.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub(crate) enum DashboardArg {
    /// Connections, load, event loops, disk, memory
    Overview,
    /// Sessions, publishes, drops, queues of sessions
    Mqtt,
    /// Requests, records, topics
    Kafka,
    /// Work queues and their groups
    Queues,
}

impl DashboardArg {
    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Mqtt => "mqtt",
            Self::Kafka => "kafka",
            Self::Queues => "queues",
        }
    }
}
