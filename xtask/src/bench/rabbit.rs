//! Starts a private RabbitMQ, isolated from one that may already run on the machine.

use super::server::Server;
use crate::Outcome;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's path of the server script. The script on PATH switches users and directories.
pub(super) const SCRIPT: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// File that stops Debian packages from starting services on installation, as in containers.
const NO_SERVICES: &str = "/usr/sbin/policy-rc.d";

/// Whether the package can be installed without side effects: as root, and without starting a service.
pub(super) fn is_installable() -> bool {
    rustix::process::geteuid().is_root()
        && Path::new(NO_SERVICES).is_file()
        && Path::new("/usr/bin/apt-get").is_file()
}

/// Starts Erlang's port mapper daemon, which RabbitMQ requires. RabbitMQ would start its own and leave it running.
///
/// # Errors
/// If it does not start.
pub(super) fn start_epmd(scratch: &Path, peer: &str) -> Outcome<Server> {
    Server::start(&scratch.join(format!("{peer}.epmd")), |port| {
        let mut command = Command::new("epmd");
        command.args(["-address", "127.0.0.1", "-port", &port.to_string()]);
        Ok(command)
    })
}

/// Command that starts RabbitMQ on `port`, with all files in `directory`. It also uses port `port + 2`.
pub(super) fn command(
    script: &Path,
    directory: &Path,
    configuration: &Path,
    port: u16,
    epmd: Option<&Server>,
) -> Command {
    let mut command = Command::new(script);
    // As under systemd, the script then execs the server, so that the measured process is the server.
    command.env("RUNNING_UNDER_SYSTEMD", "true");
    command.env("ERL_FLAGS", "-start_epmd false");
    if let Some(epmd) = epmd {
        command.env("ERL_EPMD_PORT", epmd.port.to_string());
    }
    // Erlang stores its node cookie in HOME.
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

/// Version from the directory name of the script, such as `rabbitmq_server-3.10.8`.
pub(super) fn version(script: &Path) -> Option<String> {
    let path: PathBuf = script.canonicalize().ok()?;
    let mut names = path.iter().filter_map(|name| name.to_str());
    names.find_map(|name| name.strip_prefix("rabbitmq_server-")).map(|version| format!("RabbitMQ {version}"))
}
