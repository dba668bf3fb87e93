//! `mainstem serve`: starts the broker, prints its addresses, and drains it on a signal.
//!
//! The data directory is locked and the HTTP address bound before the state is restored, so that a second process fails
//! early. Addresses are printed only once the broker serves clients. Shutdown has an order: the HTTP API ends requests
//! that wait for messages, the shards drain, and then the HTTP API closes, so that its requests in flight still get
//! replies.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstem_admin::{Bound, HttpServer};
use mainstem_auth::Host;
use mainstem_kafka_server::{ListenerSettings, Security};
use mainstem_mqtt_server::Shared;
use mainstem_node::{BindingTable, Snapshots};
use mainstem_runtime::{
    Admission, AdmissionLimits, ListenerAddress, Options, Wake, raise_open_files_limit, return_free_memory,
    shard_count, start,
};
use mainstem_security::SecurityHost;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::bindings::{BindingManager, BindingTargets};
use crate::cli::ServeArgs;
use crate::commit_times::CommitTimes;
use crate::config::{self, Config};
use crate::descriptors::{DescriptorPlan, Wanted};
use crate::health_store::FailingLogs;
use crate::listeners::{self, Certificates, advertise, announce};
use crate::logging::LogControl;
use crate::memory;
use crate::operations::{self, Managers};
use crate::process_metrics;
use crate::queues::declare_queues;
use crate::reload::{ReloadableParts, Reloader};
use crate::security::{self, Gate};
use crate::snapshots::SnapshotManager;
use crate::storage::{self, RestoredShard, SharedState};

/// Runs the broker until a signal ends it.
///
/// # Errors
/// A message for the user: why the broker could not start, or why it ended.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), String> {
    process_metrics::note_start();
    let loaded = config::load(args).map_err(|problems| problems.to_string())?;
    let (entries, mut config) = (config::entries(&loaded), loaded.config);
    let log = LogControl::start(&config.log)?;
    security::create_private_files();
    let _lock = security::lock_data(Path::new(&config.server.data))?;
    let plan = share_descriptors(&mut config)?;
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|error| format!("no signals: {error}"))?;
    let certificates = Certificates::load(&config.listener)?;
    let options = options(&config, &plan, &certificates)?;
    let http = operations::bind(&config, &certificates)?;
    let security = open_security(&config, &options, &http)?;
    let count = shard_count(options.shards);
    return_free_memory(Arc::clone(&options.memory)).map_err(|error| format!("no thread: {error}"))?;
    let shared = shared_state(&config, &options, Arc::clone(&security) as Arc<dyn SecurityHost>)?;
    let asked = options.listeners.iter().map(|listener| (listener.name.as_str(), &listener.address));
    advertise(&shared.kafka, &config, asked)?;
    let data = Path::new(&config.server.data);
    let restored = storage::restore(data, &shared, count, plan.segments_per_store)?;
    shared.kafka.audit_topic_error().map_or(Ok(()), Err)?;
    let snapshots = SnapshotManager::new(data, &shared, &security)?;
    let bindings = BindingManager::new(&config, BindingTargets::of(&shared));
    let mut shards = restored.into_iter();
    let handle = start(&options, |shard, wake| {
        let RestoredShard { service, waker } = shards.next().expect("one for each shard");
        shared.bind_wake(shard, &wake);
        waker.bind(wake);
        service
    })
    .map_err(|error| error.to_string())?;
    let bound = handle.listeners().iter().map(|listener| (listener.name.as_str(), &listener.address));
    advertise(&shared.kafka, &config, bound)?;
    let drain = handle.drainer();
    let interval = Duration::from_secs(config.server.certificate_check_interval_s.into());
    let certificate_interval = certificates.watch(interval).map_err(|error| error.to_string())?;
    let parts = ReloadableParts { log, certificates, certificate_interval, security };
    let reloader = Reloader::new(args.clone(), entries, parts);
    let open_http = |bound, bindings| {
        let (admission, host) = (Arc::clone(&options.admission), Arc::clone(&reloader));
        let (times, certificates) = (handle.turn_times(), reloader.certificates().clone());
        let managers = Managers { bindings, config: host, snapshots };
        operations::open(bound, &config.http, &shared, managers, admission, times, certificates)
    };
    let opened = declare_queues(&config.queue, &shared.kafka.queue_client())
        .and_then(|()| (!http.is_empty()).then(|| open_http(http, bindings)).transpose());
    let http = match opened {
        Ok(http) => http,
        Err(error) => {
            drain();
            handle.join().map_err(|error| format!("a shard has failed: {error}"))?;
            return Err(error);
        }
    };
    announce(handle.listeners(), http.as_ref().map_or(&[], HttpServer::addresses))
        .map_err(|error| format!("stdout: {error}"))?;
    let drain_http = http.as_ref().map(HttpServer::drainer);
    watch(signals, reloader, move || {
        if let Some(drain_http) = &drain_http {
            drain_http();
        }
        drain();
    })?;
    handle.join().map_err(|error| format!("a shard has failed: {error}"))?;
    if let Some(http) = http {
        http.end();
    }
    log::info!("ended");
    Ok(())
}

