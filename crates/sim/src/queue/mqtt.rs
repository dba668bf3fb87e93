//! The MQTT door in a run with queues: connections of subscribers, without delay, and what they say and hear.

use mainstem_doors::Doors;
use mainstem_queue::Verdict;

use super::plan::Role;
use super::run::Run;
use super::subscriber::{Came, puback};
use crate::ledger::Violation;
use crate::machine::{BEGAN_UNIX_MS, Left};
use crate::plan::pick;

impl Run<'_> {
    /// Lets a subscriber do something.
    pub(crate) fn act_subscriber(&mut self, number: usize) {
        if !self.ledger.has_queues {
            return;
        }
        let subscriber = &self.subscribers[number];
        let Some(link) = subscriber.link else {
            if !self.is_ending {
                self.connect(number);
            }
            return;
        };
        if self.is_ending || self.world.dice.chance(subscriber.vanishes) {
            return self.cut(number);
        }
        let held = subscriber.held.len() as u64;
        if held == 0 || self.world.dice.chance(30) {
            return;
        }
        let at = self.world.dice.below(held) as usize;
        let subscriber = &mut self.subscribers[number];
        let Some(had) = subscriber.held.remove(at) else { return };
        let dice = &mut self.world.dice;
        let verdict = if dice.chance(subscriber.acks) {
            Verdict::Ack
        } else {
            pick(
                dice,
                &[Verdict::Nack(None), Verdict::Nack(Some(200)), Verdict::Nack(Some(0)), Verdict::Reject],
            )
        };
        let (queue, group) = (subscriber.queue, subscriber.group_name());
        self.world.fs.note(|| format!("subscriber {number} says {verdict:?} of {had:?}"));
        let now_ms = BEGAN_UNIX_MS + self.world.now_ms;
        self.ledger.said(queue, &group, &had, verdict, (now_ms, self.world.is_troubled));
        let mut frame = puback(&had, verdict);
        self.flaw.puback(&mut frame);
        self.world.machine.feed(link, &frame);
    }

    fn connect(&mut self, number: usize) {
        let mains = self.plan.queues.iter().enumerate();
        let mains = mains.filter(|(_, queue)| matches!(queue.role, Role::Main { .. }));
        let mains: Vec<usize> = mains.map(|(at, _)| at).collect();
        let queue = pick(&mut self.world.dice, &mains);
        let (link, shard) = (self.next_link, self.world.any_shard());
        self.next_link += 1;
        let name = &self.plan.queues[queue].name;
        let frames = self.subscribers[number].connect(link, queue, name);
        self.world.fs.note(|| format!("subscriber {number} connects to shard {shard}, for {name}"));
        // It may be there from now on.
        let group = self.subscribers[number].group_name();
        self.ledger.group(queue, &group);
        self.world.machine.open(link, shard, Doors::MQTT);
        self.world.machine.feed(link, &frames);
    }

    /// A subscriber is gone without a word.
    fn cut(&mut self, number: usize) {
        let Some(link) = self.subscribers[number].link else { return };
        self.world.fs.note(|| format!("subscriber {number} is gone"));
        self.world.machine.hang_up(link);
        self.lose_subscriber(number);
    }

    /// The connection of a subscriber is gone: it may have been sent something that it has not heard.
    pub(crate) fn lose_subscriber(&mut self, number: usize) {
        let subscriber = &mut self.subscribers[number];
        if subscriber.link.is_some() {
            subscriber.gone();
            let (queue, group) = (subscriber.queue, subscriber.group_name());
            self.ledger.group(queue, &group).unheard += 1;
        }
    }

    /// What a shard has said to subscribers and publishers in its turn.
    pub(crate) fn take_output(&mut self, left: Left) -> Result<(), Violation> {
        let now_ms = BEGAN_UNIX_MS + self.world.now_ms;
        for (link, bytes) in left.output {
            if let Some(number) = self.publishers.iter().position(|one| one.link == Some(link)) {
                self.hear_publisher(number, &bytes)?;
                continue;
            }
            let is_its = |subscriber: &super::subscriber::Subscriber| subscriber.link == Some(link);
            let Some(number) = self.subscribers.iter().position(is_its) else { continue };
            for came in self.subscribers[number].take(&bytes, now_ms)? {
                match came {
                    Came::Message(had, payload) => {
                        let (queue, group) =
                            (self.subscribers[number].queue, self.subscribers[number].group_name());
                        self.world.fs.note(|| format!("subscriber {number} is sent {had:?}"));
                        self.ledger.published(queue, &group, number as u64, &had, &payload)?;
                    }
                    Came::Refused => {
                        self.cut(number);
                        break;
                    }
                    Came::Other => {}
                }
            }
        }
        for link in left.closed {
            if let Some(number) = self.subscribers.iter().position(|one| one.link == Some(link)) {
                self.lose_subscriber(number);
            } else if let Some(number) = self.publishers.iter().position(|one| one.link == Some(link)) {
                self.publisher_closed(number)?;
            }
        }
        Ok(())
    }
}
