//! How long a shard waits for more input after a busy turn.
//!
//! Input that arrives while a shard waits is handled in one turn, with fewer system calls. But clients that send
//! only after a response are silent meanwhile: with ten messages in flight in all and a pause of 1 ms, ten messages per
//! millisecond pass and the shard is idle. A single turn looks the same in both cases, so the pause is found by trial:
//! now and then a shorter one is in effect for a window of time. If more input arrives in it, clients were waiting, and
//! the shorter pause stays; otherwise longer pauses are tried, as long as they do not lower the rate. Trials that fail
//! become rare.

/// Shortest length of a window.
const WINDOW_NS: u64 = 10_000_000;
/// A window with fewer busy turns says nothing about pauses.
const BUSY_TURNS_MIN: u32 = 4;
/// A window has at least the time for this many of the longest pauses.
const LONGEST_PAUSES: u64 = 10;
/// The shortest pause is this fraction of the longest. There is always one: without, turns may be too small to be busy,
/// and then nothing would be tried any more.
const SHORTEST: u64 = 16;
/// Windows between two trials, at most.
const BACKOFF_MAX: u32 = 64;

/// Finds the longest pause that does not lower the rate of input.
#[derive(Debug)]
pub(crate) struct Coalescing {
    max_ns: u64,
    window_ns: u64,
    /// The pause outside of trials.
    pause_ns: u64,
    window: Window,
    trial: Option<Trial>,
    /// Windows before the next trial.
    windows_until_trial: u32,
    /// What that was set to last.
    backoff: u32,
    /// The next trial is of a longer pause.
    is_next_longer: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began_ns: u64,
    /// Input before the window, bytes.
    bytes: u64,
    busy_turns: u32,
}

/// A window with another pause.
#[derive(Clone, Copy, Debug)]
struct Trial {
    pause_ns: u64,
    /// Rate of the window before, bytes per second.
    rate: u64,
}

impl Coalescing {
    /// With pauses of at most `us` microseconds; 0 is for none.
    pub(crate) fn with_max_us(us: u32) -> Self {
        let max_ns = u64::from(us) * 1_000;
        Self {
            max_ns,
            window_ns: WINDOW_NS.max(LONGEST_PAUSES * max_ns),
            pause_ns: max_ns,
            window: Window::default(),
            trial: None,
            windows_until_trial: 0,
            backoff: 1,
            is_next_longer: false,
        }
    }

    /// Minimum time between the start of a busy turn and the next turn, ns.
    #[inline]
    pub(crate) fn pause_ns(&self) -> u64 {
        self.trial.map_or(self.pause_ns, |trial| trial.pause_ns)
    }

    /// Notes a turn that begins now: the input of all turns before it, bytes, and whether the last one was busy.
    #[inline]
    pub(crate) fn note_turn(&mut self, now_ns: u64, bytes: u64, was_busy: bool) {
        self.window.busy_turns += u32::from(was_busy);
        if now_ns >= self.window.began_ns + self.window_ns {
            self.end_window(now_ns, bytes);
        }
    }

    #[inline(never)]
    fn end_window(&mut self, now_ns: u64, bytes: u64) {
        let Window { began_ns, bytes: bytes_before, busy_turns } = self.window;
        self.window = Window { began_ns: now_ns, bytes, busy_turns: 0 };
        let trial = self.trial.take();
        if busy_turns < BUSY_TURNS_MIN {
            // The load is too low to try anything; whoever comes next finds the pause as it was.
            return;
        }
        let elapsed_us = ((now_ns - began_ns) / 1_000).max(1);
        let rate = (bytes - bytes_before).saturating_mul(1_000_000) / elapsed_us;
        let Some(trial) = trial else {
            return self.begin_trial(rate);
        };
        let is_longer = trial.pause_ns > self.pause_ns;
        // A shorter pause must pay, and a longer one may cost what cannot be told from noise. If messages pass two
        // shards, halving the shorter pause of the two gains a sixth.
        let is_success = if is_longer { rate >= trial.rate / 20 * 19 } else { rate > trial.rate / 8 * 9 };
        if is_success {
            self.pause_ns = trial.pause_ns;
            self.is_next_longer = is_longer;
            self.backoff = 1;
        } else {
            self.is_next_longer = !is_longer;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
            self.windows_until_trial = self.backoff;
        }
    }