impl SharedState {
    /// Lets everything that has work for a shard wake it.
    fn bind_wake(&self, shard: usize, wake: &Wake) {
        self.kafka.bind_wake(shard, Arc::clone(wake));
        self.mqtt.bind_wake(shard, Arc::clone(wake));
        self.snapshots.bind_wake(Arc::clone(wake));
    }
}

/// Shares the descriptors that the system allows, and lowers `mqtt.max_connections` to what fits.
fn share_descriptors(config: &mut Config) -> Result<DescriptorPlan, String> {
    let wanted = Wanted {
        mqtt: config.mqtt.max_connections as usize,
        kafka: if config.kafka.listen.is_empty() { 0 } else { config.kafka.max_connections as usize },
        http: if operations::is_enabled(config) { operations::descriptors_max(&config.http) } else { 0 },
        stores: storage::count_stores(
            Path::new(&config.server.data),
            shard_count(usize::from(config.runtime.shards)),
        ),
    };
    let plan = DescriptorPlan::new(raise_open_files_limit(), wanted)?;
    plan.log(wanted);
    config.mqtt.max_connections = u32::try_from(plan.mqtt).unwrap_or(u32::MAX);
    Ok(plan)
}

/// Options of the runtime.
fn options(config: &Config, plan: &DescriptorPlan, certificates: &Certificates) -> Result<Options, String> {
    let admission = AdmissionLimits {
        connections_max: plan.connections,
        connections_hint: plan.hint(),
        per_address_max: config.server.max_connections_per_address as usize,
        per_address_key: "server.max_connections_per_address",
        per_address_rate_max: config.server.max_connection_rate_per_address,
        per_address_rate_key: "server.max_connection_rate_per_address",
    };
    Ok(Options {
        shards: usize::from(config.runtime.shards),
        pin: config.runtime.pin.into(),
        first_shard_connections: config.runtime.first_shard_connections as usize,
        coalesce_us: config.runtime.coalesce_us,
        flush_delay_us: config.runtime.flush_delay_us,
        listeners: listeners::table(config, plan, certificates)?,
        admission: Admission::new(admission),
        handshakes_max: config.server.max_handshakes as usize,
        handshake_timeout: Duration::from_millis(config.server.handshake_timeout_ms.into()),
        seed: RandomState::new().hash_one("mainstem"),
        memory: memory::budget(&config.memory, shard_count(usize::from(config.runtime.shards))),
    })
}

