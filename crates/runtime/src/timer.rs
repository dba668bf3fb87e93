//! A hierarchical timing wheel: sets and fires timers in constant time, regardless of their number.
//!
//! Timers cannot be canceled: the owner checks its own state when a token fires. This keeps a timer at 16 bytes and
//! makes re-arming a keep-alive free.
//! (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", 1987.)

/// Length of a tick, the resolution of every timer, ms.
const TICK_MS: u64 = 8;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Six levels of 64 slots span 17 years. Timers beyond wait in the last slot and are sorted in again.
const LEVELS: usize = 6;

#[derive(Debug, Clone, Copy)]
struct Timer {
    tick: u64,
    token: u64,
}

#[derive(Debug)]
pub(crate) struct Wheel {
    now: u64,
    levels: Vec<[Vec<Timer>; SLOTS]>,
    /// One bit per slot that holds a timer.
    occupied: [u64; LEVELS],
}

impl Wheel {
    pub(crate) fn new(now_ms: u64) -> Self {
        let levels = (0..LEVELS).map(|_| std::array::from_fn(|_| Vec::new())).collect();
        Self { now: now_ms / TICK_MS, levels, occupied: [0; LEVELS] }
    }

    /// Schedules `token` for the first turn at or after `at_ms`.
    pub(crate) fn set(&mut self, at_ms: u64, token: u64) {
        let tick = at_ms.div_ceil(TICK_MS).max(self.now + 1);
        self.place(Timer { tick, token });
    }

    fn place(&mut self, timer: Timer) {
        let tick = timer.tick.min(self.now + (1 << (SLOT_BITS * LEVELS as u32)) - 1).max(self.now);
        // The level is that of the highest bits in which `tick` and `now` differ.
        let differing = (tick ^ self.now) | 1;
        let level = (differing.ilog2() / SLOT_BITS).min(LEVELS as u32 - 1) as usize;
        let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
        self.levels[level][slot].push(timer);
        self.occupied[level] |= 1 << slot;
    }

    /// Milliseconds until a timer may be due; `None` without timers. May be early, never late.
    pub(crate) fn next_in_ms(&self, now_ms: u64) -> Option<u64> {
        let mut best: Option<u64> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let position = (self.now >> shift) as u32 % SLOTS as u32;
            // The wheel visits the slots after the current one in order. Above level 0 the current slot was
            // cascaded already: its timers are a whole round away.
            let rotated = self.occupied[level].rotate_right(position);
            let later = if level == 0 { rotated } else { rotated & !1 };
            let ahead = if later == 0 { SLOTS as u64 } else { u64::from(later.trailing_zeros()) };
            let due = ((self.now >> shift) + ahead) << shift;
            best = Some(best.map_or(due, |known| known.min(due)));
        }
        best.map(|tick| (tick * TICK_MS).saturating_sub(now_ms))
    }

    /// Advances the wheel to `now_ms` and appends the due tokens in tick order.
    pub(crate) fn advance(&mut self, now_ms: u64, due: &mut impl Extend<u64>) {
        let target = now_ms / TICK_MS;
        while self.now < target {
            if self.occupied == [0; LEVELS] {
                self.now = target;
                return;
            }
            self.now += 1;
            self.cascade();
            let slot = self.now as usize % SLOTS;
            if self.occupied[0] & (1 << slot) != 0 {
                self.occupied[0] &= !(1 << slot);
                due.extend(self.levels[0][slot].drain(..).map(|timer| timer.token));
            }
        }
    }

    /// Redistributes the timers of every higher slot that starts at this tick to the levels below.
    fn cascade(&mut self) {
        for level in 1..LEVELS {
            let shift = SLOT_BITS * level as u32;
            if !self.now.is_multiple_of(1 << shift) {
                return;
            }
            let slot = (self.now >> shift) as usize % SLOTS;
            if self.occupied[level] & (1 << slot) == 0 {
                continue;
            }
            self.occupied[level] &= !(1 << slot);
            for timer in std::mem::take(&mut self.levels[level][slot]) {
                self.place(timer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the wheel with a list: every token fires once, at its tick.
    #[test]
    fn fires_every_timer_once_and_on_time() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut now = 5_000;
        let mut wheel = Wheel::new(now);
        let mut set: Vec<(u64, u64)> = Vec::new();
        let mut token = 0;
        let mut fired = Vec::new();
        for _ in 0..3_000 {
            for _ in 0..random() % 4 {
                let span = [10, 1_000, 100_000, 10_000_000][(random() % 4) as usize];
                let at = now + random() % span;
                wheel.set(at, token);
                set.push((at, token));
                token += 1;
            }
            let earliest = set.iter().map(|(at, _)| *at).min();
            if let (Some(earliest), Some(next)) = (earliest, wheel.next_in_ms(now)) {
                assert!(now + next <= earliest + 2 * TICK_MS, "the wheel would sleep over a timer");
            }
            now += random() % 5_000;
            fired.clear();
            wheel.advance(now, &mut fired);
            for token in &fired {
                let index = set.iter().position(|(_, known)| known == token).expect("a token fires once");
                assert!(set[index].0 <= now, "fired early");
                set.swap_remove(index);
            }
            assert!(set.iter().all(|(at, _)| *at + 2 * TICK_MS > now), "a timer is late");
        }
        wheel.advance(now + 20_000_000, &mut fired);
        assert!(wheel.next_in_ms(now).is_none());
    }
}
