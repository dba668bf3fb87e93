//! A bridge between a bus and a running broker: what is published on one side can be read on the other.
//!
//! `cargo run -p mainstem-bus --example bridge [host:port]`, with a broker there (127.0.0.1:1883). Then
//! `mainstem sub -t 'plant/#' -v` shows what the program publishes on its bus, and
//! `mainstem pub -t command/lamp -m on` reaches the program's own subscriber.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use mainstem_bus::{Bus, Overflow};
use rumqttc::{AsyncClient, Event, MqttOptions, Packet, PublishOptions, QoS};
use tokio::sync::oneshot;

/// What leaves the bus for the broker, and what the broker is asked for. They must not overlap, or a message would go
/// round and round.
const OUTWARDS: &str = "plant/#";
const INWARDS: &str = "command/#";

/// The bus of a program whose parts speak in strings.
type Texts = Bus<String>;

/// Joins `bus` and the broker until the bus is closed, or the connection fails. Says on `ready` when it has subscribed
/// on both sides.
pub(crate) async fn bridge(
    bus: Texts,
    host: &str,
    port: u16,
    ready: oneshot::Sender<()>,
) -> Result<(), Box<dyn Error>> {
    // Whoever publishes faster than the broker takes waits: nothing is lost on the way out.
    let outwards = bus.subscribe(OUTWARDS).capacity(1024).overflow(Overflow::Block).mailbox()?;
    let mut outwards = pin!(outwards);
    let mut options = MqttOptions::new(format!("bridge-{}", std::process::id()), (host.to_owned(), port));
    options.set_keep_alive(30);
    let (client, mut connection) = AsyncClient::builder(options).unbounded().build();
    client.subscribe(INWARDS, QoS::AtLeastOnce).await?;
    let mut ready = Some(ready);
    loop {
        tokio::select! {
            message = outwards.next() => {
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
                    // Nobody may be waiting to hear it.
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
    let bus = Texts::new();
    let _commands =
        bus.subscribe(INWARDS).callback(|event| println!("{}: {}", event.topic(), event.payload()))?;

    let (ready, is_ready) = oneshot::channel();
    let mut bridged = pin!(bridge(bus.clone(), host, port.parse()?, ready));
    tokio::select! {
        ended = &mut bridged => return ended,
        _ = is_ready => println!("joined with {address}"),
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