/// Users and rules, if the listeners are safe with them.
fn open_security(config: &Config, options: &Options, http: &[Bound]) -> Result<Arc<Host>, String> {
    // A Unix socket is reached from this machine only, by the users that its permissions allow.
    let listeners = options.listeners.iter().filter_map(|listener| match &listener.address {
        ListenerAddress::Tcp(address) => Some((listener.name.clone(), *address)),
        ListenerAddress::Unix(_) => None,
    });
    let http = http.iter().map(Bound::name_and_address).collect::<Result<Vec<_>, _>>();
    let http = http.map_err(|error| format!("http: {error}"))?;
    let listeners: Vec<_> = listeners.chain(http).collect();
    let kafka = listeners::kafka_settings(config);
    let providers = security::providers(&config.listener, &config.jwt, config.log_in_service()?)?;
    let has_no_log_in = |name: &str| {
        let is_open = |settings: &ListenerSettings| &*settings.name == name && settings.mechanisms.is_empty();
        kafka.iter().any(is_open) && !providers.certificates.contains_key(name)
    };
    let kafka: Vec<_> = listeners.iter().filter(|(name, _)| has_no_log_in(name)).cloned().collect();
    let shards = shard_count(options.shards);
    let data = Path::new(&config.server.data);
    let host = security::open(data, &config.security, shards, &listeners, &kafka, providers)?;
    options.admission.set_gate(Arc::new(Gate(Arc::clone(&host) as Arc<dyn SecurityHost>)));
    let meter = options.memory.meter(0, options.memory.owner("quotas"));
    let charge = Mutex::new(meter.charge(0));
    host.published().buckets().count_memory(Box::new(move |bytes| {
        charge.lock().unwrap_or_else(PoisonError::into_inner).set(bytes);
    }));
    Ok(host)
}

/// State shared by all shards, with the bindings of the configuration.
fn shared_state(
    config: &Config,
    options: &Options,
    security: Arc<dyn SecurityHost>,
) -> Result<SharedState, String> {
    let count = shard_count(options.shards);
    let declared = config.bindings()?;
    let kafka = mainstem_kafka_server::Config {
        bound_topics: declared.topics,
        sources: declared.sources,
        audit_topic: config.security.audit_topic(),
        queues_auto_create: config.queues.auto_create,
        listeners: listeners::kafka_settings(config),
        log_dir: std::path::absolute(&config.server.data)
            .map_or_else(|_| config.server.data.clone(), |path| path.display().to_string()),
        ..config.kafka.server_config()
    };
    let shared = SharedState {
        mqtt: Shared::within(&options.memory, config.mqtt.clone(), count, options.seed),
        kafka: mainstem_kafka_server::Shared::new(kafka, count, Some(storage::sendable)),
        bindings: BindingTable::new(declared.bindings),
        snapshots: Snapshots::new(count),
        retention_check_ms: config.kafka.retention_check_interval_ms,
        failing_logs: FailingLogs::default(),
        commit_times: CommitTimes::default(),
        security,
    };
    let unknown_user_secret = security::unknown_user_secret(Path::new(&config.server.data))?;
    shared.kafka.secure(Security { host: Arc::clone(&shared.security), unknown_user_secret });
    let names = listeners::mqtt_names(config);
    shared.mqtt.set_security(Arc::clone(&shared.security), names, unknown_user_secret);
    for (number, binding) in (0..).zip(&shared.bindings.bindings().inbound) {
        let sink = shared.mqtt.add_sink(&binding.filter);
        debug_assert_eq!(sink, number, "sinks are numbered as bindings are");
    }
    Ok(shared)
}

/// Drains on the first signal, and ends the process on the second. SIGHUP reloads the configuration.
fn watch(
    mut signals: Signals,
    reloader: Arc<Reloader>,
    drain: impl Fn() + Send + 'static,
) -> Result<(), String> {
    let watch = move || {
        let mut seen = 0;
        for signal in signals.forever() {
            if signal == SIGHUP {
                match reloader.reload() {
                    Ok(report) => report.log(),
                    Err(error) => log::error!("reload: nothing has changed, because of errors:\n{error}"),
                }
                continue;
            }
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
