//! Runs the bridge example between a bus and a real broker, in both directions.

#[path = "../examples/bridge.rs"]
mod example;

use std::time::Duration;

use futures_util::StreamExt;
use mainstem_bus::Bus;
use mainstem_conformance::{Broker, unique};
use rumqttc::{AsyncClient, Event, EventLoop, MqttOptions, Packet, PublishOptions, QoS};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Upper bound for a hung test; no passing test waits this long.
const DEADLINE: Duration = Duration::from_secs(30);

const MESSAGES: usize = 500;

/// Drives a connection until `select` returns `Some` for a packet.
async fn until<R>(connection: &mut EventLoop, select: impl Fn(Packet) -> Option<R>) -> R {
    let packet = async {
        loop {
            if let Event::Incoming(packet) = connection.poll().await.expect("a connection")
                && let Some(found) = select(packet)
            {
                return found;
            }
        }
    };
    timeout(DEADLINE, packet).await.expect("the packet in time")
}

#[tokio::test]
async fn messages_cross_the_bridge_both_ways_in_order() {
    let addr = Broker::shared().addr();
    let mut options = MqttOptions::new(unique("bridge-test"), (addr.ip().to_string(), addr.port()));
    options.set_keep_alive(30);
    let (client, mut connection) = AsyncClient::builder(options).unbounded().build();
    client.subscribe("plant/#", QoS::AtLeastOnce).await.unwrap();
    until(&mut connection, |packet| matches!(packet, Packet::SubAck(_)).then_some(())).await;

    let bus = Bus::new();
    let mut commands = std::pin::pin!(bus.subscribe("command/#").mailbox().unwrap());
    let (ready, is_ready) = oneshot::channel();
    let host = addr.ip().to_string();
    let bridged = async { example::bridge(bus.clone(), &host, addr.port(), ready).await.unwrap() };
    let test = async {
        is_ready.await.unwrap();
        // From the bus to an MQTT client.
        for number in 0..MESSAGES {
            bus.publish(&format!("plant/{}/temp", number % 7), number.to_string()).unwrap();
        }
        for number in 0..MESSAGES {
            let publish = until(&mut connection, |packet| match packet {
                Packet::Publish(publish) => Some(publish),
                _ => None,
            });
            let publish = publish.await;
            assert_eq!(publish.payload, number.to_string());
            assert_eq!(publish.topic, format!("plant/{}/temp", number % 7));
        }
        // And from an MQTT client to the bus.
        for number in 0..3 {
            client
                .publish("command/lamp", number.to_string(), PublishOptions::new(QoS::AtLeastOnce))
                .await
                .unwrap();
            until(&mut connection, |packet| matches!(packet, Packet::PubAck(_)).then_some(())).await;
            let command = timeout(DEADLINE, commands.next()).await.unwrap().unwrap();
            assert_eq!((command.topic(), command.payload().as_str()), ("command/lamp", &*number.to_string()));
        }
        bus.close();
    };
    tokio::join!(bridged, test);
}
