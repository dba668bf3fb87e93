//! A two-way bridge between a bus and an MQTT broker.
//!
//! `cargo run -p mainstem-bus --example bridge [host:port]` connects to a broker, by default on 127.0.0.1:1883. Then
//! `mainstem sub -t 'plant/#' -v` prints the messages that this program publishes on its bus, and
//! `mainstem pub -t command/lamp -m on` sends a message to the program's own subscriber.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use mainstem_bus::{Bus, Overflow};
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, PublishOptions, QoS};
use tokio::sync::oneshot;

/// Filters of the messages sent to the broker and received from it. They must not overlap, or a message would loop.
const OUTBOUND: &str = "plant/#";
const INBOUND: &str = "command/#";

type TextBus = Bus<String>;

/// Forwards messages in both directions until the bus is closed or the connection fails. Signals `ready` once both
/// sides are subscribed.
pub(crate) async fn bridge(
    bus: TextBus,
    host: &str,
    port: u16,
    ready: oneshot::Sender<()>,
) -> Result<(), Box<dyn Error>> {
    // `Block` slows publishers down to the rate of the broker, so no outbound message is lost.
    let outbound = bus.subscribe(OUTBOUND).capacity(1024).overflow(Overflow::Block).mailbox()?;
    let mut outbound = pin!(outbound);
    let mut options = MqttOptions::new(format!("bridge-{}", std::process::id()), (host.to_owned(), port));
    options.set_keep_alive(30);
    let (client, mut connection) = AsyncClient::builder(options).unbounded().build();
    client.subscribe(INBOUND, QoS::AtLeastOnce).await?;
    let mut ready = Some(ready);
    loop {
        tokio::select! {
            message = outbound.next() => {
                let Some(message) = message else { return Ok(()) };
                let (topic, text) = (message.topic().to_owned(), message.payload().clone());
                client.publish(topic, text, PublishOptions::new(QoS::AtLeastOnce)).await?;
            }
            event = connection.poll() => match event? {
                Event::Incoming(Packet::Publish(publish)) => {
                    let topic = std::str::from_utf8(&publish.topic)?;
                    bus.publish(topic, String::from_utf8_lossy(&publish.payload).into_owned())?;
                }
                Event::Incoming(Packet::SubAck(_)) => {
                    // The receiver may already be dropped.
                    ready.take().map(|ready| ready.send(()).is_ok());
                }
                _ => {}
            },
        }
    }
}

#[tokio::main(flavor = "current_thread")]
#[cfg_attr(test, expect(dead_code, reason = "the test has a main function of its own"))]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1883".to_owned());
    let (host, port) = address.rsplit_once(':').ok_or("an address is host:port")?;
    let bus = TextBus::new();
    let _commands =
        bus.subscribe(INBOUND).callback(|event| println!("{}: {}", event.topic(), event.payload()))?;

    let (ready, is_ready) = oneshot::channel();
    let mut bridged = pin!(bridge(bus.clone(), host, port.parse()?, ready));
    tokio::select! {
        ended = &mut bridged => return ended,
        _ = is_ready => println!("connected to {address}"),
    }
    let mut second = tokio::time::interval(Duration::from_secs(1));
    for number in 0_u64.. {
        tokio::select! {
            ended = &mut bridged => return ended,
            _ = second.tick() => drop(bus.publish("plant/7/temp", format!("{}", 20 + number % 5))?.delivered),
        }
    }
    Ok(())
}
