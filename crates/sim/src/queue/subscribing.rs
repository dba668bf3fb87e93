//! Subscribers in a run with queues: what they do, and what they receive. Their connections have no delay.

use mainstem_node::Protocol;
use mainstem_queue_core::Disposition;

use super::scenario::{MqttClient, QueueEngine, QueueScenario, send};
use super::subscriber::{Received, puback};
use crate::Violation;
use crate::engine::pick;

impl QueueScenario {
    pub(super) fn act_as_subscriber(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        if !self.oracle.has_queues() {
            return;
        }
        let subscriber = &self.subscribers[number];
        let Some(link) = subscriber.link else {
            if !engine.is_ending() {
                self.connect_subscriber(engine, number);
            }
            return;
        };
        if engine.is_ending() || engine.rng.chance(subscriber.vanishes) {
            return self.cut_subscriber(engine, number);
        }
        let held = subscriber.held.len() as u64;
        if held == 0 || engine.rng.chance(30) {
            return;
        }
        let at = engine.rng.below(held) as usize;
        let subscriber = &mut self.subscribers[number];
        let Some(delivery) = subscriber.held.remove(at) else { return };
        let disposition = if engine.rng.chance(subscriber.acks) {
            Disposition::Ack
        } else {
            let others = [
                Disposition::Nack(None),
                Disposition::Nack(Some(200)),
                Disposition::Nack(Some(0)),
                Disposition::Reject,
            ];
            pick(&mut engine.rng, &others)
        };
        let (queue, group) = (subscriber.queue, subscriber.group_name());
        engine.note(|| format!("subscriber {number} says {disposition:?} of {delivery:?}"));
        self.oracle.settled_by_puback(
            queue,
            &group,
            &delivery,
            disposition,
            (engine.unix_ms(), engine.is_troubled()),
        );
        send(engine, number, link, vec![puback(&delivery, disposition)]);
    }

    fn connect_subscriber(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let queue = pick(&mut engine.rng, &self.main_queues());
        let link = engine.open(MqttClient::Subscriber(number), Protocol::Mqtt);
        let frames = self.subscribers[number].connect(link, queue, &self.plan.queues[queue].name);
        // The group may exist from now on.
        let group = self.subscribers[number].group_name();
        self.oracle.group(queue, &group);
        send(engine, number, link, frames);
    }

    fn cut_subscriber(&mut self, engine: &mut QueueEngine<'_>, number: usize) {
        let Some(link) = self.subscribers[number].link else { return };
        engine.note(|| format!("subscriber {number} is gone"));
        engine.hang_up(link);
        self.lose_subscriber(number);
    }

    /// The connection of a subscriber is gone. It may have been sent messages that it has not received.
    pub(super) fn lose_subscriber(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        if subscriber.link.is_some() {
            subscriber.disconnected();
            let (queue, group) = (subscriber.queue, subscriber.group_name());
            self.oracle.group(queue, &group).unanswered += 1;
        }
    }

    pub(super) fn subscriber_received(
        &mut self,
        engine: &mut QueueEngine<'_>,
        number: usize,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        for received in self.subscribers[number].take(bytes, engine.unix_ms())? {
            match received {
                Received::Message(delivery, payload) => {
                    let (queue, group) =
                        (self.subscribers[number].queue, self.subscribers[number].group_name());
                    engine.note(|| format!("subscriber {number} is sent {delivery:?}"));
                    self.oracle.published(queue, &group, number as u64, &delivery, &payload)?;
                }
                Received::Refused => {
                    self.cut_subscriber(engine, number);
                    break;
                }
                Received::Other => {}
            }
        }
        Ok(())
    }
}
