//! Operators: they inspect, purge, replay, redrive, configure, create and delete queues.

use mainstem_queue_core::{DEFAULT_GROUP, GroupName, ReplayFrom, Reply, Request};

use super::client::{Client, Context};
use super::oracle::Pending;
use super::plan::Role;
use crate::engine::pick;

#[derive(Debug)]
pub(crate) struct Operator;

impl Client for Operator {
    fn act(&mut self, context: &mut Context<'_>) {
        if context.waiting > 0 || context.is_ending {
            return;
        }
        let main = context.any_queue(|role| matches!(role, Role::Main { .. }));
        let dead = context.any_queue(|role| role == Role::Dead);
        let temporary = context.any_queue(|role| role == Role::Temporary);
        let group: GroupName = pick(context.rng, &[DEFAULT_GROUP, DEFAULT_GROUP, "others"]).into();
        let (queue, request) = match context.rng.below(200) {
            0 => (main, Request::Purge { group: Some(group).filter(|_| context.rng.chance(70)) }),
            1 => (dead, Request::Purge { group: None }),
            2 | 3 => (main, Request::Replay { group, from: ReplayFrom::Offset(context.rng.below(100)) }),
            4 => {
                let from = ReplayFrom::Time(context.unix_ms.saturating_sub(context.rng.below(5_000)));
                (main, Request::Replay { group, from })
            }
            5 => (main, Request::RemoveGroup { group: "others".into() }),
            6..16 => (dead, Request::Redrive { max: pick(context.rng, &[1, 3, 1_000]) }),
            16..22 => (temporary, Request::Delete),
            22..30 => (temporary, Request::Create { settings: Vec::new() }),
            30..34 => {
                let settings = context.plan.queues[main].change(context.rng);
                (main, Request::Configure { settings })
            }
            34..60 => {
                let (from, max) = (context.rng.below(50), 1 + context.rng.below(20) as u32);
                (pick(context.rng, &[main, dead]), Request::Peek { group, from, max })
            }
            60..80 => (pick(context.rng, &[main, dead, temporary]), Request::Info),
            _ => return,
        };
        context.ask(queue, request);
    }

    fn handle_reply(&mut self, _: &mut Context<'_>, _: &Pending, _: &Reply) {}

    fn connection_lost(&mut self, _: &Pending) {}
}
