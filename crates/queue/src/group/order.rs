//! Whether there is order by key changes: for one message after the other, the lowest first.

use super::{Group, State};
use crate::pool::Known;
use crate::runs::Runs;
use crate::shared::Shared;

impl Group {
    /// Whether there is order by key has changed; for messages below `to` it is so when [lining up](Self::line_up) has
    /// come to them.
    pub(crate) fn turn_order(&mut self, to: u64) {
        let mut turning = Runs::default();
        turning.insert_range(0..to);
        // Those that it had not come to are as they are to be.
        self.turning.runs().for_each(|run| turning.remove_range(run));
        self.turning = turning;
    }

    /// Whether there are messages for which there is to be order by key, and is none, or the other way round.
    pub(crate) fn is_lining_up(&self) -> bool {
        !self.turning.is_empty()
    }

    /// Lets messages line up, or out of their lines, as long as `most` is not 0.
    pub(crate) fn line_up(&mut self, shared: &mut Shared, most: &mut usize, now_ms: u64) {
        while *most > 0
            && let Some(from) = self.turning.first()
        {
            *most -= 1;
            let Some(offset) = self.pending.first_from(from) else {
                self.turning = Runs::default();
                return;
            };
            let turns = self.turning.contains(offset);
            // What is not pending is as it is to be if it is pending again.
            self.turning.remove_range(from..offset + 1);
            let key = shared.pool.get(offset).filter(|_| turns).and_then(Known::key);
            match key {
                Some(key) if shared.config.fifo => self.enter_line(shared, key, offset, now_ms),
                Some(key) => self.leave_line(shared, key, offset, now_ms),
                None => {}
            }
        }
    }

    fn enter_line(&mut self, shared: &mut Shared, key: u64, offset: u64, now_ms: u64) {
        match self.state(offset) {
            State::Idle | State::Delayed { .. } => {
                self.withdraw(shared, offset);
                self.admit(shared, offset, now_ms);
            }
            State::Leased { .. } => {
                let out = self.lines.out(key).filter(|&out| out != offset);
                match out {
                    None => drop(self.lines.enter(key, offset)),
                    Some(out) if self.is_taken(key, out) => self.lines.enter_astray(key, offset),
                    Some(out) => {
                        self.unready(shared, out);
                        self.lines.enter_instead(key, offset);
                    }
                }
            }
            State::Leaving { .. } => {}
        }
    }

    /// Whether a message that is out of its line is neither ready nor settled.
    fn is_taken(&self, key: u64, out: u64) -> bool {
        let is_busy = matches!(self.state(out), State::Leased { .. } | State::Delayed { .. });
        is_busy && !self.lines.is_settled(key, out)
    }

    fn leave_line(&mut self, shared: &mut Shared, key: u64, offset: u64, now_ms: u64) {
        let state = self.state(offset);
        if let State::Leaving { .. } = state {
            return;
        }
        if let Some(next) = self.lines.leave(key, offset) {
            self.let_out(shared, key, next, now_ms);
        }
        if state == State::Idle && !self.is_ready(shared, offset) {
            self.place(shared, offset, now_ms);
        }
    }
}
