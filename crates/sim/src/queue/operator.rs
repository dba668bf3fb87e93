//! Those who look at queues, empty them, let messages come again, and make and delete queues.

use mainstem_queue::{DEFAULT_GROUP, GroupName, ReplayFrom, Reply, Request};

use super::client::{Client, Desk};
use super::ledger::Pending;
use super::plan::Role;
use crate::plan::pick;

#[derive(Debug)]
pub(crate) struct Operator;

impl Client for Operator {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if desk.waiting > 0 || desk.is_ending {
            return;
        }
        let main = desk.any_queue(|role| matches!(role, Role::Main { .. }));
        let dead = desk.any_queue(|role| role == Role::Dead);
        let temporary = desk.any_queue(|role| role == Role::Temporary);
        let group: GroupName = pick(desk.dice, &[DEFAULT_GROUP, DEFAULT_GROUP, "others"]).into();
        let (queue, request) = match desk.dice.below(200) {
            0 => (main, Request::Purge { group: Some(group).filter(|_| desk.dice.chance(70)) }),
            1 => (dead, Request::Purge { group: None }),
            2 | 3 => (main, Request::Replay { group, from: ReplayFrom::Offset(desk.dice.below(100)) }),
            4 => {
                let from = ReplayFrom::Time(desk.unix_ms.saturating_sub(desk.dice.below(5_000)));
                (main, Request::Replay { group, from })
            }
            5 => (main, Request::RemoveGroup { group: "others".into() }),
            6..16 => (dead, Request::Redrive { max: pick(desk.dice, &[1, 3, 1_000]) }),
            16..22 => (temporary, Request::Delete),
            22..30 => (temporary, Request::Create { settings: Vec::new() }),
            30..34 => {
                let settings = desk.plan.queues[main].change(desk.dice);
                (main, Request::Configure { settings })
            }
            34..60 => {
                let (from, max) = (desk.dice.below(50), 1 + desk.dice.below(20) as u32);
                (pick(desk.dice, &[main, dead]), Request::Peek { group, from, max })
            }
            60..80 => (pick(desk.dice, &[main, dead, temporary]), Request::Info),
            _ => return,
        };
        desk.ask(queue, request);
    }

    fn answered(&mut self, _: &mut Desk<'_>, _: &Pending, _: &Reply) {}

    fn lost(&mut self, _: &Pending) {}
}
