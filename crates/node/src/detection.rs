//! Log lines about clients that speak another protocol than their listener.

use mainstem_detect::{PeerProtocol, detect};
use mainstem_runtime::{ConnId, Io};

use crate::Protocol;

/// Shortest time between two lines of a shard, ms. Clients on the wrong port try again and again.
const INTERVAL_MS: u64 = 10_000;

/// Logs what such clients speak, at most one line per [`INTERVAL_MS`].
#[derive(Debug, Default)]
pub(crate) struct DetectionLog {
    /// When the next line may be logged, ms.
    next_ms: u64,
    /// Clients since the last line.
    clients: u64,
}

impl DetectionLog {
    /// Checks the first bytes of a connection. The protocol server ends the connection.
    pub(crate) fn check<M>(&mut self, io: &Io<'_, M>, conn: ConnId, listener: Protocol, first: &[u8]) {
        let Some(peer) = detect(first) else { return };
        let (name, expected) = match listener {
            Protocol::Mqtt => ("mqtt", PeerProtocol::Mqtt),
            Protocol::Kafka => ("kafka", PeerProtocol::Kafka),
        };
        if peer == expected {
            return;
        }
        self.clients += 1;
        if io.clock.now_ms < self.next_ms {
            return;
        }
        self.next_ms = io.clock.now_ms + INTERVAL_MS;
        let clients = std::mem::take(&mut self.clients);
        let address = io.peer_address(conn).map_or_else(|| "?".into(), |address| address.to_string());
        log::warn!(
            "{name}: a client at {address} speaks {peer} on a listener for {expected} and is disconnected{}; such clients since the last line: {clients}",
            hint(peer)
        );
    }
}

/// What the operator may want to know.
fn hint(peer: PeerProtocol) -> &'static str {
    match peer {
        PeerProtocol::Mqtt => " (mqtt.listen is the address for MQTT)",
        PeerProtocol::Kafka => " (kafka.listen is the address for Kafka)",
        PeerProtocol::Http => {
            " (http.listen is the address for HTTP; a [[listener]] with `websocket` takes MQTT over WebSocket)"
        }
        PeerProtocol::Tls => " (a [[listener]] with `tls` takes TLS)",
        PeerProtocol::Proxy => " (the PROXY protocol is not supported)",
        PeerProtocol::Http2 | PeerProtocol::Amqp | PeerProtocol::Ssh => "",
    }
}
