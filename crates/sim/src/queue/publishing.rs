//! Publishers in a run with queues: what they do, and what they receive. Their connections have no delay.

use mainstem_mqtt::{QoS, Version};
use mainstem_node::Protocol;

use super::oracle::Route;
use super::producer::make_message;
use super::scenario::{MqttClient, QueueEngine, QueueScenario, may_refuse, send};
use crate::Violation;
use crate::engine::pick;

impl QueueScenario {
    pub(super) fn act_as_publisher(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        if !self.oracle.has_queues() {
            return;
        }
        let publisher = &self.publishers[number];
        if publisher.link.is_none() {
            let is_in_transit = publisher.former.is_some_and(|link| engine.broker.is_known(link));
            if !is_in_transit && (!engine.is_ending() || !publisher.is_done()) {
                self.connect_publisher(engine, number);
            }
            return;
        }
        if engine.is_ending() {
            return;
        }
        if engine.rng.chance(publisher.profile.vanishes) {
            return self.cut_publisher(engine, number);
        }
        let count = pick(&mut engine.rng, &[1, 1, 3]);
        for _ in 0..count {
            if self.publishers[number].can_publish() && self.oracle.message_count() < self.plan.messages_max {
                self.publish(engine, number);
            }
        }
        self.send(engine, number);
    }

    fn publish(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let mains = self.main_queues();
        let rng = &mut engine.rng;
        let queue = pick(rng, &mains);
        let profile = self.publishers[number].profile;
        let qos = match rng.below(100) {
            drawn if drawn < profile.qos2_percent => QoS::ExactlyOnce,
            drawn if drawn < profile.qos2_percent + profile.qos0_percent => QoS::AtMostOnce,
            _ => QoS::AtLeastOnce,
        };
        let route = Route::Published { qos, is_bound: rng.chance(70) };
        let mut message = make_message(&self.plan, rng, self.oracle.message_count(), queue, route);
        if profile.version == Version::V4 {
            // Without user properties, it cannot ask for anything.
            (message.priority, message.delay_ms, message.ttl_ms, message.has_id) = (0, 0, 0, false);
        }
        let id = self.oracle.add_message(message);
        let name = &self.plan.queues[queue].name;
        engine.note(|| format!("publisher {number} publishes {id} for {name}: {route:?}"));
        self.publishers[number].publish(&mut self.oracle, &self.plan.queues, id);
    }

    fn connect_publisher(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let link = engine.open(MqttClient::Publisher(number), Protocol::Mqtt);
        self.publishers[number].connect(link);
        self.send(engine, number);
    }

    /// Sends the packets that a publisher has prepared.
    fn send(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let publisher = &mut self.publishers[number];
        if let Some(link) = publisher.link {
            send(engine, number, link, std::mem::take(&mut publisher.sends));
        }
    }

    fn cut_publisher(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let Some(link) = self.publishers[number].link else { return };
        engine.note(|| format!("publisher {number} is gone"));
        engine.hang_up(link);
        self.publishers[number].disconnected();
    }

    pub(super) fn publisher_received(
        &mut self,
        engine: &mut QueueEngine<'_>,
        number: usize,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        for frame in self.publishers[number].take(bytes) {
            for (_, frame) in engine.injector.to_client(number, frame) {
                engine.note(|| format!("publisher {number} hears {:02x?}", &frame[..frame.len().min(12)]));
                let publisher = &mut self.publishers[number];
                publisher.handle_packet(&mut self.oracle, &self.plan.queues, &frame, may_refuse(engine))?;
            }
        }
        self.send(engine, number);
        Ok(())
    }

    /// The broker has closed the connection of a publisher. Before MQTT 5, that is how it reports a full queue.
    pub(super) fn publisher_closed(
        &mut self,
        engine: &mut QueueEngine<'_>,
        number: usize,
    ) -> Result<(), Violation> {
        let publisher = &mut self.publishers[number];
        engine.note(|| format!("the connection of publisher {number} is closed"));
        let is_old = publisher.profile.version == Version::V4;
        let messages: Vec<usize> = publisher.unacknowledged().collect();
        publisher.disconnected();
        if !may_refuse(engine) {
            self.oracle.check_closed(&messages, is_old)?;
        }
        if is_old && (engine.is_ending() || engine.rng.chance(50)) {
            self.publishers[number].give_up();
        }
        Ok(())
    }
}
