//! Starting a RabbitMQ of one's own, beside one that may run on the machine.

use super::server::Server;
use crate::Outcome;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian has the server's script: the one on PATH changes the user and the directories.
pub(super) const SCRIPT: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// What keeps packages of Debian from starting services as they are installed, as it does in containers.
const NO_SERVICES: &str = "/usr/sbin/policy-rc.d";

/// Whether installing the package has no side effects worth asking for: this is root's, and no service is started.
pub(super) fn is_installable() -> bool {
    rustix::process::geteuid().is_root()
        && Path::new(NO_SERVICES).is_file()
        && Path::new("/usr/bin/apt-get").is_file()
}

/// Starts the name server of Erlang's nodes, without which RabbitMQ does not start; by itself it would leave one behind.
///
/// # Errors
/// If it does not start.
pub(super) fn name_server(scratch: &Path, peer: &str) -> Outcome<Server> {
    Server::start(&scratch.join(format!("{peer}.names")), |port| {
        let mut command = Command::new("epmd");
        command.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
        Ok(command)
    })
}

/// The command that starts RabbitMQ on `port`, with all its files in `directory`. It takes the port two above it, too.
pub(super) fn command(
    script: &Path,
    directory: &Path,
    configuration: &Path,
    port: u16,
    names: Option<&Server>,
) -> Command {
    let mut command = Command::new(script);
    // As under systemd, the script becomes the server, so that its process is the one that is measured.
    command.env("RUNNING_UNDER_SYSTEMD", "true");
    command.env("ERL_FLAGS", "-start_epmd false");
    if let Some(names) = names {
        command.env("ERL_EPMD_PORT", names.port.to_string());
    }
    // The cookie of Erlang's nodes is there.
    command.env("HOME", directory).env("LANG", "C.UTF-8");
    command.env("RABBITMQ_NODENAME", "bench@localhost");
    command.env("RABBITMQ_DIST_PORT", (port + 2).to_string());
    command.env("RABBITMQ_CONFIG_FILE", configuration);
    let files = [
        ("RABBITMQ_CONF_ENV_FILE", "none"),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
        ("RABBITMQ_MNESIA_BASE", "mnesia"),
        ("RABBITMQ_LOG_BASE", "log"),
    ];
    command.envs(files.map(|(variable, file)| (variable, directory.join(file))));
    command
}

/// The version in the name of the directory that the script is in, such as `rabbitmq_server-3.10.8`.
pub(super) fn version(script: &Path) -> Option<String> {
    let path: PathBuf = script.canonicalize().ok()?;
    let mut names = path.iter().filter_map(|name| name.to_str());
    names.find_map(|name| name.strip_prefix("rabbitmq_server-")).map(|version| format!("RabbitMQ {version}"))
}
