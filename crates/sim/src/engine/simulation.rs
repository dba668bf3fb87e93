//! The loop: draws steps until the run is over, then lets everything settle and has the result checked.
//!
//! Nothing else calls into a scenario, and a scenario never calls back: it acts on the engine and returns. The first
//! violation ends the run, and so does a panic, in the broker or in the simulator.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mainstem_disk::fault::{FaultFs, Rng};

use super::faults::{End, Fault};
use super::scenario::{Event, Scenario, SettleLimits, Start, Step, Totals};
use super::{Engine, LinkId, Phase, Tally, Violation, captured_log, invariants, pick};
use crate::FaultInjector;

type Checked = Result<(), Violation>;

struct Simulation<'a, S: Scenario> {
    engine: Engine<'a, S::Client>,
    scenario: S,
}

/// Runs one seed.
///
/// # Errors
/// What the broker did wrong.
pub(crate) fn simulate<S: Scenario>(seed: u64, injector: &mut dyn FaultInjector) -> Result<Tally, Violation> {
    run::<S>(seed, FaultFs::new(seed), injector)
}

/// Runs one seed. Returns everything that happens, one line each.
pub(crate) fn trace<S: Scenario>(seed: u64, injector: &mut dyn FaultInjector) -> Vec<String> {
    let fs = FaultFs::new(seed);
    fs.trace();
    captured_log::start();
    let outcome = run::<S>(seed, fs.clone(), injector);
    captured_log::stop();
    let mut trace = fs.take_trace();
    trace.push(format!("{outcome:?}"));
    trace
}

fn run<S: Scenario>(seed: u64, fs: FaultFs, injector: &mut dyn FaultInjector) -> Result<Tally, Violation> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut rng = Rng::new(seed);
        let (scenario, environment) = S::draw(&mut rng);
        let steps = environment.steps;
        let engine = Engine::start(rng, environment, fs, injector)?;
        let mut simulation = Simulation { engine, scenario };
        simulation.handle(Event::BrokerStarted(Start::First))?;
        for _ in 0..steps {
            simulation.step()?;
        }
        simulation.finish()?;
        Ok(simulation.tally())
    }));
    outcome.unwrap_or_else(|panic| Err(Violation(format!("panic: {}", message_of(&*panic)))))
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn draw_step(rng: &mut Rng, mix: &[(Step, u64)]) -> Step {
    let mut drawn = rng.below(100);
    for (step, weight) in mix {
        if drawn < *weight {
            return *step;
        }
        drawn -= weight;
    }
    unreachable!("the weights of steps add up to 100")
}

