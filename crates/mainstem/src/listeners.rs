//! The listeners of `mainstem serve`: their table, built from the configuration, and their announced addresses.
//!
//! A listener is found by its name, never by its position, since several may speak one protocol. Kafka clients are told
//! the address of the listener that they came by.

mod certificates;
mod expiry_warnings;

use std::io::Write;
use std::iter;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use mainstem_kafka_server::{ListenerSettings, Shared};
use mainstem_node::Protocol;
use mainstem_runtime::{BoundListener, ListenerAddress, ListenerConfig, ListenerQuota, ListenerTransport};

pub(crate) use self::certificates::{Certificates, EXPIRY};
use crate::config::Config;
use crate::descriptors::DescriptorPlan;
use crate::listener_section::{ListenerProtocol, ListenerSection, mechanisms};

const MQTT: &str = "mqtt";
/// Name of the listener of the section `[kafka]`.
pub(crate) const KAFKA: &str = "kafka";

/// Builds the table of the listeners that shards serve.
///
/// # Errors
/// An address that does not resolve.
pub(crate) fn table(
    config: &Config,
    plan: &DescriptorPlan,
    certificates: &Certificates,
) -> Result<Vec<ListenerConfig>, String> {
    let listens = [&config.mqtt.listen, &config.kafka.listen, &config.http.listen];
    if listens.iter().all(|listen| listen.is_empty()) && config.listener.is_empty() {
        return Err(
            "mqtt.listen, kafka.listen and http.listen are all empty: there is nothing to serve".into()
        );
    }
    // All listeners of a protocol share its limit of connections.
    let mqtt_quota = ListenerQuota::new(MQTT, plan.mqtt_accepted, "mqtt.max_connections");
    let kafka_quota = ListenerQuota::new(KAFKA, plan.kafka, "kafka.max_connections");
    let mut table = Vec::new();
    if !config.mqtt.listen.is_empty() {
        table.push(ListenerConfig {
            name: MQTT.into(),
            address: resolve(MQTT, &config.mqtt.listen)?.into(),
            proxies: None,
            protocol: Protocol::Mqtt.tag(),
            transport: ListenerTransport::Plain,
            send_buffer_bytes: config.runtime.send_buffer_bytes as usize,
            quota: Arc::clone(&mqtt_quota),
        });
    }
    if !config.kafka.listen.is_empty() {
        table.push(ListenerConfig {
            name: KAFKA.into(),
            address: resolve(KAFKA, &config.kafka.listen)?.into(),
            proxies: None,
            protocol: Protocol::Kafka.tag(),
            transport: ListenerTransport::Plain,
            send_buffer_bytes: config.kafka.send_buffer_bytes as usize,
            quota: Arc::clone(&kafka_quota),
        });
    }
    for section in &config.listener {
        let (protocol, send_buffer_bytes, quota) = match section.protocol {
            ListenerProtocol::Mqtt => (Protocol::Mqtt, config.runtime.send_buffer_bytes, &mqtt_quota),
            ListenerProtocol::Kafka => (Protocol::Kafka, config.kafka.send_buffer_bytes, &kafka_quota),
            // The HTTP server has a thread of its own.
            ListenerProtocol::Http => continue,
        };
        let before = config.listener.iter().take_while(|other| other.name != section.name);
        let number = 1 + before.filter(|other| other.protocol == section.protocol).count();
        table.push(ListenerConfig {
            name: section.name.clone(),
            address: match section.unix_socket()? {
                Some(socket) => ListenerAddress::Unix(socket),
                None => resolve(&format!("listener {:?}", section.name), &section.listen)?.into(),
            },
            protocol: protocol.tag_of(u8::try_from(number).map_err(|_| "there are too many listeners")?),
            transport: transport(section, certificates)?,
            send_buffer_bytes: send_buffer_bytes as usize,
            quota: match section.max_connections {
                Some(max) => {
                    let key = format!("max_connections of listener {:?}", section.name);
                    ListenerQuota::within(quota, section.name.as_str(), max.get() as usize, key)
                }
                None => Arc::clone(quota),
            },
            proxies: section.proxies()?,
        });
    }
    Ok(table)
}

/// The transport of a listener: plain or TLS, and WebSocket above it.
fn transport(section: &ListenerSection, certificates: &Certificates) -> Result<ListenerTransport, String> {
    let lower = certificates.transport(&section.name);
    let Some(websocket) = &section.websocket else { return Ok(lower) };
    let acceptor = mainstem_websocket::Acceptor::new(section.name.as_str(), websocket.settings()?);
    Ok(lower.with_layer(Arc::new(move || acceptor.layer())))
}

/// Names of the MQTT listeners, by the number in their tag.
pub(crate) fn mqtt_names(config: &Config) -> Vec<Arc<str>> {
    let sections = config.listener.iter().filter(|section| section.protocol == ListenerProtocol::Mqtt);
    iter::once(MQTT).chain(sections.map(|section| section.name.as_str())).map(Into::into).collect()
}

