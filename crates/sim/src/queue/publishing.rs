//! The MQTT door in a run with queues: connections of publishers, without delay, and what they say and hear.

use mainstem_doors::Doors;
use mainstem_mqtt::{QoS, Version};

use super::ledger::Way;
use super::plan::Role;
use super::producer::invent;
use super::run::Run;
use crate::ledger::Violation;
use crate::plan::pick;

impl Run<'_> {
    /// Lets a publisher do something.
    pub(crate) fn act_publisher(&mut self, number: usize) {
        if !self.ledger.has_queues {
            return;
        }
        let publisher = &self.publishers[number];
        if publisher.link.is_none() {
            let is_on_its_way = publisher.former.is_some_and(|link| self.world.machine.is_known(link));
            if !is_on_its_way && (!self.is_ending || !publisher.is_done()) {
                self.connect_publisher(number);
            }
            return;
        }
        if self.is_ending {
            return;
        }
        if self.world.dice.chance(publisher.manner.vanishes) {
            return self.cut_publisher(number);
        }
        let count = pick(&mut self.world.dice, &[1, 1, 3]);
        for _ in 0..count {
            if self.publishers[number].can_publish() && self.ledger.messages.len() < self.plan.messages_max {
                self.publish(number);
            }
        }
        self.send(number);
    }

    fn publish(&mut self, number: usize) {
        let mains = self.plan.queues.iter().enumerate();
        let mains = mains.filter(|(_, queue)| matches!(queue.role, Role::Main { .. }));
        let mains: Vec<usize> = mains.map(|(at, _)| at).collect();
        let dice = &mut self.world.dice;
        let queue = pick(dice, &mains);
        let manner = self.publishers[number].manner;
        let qos = match dice.below(100) {
            rolled if rolled < manner.exactly => QoS::ExactlyOnce,
            rolled if rolled < manner.exactly + manner.carelessly => QoS::AtMostOnce,
            _ => QoS::AtLeastOnce,
        };
        let way = Way::Published { qos, is_bound: dice.chance(70) };
        let id = invent(&self.plan, dice, &mut self.ledger.messages, queue, way);
        if manner.version == Version::V4 {
            // It has no way to ask for anything.
            let message = &mut self.ledger.messages[id];
            (message.priority, message.delay_ms, message.ttl_ms, message.has_id) = (0, 0, 0, false);
        }
        let name = &self.plan.queues[queue].name;
        self.world.fs.note(|| format!("publisher {number} publishes {id} for {name}: {way:?}"));
        self.publishers[number].publish(&mut self.ledger, &self.plan.queues, id);
    }

    fn connect_publisher(&mut self, number: usize) {
        let (link, shard) = (self.next_link, self.world.any_shard());
        self.next_link += 1;
        self.world.fs.note(|| format!("publisher {number} connects to shard {shard}"));
        self.publishers[number].connect(link);
        self.world.machine.open(link, shard, Doors::MQTT);
        self.send(number);
    }

    /// Puts on its way what a publisher has to say.
    fn send(&mut self, number: usize) {
        let publisher = &mut self.publishers[number];
        let Some(link) = publisher.link else { return };
        for frame in std::mem::take(&mut publisher.sends) {
            for frame in self.flaw.publisher_says(frame) {
                self.world.machine.feed(link, &frame);
            }
        }
    }

    /// A publisher is gone without a word.
    fn cut_publisher(&mut self, number: usize) {
        let Some(link) = self.publishers[number].link else { return };
        self.world.fs.note(|| format!("publisher {number} is gone"));
        self.world.machine.hang_up(link);
        self.publishers[number].gone();
    }

    /// A shard has said something to a publisher.
    pub(crate) fn hear_publisher(&mut self, number: usize, bytes: &[u8]) -> Result<(), Violation> {
        let is_troubled = self.is_troubled();
        for mut frame in self.publishers[number].take(bytes) {
            self.flaw.publisher_hears(&mut frame);
            self.world.fs.note(|| format!("publisher {number} hears {:02x?}", &frame[..frame.len().min(12)]));
            let publisher = &mut self.publishers[number];
            publisher.hear(&mut self.ledger, &self.plan.queues, &frame, is_troubled)?;
        }
        self.send(number);
        Ok(())
    }

    /// The broker has ended the connection of a publisher: before MQTT 5 that is how it says that a queue is full.
    pub(crate) fn publisher_closed(&mut self, number: usize) -> Result<(), Violation> {
        let publisher = &mut self.publishers[number];
        self.world.fs.note(|| format!("the connection of publisher {number} is closed"));
        let is_old = publisher.manner.version == Version::V4;
        let messages: Vec<usize> = publisher.unacknowledged().collect();
        publisher.gone();
        if !self.is_troubled() {
            self.ledger.check_closed(&messages, is_old)?;
        }
        if is_old && (self.is_ending || self.world.dice.chance(50)) {
            self.publishers[number].give_up();
        }
        Ok(())
    }
}
