//! The listeners of `mainstem serve`: their table, built from the configuration, and their announced addresses.
//!
//! A listener is found by its name, never by its position or protocol, since several may speak one protocol. Metadata
//! responses to Kafka clients contain the address of the listener named [`KAFKA`].

use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};

use mainstem_kafka_server::Shared;
use mainstem_node::Protocol;
use mainstem_runtime::{BoundListener, ListenerConfig, ListenerQuota, ListenerTransport};

use crate::config::Config;
use crate::descriptors::DescriptorPlan;

const MQTT: &str = "mqtt";
const KAFKA: &str = "kafka";

/// Builds the table of listeners.
///
/// # Errors
/// An address that does not resolve.
pub(crate) fn table(config: &Config, plan: &DescriptorPlan) -> Result<Vec<ListenerConfig>, String> {
    let mut table = vec![ListenerConfig {
        name: MQTT.into(),
        address: resolve(MQTT, &config.mqtt.listen)?,
        protocol: Protocol::Mqtt.tag(),
        transport: ListenerTransport::Plain,
        send_buffer_bytes: config.runtime.send_buffer_bytes as usize,
        quota: ListenerQuota::new(MQTT, plan.mqtt_accepted, "mqtt.max_connections"),
    }];
    if !config.kafka.listen.is_empty() {
        table.push(ListenerConfig {
            name: KAFKA.into(),
            address: resolve(KAFKA, &config.kafka.listen)?,
            protocol: Protocol::Kafka.tag(),
            transport: ListenerTransport::Plain,
            send_buffer_bytes: config.kafka.send_buffer_bytes as usize,
            quota: ListenerQuota::new(KAFKA, plan.kafka, "kafka.max_connections"),
        });
    }
    Ok(table)
}

/// Resolves `address` to its first socket address.
pub(crate) fn resolve(section: &str, address: &str) -> Result<SocketAddr, String> {
    let mut found =
        address.to_socket_addrs().map_err(|error| format!("{section}.listen: {address:?}: {error}"))?;
    found.next().ok_or_else(|| format!("{section}.listen: {address:?} names no address"))
}

/// Prints the address of each listener, for people and scripts. All lines are written at once, because a script may
/// read only the first line and close the pipe.
pub(crate) fn announce(listeners: &[BoundListener], http: Option<SocketAddr>) -> std::io::Result<()> {
    let bound = listeners.iter().map(|listener| (listener.name.as_str(), listener.address));
    let line = |(name, address): (&str, SocketAddr)| format!("{name} listening on {address}\n");
    let lines: String = bound.chain(http.map(|address| ("http", address))).map(line).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes())?;
    stdout.flush()
}

/// Sets the address in metadata responses to Kafka clients: `advertised`, or the address of the listener named
/// [`KAFKA`] if that is empty. Does nothing without such a listener.
///
/// # Errors
/// `advertised` is not `HOST:PORT`.
pub(crate) fn advertise<'a>(
    kafka: &Shared,
    advertised: &str,
    listeners: impl IntoIterator<Item = (&'a str, SocketAddr)>,
) -> Result<(), String> {
    let Some((_, address)) = listeners.into_iter().find(|(name, _)| *name == KAFKA) else { return Ok(()) };
    if advertised.is_empty() {
        let host = if address.ip().is_unspecified() { machine_name() } else { address.ip().to_string() };
        kafka.advertise(&host, address.port());
        return Ok(());
    }
    let parts = advertised.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| format!("kafka.advertised: {advertised:?} is not HOST:PORT"))?;
    kafka.advertise(host.trim_start_matches('[').trim_end_matches(']'), port);
    Ok(())
}

/// The host name of this machine.
fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
