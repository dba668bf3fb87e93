//! The HTTP API of this process: the broker behind it, and its listener.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstem_admin::{
    Bound, Broker, ConfigHost, ConnectionPermit, HttpServer, MemoryUsage, PhaseDurations,
    RESERVED_CONNECTIONS, ReplyCallback, Settings, SnapshotHost, TlsSource, TurnDurations, start,
};
use mainstem_metrics::Exposition;
use mainstem_queue_core::Request;
use mainstem_queue_server::QueueClient;
use mainstem_runtime::{Admission, TURN_BOUNDS_US, TurnPhase, TurnTimes};
use mainstem_security::SecurityHost;
use serde_json::{Map, Value};

use crate::bindings::BindingManager;
use crate::commit_times::CommitTimes;
use crate::config::{Config, HttpConfig};
use crate::health_store::FailingLogs;
use crate::listener_section::{ListenerProtocol, ListenerSection};
use crate::listeners::{Certificates, resolve};
use crate::memory::resident_bytes;
use crate::storage::SharedState;

/// Name of the listener at `http.listen`, and of all of them in the log.
const HTTP: &str = "http";

/// The broker behind the HTTP API.
struct ApiBroker {
    admission: Arc<Admission>,
    queues: QueueClient,
    mqtt: Arc<mainstem_mqtt_server::Shared>,
    kafka: Arc<mainstem_kafka_server::Shared>,
    failing_logs: FailingLogs,
    commit_times: CommitTimes,
    managers: Managers,
    turn_times: Arc<TurnTimes>,
    certificates: Certificates,
    security: Arc<dyn SecurityHost>,
}

/// What changes the broker.
pub(crate) struct Managers {
    pub(crate) bindings: Arc<BindingManager>,
    pub(crate) config: Arc<dyn ConfigHost>,
    pub(crate) snapshots: Arc<dyn SnapshotHost>,
}

impl Broker for ApiBroker {
    fn admit(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        self.admission.admit_address(HTTP, peer).ok().map(|permit| Box::new(permit) as ConnectionPermit)
    }

    fn submit(&self, queue: &str, request: Request, reply: ReplyCallback) {
        self.queues.send(queue, request, reply);
    }

    fn queues(&self) -> Vec<Arc<str>> {
        self.queues.queues()
    }

    fn is_topic(&self, name: &str) -> bool {
        self.queues.is_topic(name)
    }

    fn bindings(&self) -> Vec<Map<String, Value>> {
        self.managers.bindings.list()
    }

    fn add_binding(&self, name: &str, binding: Map<String, Value>, reply: ReplyCallback) {
        self.managers.bindings.add(name, binding, reply);
    }

    fn remove_binding(&self, name: &str, reply: ReplyCallback) {
        self.managers.bindings.remove(name, reply);
    }

    fn memory(&self) -> MemoryUsage {
        let budget = self.mqtt.memory();
        MemoryUsage {
            by_owner: budget.used_by_owner(),
            bytes_max: budget.bytes_max(),
            resident_bytes: resident_bytes(),
        }
    }

    fn turn_durations(&self) -> TurnDurations {
        let of_shard = |shard| TurnPhase::ALL.map(|phase| phase_durations(&self.turn_times, shard, phase));
        let series = (0..self.turn_times.shards()).flat_map(of_shard).collect();
        TurnDurations { bounds_us: &TURN_BOUNDS_US, series }
    }

    fn write_metrics(&self, text: &mut Exposition) {
        crate::process_metrics::write(text);
        self.mqtt.write_metrics(text);
        self.kafka.write_metrics(text);
        self.commit_times.write(text);
        self.certificates.write_metrics(text);
    }

    fn security(&self) -> Option<Arc<dyn SecurityHost>> {
        Some(Arc::clone(&self.security))
    }

    fn config(&self) -> Option<Arc<dyn ConfigHost>> {
        Some(Arc::clone(&self.managers.config))
    }

    fn snapshots(&self) -> Option<Arc<dyn SnapshotHost>> {
        Some(Arc::clone(&self.managers.snapshots))
    }

    fn errors(&self) -> Vec<String> {
        let mut errors = self.failing_logs.messages();
        if self.mqtt.is_failing() {
            errors.push("MQTT sessions or retained messages cannot be written to disk".into());
        }
        errors
    }
}

fn phase_durations(times: &TurnTimes, shard: usize, phase: TurnPhase) -> PhaseDurations {
    let histogram = times.histogram(shard, phase);
    PhaseDurations {
        shard,
        phase: phase.name(),
        buckets: histogram.buckets.to_vec(),
        sum_ns: histogram.sum_ns,
    }
}

/// Most file descriptors of HTTP connections.
pub(crate) fn descriptors_max(config: &HttpConfig) -> usize {
    config.max_connections as usize + RESERVED_CONNECTIONS
}

/// Whether the HTTP API is served: at `http.listen`, or at a listener of its own.
pub(crate) fn is_enabled(config: &Config) -> bool {
    !config.http.listen.is_empty() || http_sections(config).next().is_some()
}

fn http_sections(config: &Config) -> impl Iterator<Item = &ListenerSection> {
    config.listener.iter().filter(|section| section.protocol == ListenerProtocol::Http)
}

/// Binds the addresses of the HTTP API: `http.listen`, unless it is empty, and the listeners of its own.
///
/// # Errors
/// If an address does not resolve, or the operating system cannot bind it.
pub(crate) fn bind(config: &Config, certificates: &Certificates) -> Result<Vec<Bound>, String> {
    let mut bound = Vec::new();
    if !config.http.listen.is_empty() {
        let address = resolve(HTTP, &config.http.listen)?;
        let listener = Bound::bind(HTTP, address, None);
        bound.push(listener.map_err(|error| format!("http.listen: {address}: {error}"))?);
    }
    for ListenerSection { name, listen, .. } in http_sections(config) {
        let address = resolve(&format!("listener {name:?}"), listen)?;
        let tls =
            certificates.acceptor(name).map(|acceptor| -> TlsSource { Arc::new(move || acceptor.config()) });
        let listener = Bound::bind(name, address, tls);
        bound.push(listener.map_err(|error| format!("listener {name:?}: {address}: {error}"))?);
    }
    Ok(bound)
}

/// Serves the HTTP API.
///
/// # Errors
/// If the operating system cannot start a thread.
pub(crate) fn open(
    bound: Vec<Bound>,
    config: &HttpConfig,
    shared: &SharedState,
    managers: Managers,
    admission: Arc<Admission>,
    turn_times: Arc<TurnTimes>,
    certificates: Certificates,
) -> Result<HttpServer, String> {
    let settings = Settings {
        allowed_hosts: config.allowed_hosts.clone(),
        allowed_origins: config.allowed_origins.clone(),
        body_bytes_max: config.max_body_bytes as usize,
        connections_max: config.max_connections as usize,
        request_timeout: Duration::from_millis(config.request_timeout_ms),
        idle_timeout: Duration::from_millis(config.idle_timeout_ms),
    };
    let broker = ApiBroker {
        admission,
        queues: shared.kafka.queue_client(),
        mqtt: Arc::clone(&shared.mqtt),
        kafka: Arc::clone(&shared.kafka),
        failing_logs: shared.failing_logs.clone(),
        commit_times: shared.commit_times.clone(),
        managers,
        turn_times,
        certificates,
        security: Arc::clone(&shared.security),
    };
    start(bound, settings, Arc::new(broker)).map_err(|error| format!("http: {error}"))
}