impl<S: Scenario> Simulation<'_, S> {
    fn handle(&mut self, event: Event<'_, S::Client>) -> Checked {
        self.scenario.handle(&mut self.engine, event)
    }

    fn tally(&self) -> Tally {
        let Totals { published, acknowledged, delivered } = self.scenario.totals();
        Tally { published, acknowledged, delivered, ..self.engine.tally }
    }

    fn step(&mut self) -> Checked {
        self.engine.tally.steps += 1;
        self.engine.now_ms += self.engine.rng.below(3);
        match self.engine.next_fault() {
            Fault::End(how) => self.end(how)?,
            Fault::Cut => self.cut_some()?,
            Fault::Nothing if self.scenario.needs_restart(&self.engine) && self.engine.rng.chance(1) => {
                self.end(End::Kill)?;
            }
            Fault::Nothing | Fault::Planned => {}
        }
        match draw_step(&mut self.engine.rng, S::MIX) {
            Step::Act => self.scenario.act(&mut self.engine)?,
            Step::ToBroker => self.deliver_to_broker(),
            Step::ToClient => self.deliver_to_client()?,
            Step::Turn => {
                let shard = self.engine.any_shard();
                let (syncs, reports) = (self.engine.rng.chance(40), self.engine.rng.chance(50));
                self.turn(shard, syncs, reports)?;
            }
            Step::Stall => self.stall_some(),
            Step::HangUp => self.hang_up_some()?,
            Step::AdvanceTime => self.advance_time()?,
        }
        self.engine.note_log();
        if self.engine.has_crashed() {
            let how = self.engine.sudden_end();
            self.end(how)?;
        }
        Ok(())
    }

    /// Time passes. An idle shard takes no turn in between, and reads the clock when something happens to it.
    fn advance_time(&mut self) -> Checked {
        self.engine.now_ms += pick(&mut self.engine.rng, &[20, 100, 500, 3_000]);
        self.turn_all(false)
    }

    fn turn_all(&mut self, is_written: bool) -> Checked {
        (0..self.engine.broker.shards()).try_for_each(|shard| self.turn(shard, is_written, is_written))
    }

    /// A shard ends its turn and begins the next. In between, its disk may sync what was committed, and may report
    /// what was synced.
    fn turn(&mut self, shard: usize, syncs: bool, reports: bool) -> Checked {
        let ended = self.engine.broker.end_turn(shard);
        if self.engine.has_crashed() {
            return self.handle(Event::TurnCrashed);
        }
        for (link, bytes) in ended.output {
            if let Some(client) = self.engine.network.get(link).map(|link| link.client) {
                self.handle(Event::Sent { link, client, bytes: &bytes })?;
            }
        }
        for link in ended.closed {
            self.close(link, ended.began_ms)?;
        }
        if syncs {
            self.engine.broker.sync(shard);
        }
        if reports {
            self.engine.broker.report(shard);
        }
        self.engine.broker.begin_turn(shard, self.engine.now_ms);
        let is_written = !self.engine.setup.plan.is_slow || (syncs && reports);
        self.handle(Event::TurnBegan { shard, is_written })?;
        invariants::check_turn(&self.engine.broker)
    }

    /// The broker has closed a connection, at the beginning of a turn: the expiry of its session counts from then.
    fn close(&mut self, link: LinkId, at_ms: u64) -> Checked {
        let Some((client, is_cut)) = self.engine.network.get(link).map(|link| (link.client, link.is_cut))
        else {
            return Ok(());
        };
        self.engine.note(|| format!("the broker closes the connection of {client:?}"));
        if is_cut {
            self.engine.network.remove(link);
            return self.handle(Event::HungUp { link, client, unsent: &[] });
        }
        self.engine.network.close(link, at_ms);
        self.handle(Event::Closed { link, client })
    }

    fn deliver_to_broker(&mut self) {
        let Engine { network, rng, broker, .. } = &mut self.engine;
        if let Some((link, bytes)) = network.draw_up(rng) {
            broker.feed(link, &bytes);
        }
    }

    fn deliver_to_client(&mut self) -> Checked {
        let Engine { network, rng, .. } = &mut self.engine;
        network.draw_down(rng).map_or(Ok(()), |(link, count)| self.deliver(link, count))
    }

    /// Delivers some bytes to a client, and the end of the connection if it is behind them.
    fn deliver(&mut self, link: LinkId, count: usize) -> Checked {
        let bytes = self.engine.network.take_down(link, count);
        let Some(known) = self.engine.network.get(link) else { return Ok(()) };
        let (client, closed_ms) = (known.client, known.closed_ms.filter(|_| known.down.is_empty()));
        self.handle(Event::Received { link, client, bytes: &bytes })?;
        if let Some(at_ms) = closed_ms {
            self.engine.network.remove(link);
            self.handle(Event::Disconnected { client, at_ms })
        } else if self.scenario.is_leaving(client) {
            self.cut(link)
        } else {
            Ok(())
        }
    }

    fn cut_some(&mut self) -> Checked {
        let Engine { network, rng, .. } = &mut self.engine;
        network.draw_cut(rng, false).map_or(Ok(()), |link| self.cut(link))
    }

    fn cut(&mut self, link: LinkId) -> Checked {
        let Some(client) = self.engine.network.get(link).map(|link| link.client) else { return Ok(()) };
        self.engine.cut(link);
        let at_ms = self.engine.now_ms;
        self.handle(Event::Disconnected { client, at_ms })
    }

    /// The broker notices that a client is gone, after all that the client sent, or after some of it.
    fn hang_up_some(&mut self) -> Checked {
        let Engine { network, rng, broker, .. } = &mut self.engine;
        let Some(link) = network.draw_cut(rng, true) else { return Ok(()) };
        if rng.chance(70) {
            broker.feed(link, &network.take_up(link, usize::MAX));
        }
        self.hang_up(link)
    }

    fn hang_up(&mut self, link: LinkId) -> Checked {
        let Some(client) = self.engine.network.get(link).map(|link| link.client) else { return Ok(()) };
        let unsent = self.engine.hang_up(link);
        self.handle(Event::HungUp { link, client, unsent: &unsent })
    }

    fn stall_some(&mut self) {
        let Engine { network, rng, broker, .. } = &mut self.engine;
        if let Some((link, is_stalled)) = network.draw_stalled(rng) {
            broker.set_stalled(link, is_stalled);
        }
    }

    /// The process ends, and another one starts with what it left on the disk.
    fn end(&mut self, how: End) -> Checked {
        let seed = self.engine.begin_end(how);
        if how == End::Clean {
            self.engine.is_draining = true;
            self.engine.broker.drain();
            self.turn_all(true)?;
            self.engine.is_draining = false;
        }
        let disk = self.engine.survivor(how, seed);
        self.lose_connections()?;
        self.handle(Event::BrokerEnded)?;
        let lost_power = self.engine.restart(&disk)? || how == End::Power;
        self.handle(Event::BrokerStarted(Start::Recovered { lost_power }))
    }

    /// All connections break. Some of what was on its way to clients still arrives.
    fn lose_connections(&mut self) -> Checked {
        for (link, mut lost) in self.engine.network.take() {
            if lost.is_cut {
                continue;
            }
            let arrives = match self.engine.rng.below(3) {
                0 => 0,
                1 => self.engine.rng.below(lost.down.len() as u64 + 1) as usize,
                _ => lost.down.len(),
            };
            lost.down.truncate(arrives);
            let (client, at_ms) = (lost.client, lost.closed_ms.unwrap_or(self.engine.now_ms));
            self.handle(Event::Received { link, client, bytes: &lost.down })?;
            self.handle(Event::Disconnected { client, at_ms })?;
        }
        Ok(())
    }

    /// Kills a broker and starts another one without faults.
    fn replace_broker(&mut self) -> Checked {
        self.end(End::Kill)?;
        self.engine.clear_faults();
        Ok(())
    }

    /// Lets everything settle, and checks what was promised.
    fn finish(&mut self) -> Checked {
        self.engine.note(|| "everything is to come to rest".to_owned());
        self.engine.clear_faults();
        self.engine.phase = Phase::Ending;
        self.settle()?;
        if self.engine.broker.is_failing() {
            // A broker that cannot write completes some publishes only after a restart.
            self.replace_broker()?;
            self.settle()?;
        }
        let mut count = 1;
        while self.scenario.go_on(&mut self.engine, count) {
            self.settle()?;
            count += 1;
        }
        self.scenario.check(&self.engine)?;
        invariants::check_rest(&mut self.engine.broker, self.scenario.sessions())
    }

    fn settle(&mut self) -> Checked {
        let SettleLimits { quiet_rounds, idle_rounds_max, rounds_max, restart_rounds, .. } = S::SETTLE;
        let (mut quiet, mut idle, mut delivered) = (0, 0, self.scenario.totals().delivered);
        for round in 0..rounds_max {
            let before = std::mem::replace(&mut delivered, self.scenario.totals().delivered);
            idle = if before == delivered { idle + 1 } else { 0 };
            if idle == idle_rounds_max {
                break;
            }
            if round % restart_rounds == restart_rounds - 1 && self.engine.is_troubled {
                self.replace_broker()?;
            }
            let has_moved = self.round()?;
            self.engine.note_log();
            if self.engine.has_crashed() {
                self.replace_broker()?;
            }
            let is_quiet = !has_moved && self.scenario.is_done() && !self.engine.broker.is_busy();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == quiet_rounds {
                return Ok(());
            }
        }
        Err(Violation(format!("nothing comes to rest: {}", self.scenario.unfinished())))
    }

    /// Every client acts, and everything under way arrives. Returns whether there was anything.
    fn round(&mut self) -> Result<bool, Violation> {
        self.engine.now_ms += S::SETTLE.round_ms;
        self.scenario.act_all(&mut self.engine)?;
        let mut has_moved = false;
        let ids = self.engine.network.ids();
        for id in &ids {
            let bytes = self.engine.network.take_up(*id, usize::MAX);
            let Some(link) = self.engine.network.get(*id) else { continue };
            let (is_cut, is_closed) = (link.is_cut, link.closed_ms.is_some());
            has_moved |= !bytes.is_empty();
            if !is_closed {
                self.engine.broker.set_stalled(*id, false);
                self.engine.broker.feed(*id, &bytes);
            }
            if is_cut {
                self.hang_up(*id)?;
            }
        }
        for _ in 0..S::SETTLE.turns {
            self.turn_all(true)?;
        }
        for id in ids {
            let Some(len) = self.engine.network.get(id).map(|link| link.down.len()) else { continue };
            has_moved |= len > 0;
            self.deliver(id, len)?;
        }
        Ok(has_moved)
    }
}