    fn begin_trial(&mut self, rate: u64) {
        if self.windows_until_trial > 0 {
            self.windows_until_trial -= 1;
            return;
        }
        let shortest_ns = self.max_ns / SHORTEST;
        let is_longer = self.pause_ns < self.max_ns && (self.is_next_longer || self.pause_ns <= shortest_ns);
        let other_ns = if is_longer { self.pause_ns * 2 } else { self.pause_ns / 2 };
        let pause_ns = other_ns.clamp(shortest_ns, self.max_ns);
        if pause_ns != self.pause_ns {
            self.trial = Some(Trial { pause_ns, rate });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_US: u32 = 1_000;
    /// The longest pause that the configuration allows.
    const MAX_US_MAX: u32 = 10_000;
    const MESSAGE_BYTES: u64 = 100;

    /// A shard, its load and its clock. A turn takes 10 us and 1 us per message.
    struct Model {
        coalescing: Coalescing,
        now_ns: u64,
        bytes: u64,
        was_busy: bool,
        /// Messages per ms that come whatever the shard does.
        open_per_ms: u64,
        /// Messages that come `response_ns` after the shard has handled those before them.
        closed: u64,
        response_ns: u64,
        opened: u64,
    }

    impl Model {
        fn new(open_per_ms: u64, closed: u64, response_ns: u64) -> Self {
            let coalescing = Coalescing::with_max_us(MAX_US);
            Self {
                coalescing,
                now_ns: 0,
                bytes: 0,
                was_busy: false,
                open_per_ms,
                closed,
                response_ns,
                opened: 0,
            }
        }

        /// Runs for some time. Returns the messages and the turns per ms.
        fn run(&mut self, ms: u64) -> (u64, u64) {
            let (end_ns, bytes, mut turns) = (self.now_ns + ms * 1_000_000, self.bytes, 0);
            let mut closed_at_ns = self.now_ns;
            while self.now_ns < end_ns {
                let opened = self.now_ns * self.open_per_ms / 1_000_000;
                let mut messages = opened - self.opened;
                self.opened = opened;
                let has_closed = closed_at_ns <= self.now_ns;
                messages += if has_closed { self.closed } else { 0 };
                if messages == 0 {
                    self.now_ns += 5_000;
                    continue;
                }
                self.coalescing.note_turn(self.now_ns, self.bytes, self.was_busy);
                turns += 1;
                let began_ns = self.now_ns;
                self.bytes += messages * MESSAGE_BYTES;
                self.now_ns += 10_000 + messages * 1_000;
                if has_closed {
                    closed_at_ns = self.now_ns + self.response_ns;
                }
                self.was_busy = messages > 4;
                if self.was_busy {
                    self.now_ns = self.now_ns.max(began_ns + self.coalescing.pause_ns());
                }
            }
            ((self.bytes - bytes) / MESSAGE_BYTES / ms, turns / ms)
        }
    }

    #[test]
    fn clients_that_wait_for_responses_are_not_delayed() {
        for (closed, response_ns, undelayed) in [(10, 70_000, 111), (10, 50_000, 142), (100, 100_000, 476)] {
            let mut model = Model::new(0, closed, response_ns);
            model.run(1_000);
            let (rate, _) = model.run(1_000);
            // A part of the time goes to trials, and a pause may cost up to a quarter of the rate.
            assert!(rate * 10 >= undelayed * 7, "{closed} in flight: {rate} of {undelayed} per ms");
        }
    }

    #[test]
    fn the_longest_pause_of_all_becomes_shorter_too() {
        let mut model = Model::new(0, 10, 50_000);
        model.coalescing = Coalescing::with_max_us(MAX_US_MAX);
        model.run(10_000);
        let (rate, _) = model.run(1_000);
        // Its shortest pause is 625 us: 10 messages in each.
        assert!(rate >= 12, "{rate} per ms");
    }

    #[test]
    fn input_on_a_schedule_is_handled_in_batches() {
        for per_ms in [20, 100, 500] {
            let mut model = Model::new(per_ms, 0, 0);
            // A burst, after which turns are busy.
            model.now_ns = 1_000_000;
            let (rate, _) = model.run(1_000);
            assert!(rate.abs_diff(per_ms) <= 1, "{rate} of {per_ms} per ms");
            let (_, turns) = model.run(1_000);
            assert!(turns <= 1, "{per_ms} per ms: {turns} turns per ms");
        }
    }

    #[test]
    fn pauses_become_long_again_when_clients_stop_to_wait() {
        let mut model = Model::new(0, 10, 20_000);
        model.run(1_000);
        assert!(model.coalescing.pause_ns < 250_000, "{}", model.coalescing.pause_ns);
        // A burst at first, as above.
        (model.open_per_ms, model.closed, model.opened) = (100, 0, model.now_ns / 1_000_000 * 100 - 20);
        model.run(3_000);
        assert_eq!(model.coalescing.pause_ns, u64::from(MAX_US) * 1_000);
    }

    #[test]
    fn without_a_longest_pause_there_is_none() {
        let mut coalescing = Coalescing::with_max_us(0);
        for turn in 0..100_000 {
            coalescing.note_turn(turn * 10_000, turn * turn, true);
            assert_eq!(coalescing.pause_ns(), 0);
        }
    }
}
