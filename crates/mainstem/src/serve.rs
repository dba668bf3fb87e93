//! `mainstem serve`: start, announce, drain.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;

use log::LevelFilter;
use mainstem_broker::Shared;
use mainstem_runtime::{Options, raise_open_files_limit, shard_count, start};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::ServeArgs;
use crate::config::Config;
use crate::storage::{self, Stored};

/// Runs the broker until it is told to end.
///
/// # Errors
/// What kept it from starting, or ended it, in words for a terminal.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), String> {
    let config = Config::load(args)?;
    let level: LevelFilter = config
        .server
        .log_level
        .parse()
        .map_err(|_| format!("server.log_level: {:?}", config.server.log_level))?;
    env_logger::Builder::new().filter_level(level).format_target(false).init();
    let _lock = lock_data(Path::new(&config.server.data))?;
    let files = raise_open_files_limit();
    if files < u64::from(config.mqtt.max_connections) {
        log::info!("the system allows {files} open files, less than mqtt.max_connections");
    }
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| format!("no signals: {error}"))?;
    let options = Options {
        shards: usize::from(config.runtime.shards),
        pin: config.runtime.pin,
        send_buffer_bytes: config.runtime.send_buffer_bytes as usize,
        first_shard_connections: config.runtime.first_shard_connections as usize,
        coalesce_us: config.runtime.coalesce_us,
        listen: vec![resolve(&config.mqtt.listen)?],
        seed: RandomState::new().hash_one("mainstem"),
    };
    let shared = Shared::new(config.mqtt.clone(), shard_count(&options), options.seed);
    let restored = storage::restore(Path::new(&config.server.data), &shared, shard_count(&options))?;
    let mut shards = restored.into_iter();
    let handle = start(&options, |_, wake| {
        let Stored { shard, waker } = shards.next().expect("one for each shard");
        waker.bind(wake);
        shard
    })
    .map_err(|error| error.to_string())?;
    announce(handle.addresses()).map_err(|error| format!("stdout: {error}"))?;
    watch(signals, handle.drainer())?;
    handle.join().map_err(|error| format!("a shard has failed: {error}"))?;
    log::info!("ended");
    Ok(())
}

/// Where each door listens, for people and scripts.
fn announce(addresses: &[SocketAddr]) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for address in addresses {
        writeln!(stdout, "mqtt listening on {address}")?;
    }
    stdout.flush()
}

/// The first signal drains, the second ends the process at once.
fn watch(mut signals: Signals, drain: std::sync::Arc<dyn Fn() + Send + Sync>) -> Result<(), String> {
    let watch = move || {
        let mut seen = 0;
        for signal in signals.forever() {
            seen += 1;
            if seen > 1 {
                std::process::exit(128 + signal);
            }
            log::info!("draining; another signal ends at once");
            drain();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(|error| error.to_string())?;
    Ok(())
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found =
        address.to_socket_addrs().map_err(|error| format!("mqtt.listen: {address:?}: {error}"))?;
    found.next().ok_or_else(|| format!("mqtt.listen: {address:?} names no address"))
}

/// Makes the data directory this process's own, for as long as the lock lives.
fn lock_data(directory: &Path) -> Result<File, String> {
    let explain = |error: std::io::Error| format!("data directory {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(explain)?;
    let lock = File::create(directory.join("lock")).map_err(explain)?;
    lock.try_lock().map_err(|error| match error {
        std::fs::TryLockError::WouldBlock => {
            format!("data directory {}: another process is using it", directory.display())
        }
        std::fs::TryLockError::Error(error) => explain(error),
    })?;
    Ok(lock)
}
