//! `mainstem serve`: start, announce, drain.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use log::LevelFilter;
use mainstem_admin::Control;
use mainstem_broker::Shared;
use mainstem_doors::{Doors, Table};
use mainstem_runtime::{Listen, Options, raise_open_files_limit, shard_count, start};
use mainstem_stream::Desk;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bindings::{Live, Wires};
use crate::cli::ServeArgs;
use crate::config::Config;
use crate::operations;
use crate::storage::{self, Common, Stored};
use crate::watched::Failing;

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
    let mut listen = vec![Listen {
        address: resolve("mqtt", &config.mqtt.listen)?,
        send_buffer_bytes: config.runtime.send_buffer_bytes as usize,
    }];
    if !config.kafka.listen.is_empty() {
        listen.push(Listen {
            address: resolve("kafka", &config.kafka.listen)?,
            send_buffer_bytes: config.kafka.send_buffer_bytes as usize,
        });
    }
    let options = Options {
        shards: usize::from(config.runtime.shards),
        pin: config.runtime.pin,
        first_shard_connections: config.runtime.first_shard_connections as usize,
        coalesce_us: config.runtime.coalesce_us,
        listen,
        seed: RandomState::new().hash_one("mainstem"),
    };
    let bound = operations::bind(&config.http)?;
    let count = shard_count(&options);
    let declared = config.bindings()?;
    let door = mainstem_stream::Config {
        bound_topics: declared.topics,
        sources: declared.sources,
        queues_auto_create: config.queues.auto_create,
        log_dir: std::path::absolute(&config.server.data)
            .map_or_else(|_| config.server.data.clone(), |path| path.display().to_string()),
        ..config.kafka.door()
    };
    let common = Common {
        mqtt: Shared::new(config.mqtt.clone(), count, options.seed),
        stream: mainstem_stream::Shared::new(door, count, Some(storage::sendable)),
        bindings: Table::new(declared.bindings),
        retention_check_ms: config.kafka.retention_check_interval_ms,
        failing: Failing::default(),
    };
    for (number, binding) in (0..).zip(&common.bindings.bindings().inbound) {
        let sink = common.mqtt.add_sink(&binding.filter);
        debug_assert_eq!(sink, number, "sinks are numbered as bindings are");
    }
    advertise(
        &common,
        &config.kafka.advertised,
        options.listen.get(Doors::KAFKA).map(|listen| &listen.address),
    )?;
    let restored = storage::restore(Path::new(&config.server.data), &common, count)?;
    let bindings = Live::new(&config, Wires::of(&common));
    let mut shards = restored.into_iter();
    let handle = start(&options, |shard, wake| {
        let Stored { doors, waker } = shards.next().expect("one for each shard");
        common.stream.bind_wake(shard, Arc::clone(&wake));
        waker.bind(wake);
        doors
    })
    .map_err(|error| error.to_string())?;
    advertise(&common, &config.kafka.advertised, handle.addresses().get(Doors::KAFKA))?;
    let drain = handle.drainer();
    let opened = config.declare_queues(&Desk::new(&common.stream)).and_then(|()| {
        bound.map(|bound| operations::open(bound, &config.http, &common, bindings)).transpose()
    });
    let control = match opened {
        Ok(control) => control,
        Err(error) => {
            drain();
            handle.join().map_err(|error| format!("a shard has failed: {error}"))?;
            return Err(error);
        }
    };
    announce(handle.addresses(), control.as_ref().map(Control::address))
        .map_err(|error| format!("stdout: {error}"))?;
    let drain_control = control.as_ref().map(Control::drainer);
    watch(signals, move || {
        if let Some(drain_control) = &drain_control {
            drain_control();
        }
        drain();
    })?;
    handle.join().map_err(|error| format!("a shard has failed: {error}"))?;
    if let Some(control) = control {
        control.end();
    }
    log::info!("ended");
    Ok(())
}

/// Where each door listens, for people and scripts: all at once, since a script may read the first line only and close
/// the pipe.
fn announce(addresses: &[SocketAddr], control: Option<SocketAddr>) -> std::io::Result<()> {
    let line = |(door, address): (&str, SocketAddr)| format!("{door} listening on {address}\n");
    let doors = ["mqtt", "kafka"].into_iter().zip(addresses.iter().copied());
    let lines: String = doors.chain(control.map(|address| ("http", address))).map(line).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes())?;
    stdout.flush()
}

/// The first signal drains, the second ends the process at once.
fn watch(mut signals: Signals, drain: impl Fn() + Send + 'static) -> Result<(), String> {
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

/// Tells the Kafka door what to tell its clients: `advertised`, or else where it listens.
fn advertise(common: &Common, advertised: &str, listen: Option<&SocketAddr>) -> Result<(), String> {
    let Some(listen) = listen else { return Ok(()) };
    if advertised.is_empty() {
        let host = if listen.ip().is_unspecified() { machine_name() } else { listen.ip().to_string() };
        common.stream.advertise(&host, listen.port());
        return Ok(());
    }
    let parts = advertised.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| format!("kafka.advertised: {advertised:?} is not HOST:PORT"))?;
    common.stream.advertise(host.trim_start_matches('[').trim_end_matches(']'), port);
    Ok(())
}

/// What others may find this machine by.
fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The first address of a name.
pub(crate) fn resolve(door: &str, address: &str) -> Result<SocketAddr, String> {
    let mut found =
        address.to_socket_addrs().map_err(|error| format!("{door}.listen: {address:?}: {error}"))?;
    found.next().ok_or_else(|| format!("{door}.listen: {address:?} names no address"))
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