/// Name and mechanisms of SASL of each of the Kafka listeners, in the order of their numbers.
pub(crate) fn kafka_settings(config: &Config) -> Vec<ListenerSettings> {
    let sections = config.listener.iter().filter(|section| section.protocol == ListenerProtocol::Kafka);
    let first = iter::once((KAFKA, &config.kafka.sasl));
    let all = first.chain(sections.map(|section| (section.name.as_str(), &section.sasl)));
    let settings = |(name, names): (&str, &Vec<String>)| ListenerSettings {
        name: name.into(),
        mechanisms: mechanisms(names).unwrap_or_default(),
    };
    all.map(settings).collect()
}

/// Resolves `HOST:PORT` to a socket address: the first IPv4 address of a host name, if it has one. `localhost` is both
/// `127.0.0.1` and `::1`, and clients try the former sooner or later.
pub(crate) fn resolve(section: &str, address: &str) -> Result<SocketAddr, String> {
    let explain = |what: String| format!("{section}.listen: {address:?}: {what}");
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host =
            !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
        is_host && port.parse::<u16>().is_ok()
    });
    if !has_port {
        return Err(explain(
            "expected ADDRESS:PORT, such as 0.0.0.0:1883, [::1]:1883 or localhost:1883".into(),
        ));
    }
    let found: Vec<SocketAddr> =
        address.to_socket_addrs().map_err(|error| explain(error.to_string()))?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| explain("the host name has no address".into()))
}

/// Prints the address of each listener, for people and scripts. All lines are written at once, because a script may
/// read only the first line and close the pipe.
pub(crate) fn announce(listeners: &[BoundListener], http: &[(String, SocketAddr)]) -> std::io::Result<()> {
    let bound =
        listeners.iter().map(|listener| format!("{} listening on {}\n", listener.name, listener.address));
    let http = http.iter().map(|(name, address)| format!("{name} listening on {address}\n"));
    let lines: String = bound.chain(http).collect();
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(lines.as_bytes())?;
    stdout.flush()
}

/// Sets the addresses that Kafka clients are told, for each of the Kafka listeners: what the configuration says, or the
/// address of the listener. Does nothing without such a listener.
///
/// # Errors
/// An address in the configuration is not `HOST:PORT`.
pub(crate) fn advertise<'a>(
    kafka: &Shared,
    config: &Config,
    listeners: impl IntoIterator<Item = (&'a str, &'a ListenerAddress)>,
) -> Result<(), String> {
    let listeners: Vec<_> = listeners.into_iter().collect();
    let first = iter::once((KAFKA, config.kafka.advertised.as_str()));
    let sections = config.listener.iter().filter(|section| section.protocol == ListenerProtocol::Kafka);
    let more = sections.map(|section| (section.name.as_str(), section.advertised.as_str()));
    let mut addresses = Vec::new();
    for (name, advertised) in first.chain(more) {
        if let Some((_, address)) = listeners.iter().find(|(listener, _)| *listener == name) {
            let told = advertised_address(advertised, address)
                .ok_or_else(|| format!("listener {name:?}: advertised: {advertised:?} is not HOST:PORT"))?;
            addresses.push(told);
        }
    }
    if !addresses.is_empty() {
        kafka.advertise(addresses);
    }
    Ok(())
}

/// The host and port in `advertised`, or those of `address` if it is empty.
fn advertised_address(advertised: &str, address: &ListenerAddress) -> Option<(Arc<str>, u16)> {
    if advertised.is_empty() {
        let ListenerAddress::Tcp(address) = address else { return None };
        let host = if address.ip().is_unspecified() { machine_name() } else { address.ip().to_string() };
        return Some((host.into(), address.port()));
    }
    let (host, port) = advertised.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.into(), port.parse().ok()?))
}

/// The host name of this machine.
fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_resolved() {
        for (text, address) in [
            ("127.0.0.1:1883", "127.0.0.1:1883"),
            ("[::1]:0", "[::1]:0"),
            ("[::]:1883", "[::]:1883"),
            ("localhost:9092", "127.0.0.1:9092"),
        ] {
            assert_eq!(resolve(MQTT, text), Ok(address.parse().unwrap()));
        }
        for text in ["1883", ":1883", "localhost", "::1:1883", "127.0.0.1:99999", "127.0.0.1:", " "] {
            let error = resolve(MQTT, text).unwrap_err();
            assert!(error.contains("expected ADDRESS:PORT") && error.starts_with("mqtt.listen: "), "{error}");
        }
    }

    #[test]
    fn an_empty_address_disables_its_listener_and_one_must_be_left() {
        let plan = DescriptorPlan {
            limit: 0,
            segments_per_store: 0,
            connections: 0,
            mqtt: 0,
            mqtt_accepted: 0,
            kafka: 0,
        };
        let mut config = Config::default();
        let names = |config: &Config| -> Result<Vec<String>, String> {
            Ok(table(config, &plan, &Certificates::default())?
                .into_iter()
                .map(|listener| listener.name)
                .collect())
        };
        assert_eq!(names(&config), Ok(vec![MQTT.into(), KAFKA.into()]));
        config.mqtt.listen = String::new();
        assert_eq!(names(&config), Ok(vec![KAFKA.into()]));
        config.kafka.listen = String::new();
        assert_eq!(names(&config), Ok(vec![]));
        config.http.listen = String::new();
        assert!(names(&config).unwrap_err().contains("nothing to serve"));
    }
}
