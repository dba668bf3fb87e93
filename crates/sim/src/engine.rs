//! The engine: runs a broker with its clients in virtual time, one step after the other, as a seed decides.
//!
//! An [`Engine`] is what all scenarios share: the clock, the network, the disk, the broker and the faults planned for
//! them. A [`Scenario`] contributes the clients and the oracle that judges what they observe. [`simulate`] alternates
//! between the two: it draws what happens next, applies it to the engine, and reports to the scenario what its clients
//! notice of it. Every choice comes from one generator in one thread, so a seed always gives the same trace.

mod broker;
mod captured_log;
mod faults;
mod invariants;
mod network;
mod scenario;
mod simulation;
mod slow_store;

use mainstem_disk::Settings;
use mainstem_disk::fault::{FaultFs, Rng};
use mainstem_node::Protocol;

pub use broker::WrapStore;
pub(crate) use broker::{Broker, BrokerPlan};
pub(crate) use faults::FaultPlan;
pub(crate) use network::{LinkId, NetworkPlan};
pub(crate) use scenario::{Event, Mix, Scenario, SettleLimits, Start, Step, Totals};
pub(crate) use simulation::{simulate, trace};

use crate::FaultInjector;
use broker::Setup;
use network::Network;

/// Milliseconds since 1970 at virtual time 0.
pub(crate) const UNIX_MS_AT_ZERO: u64 = 1_800_000_000_000;
/// Virtual time at the start of a run.
const START_MS: u64 = 1_000;

/// What a broker or the simulator did wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// What happened in a run, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each counts what its name says")]
pub struct Tally {
    pub steps: u64,
    pub published: u64,
    pub acknowledged: u64,
    pub delivered: u64,
    pub kills: u64,
    pub power_losses: u64,
    pub clean_ends: u64,
    pub disk_faults: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.published += other.published;
        self.acknowledged += other.acknowledged;
        self.delivered += other.delivered;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.clean_ends += other.clean_ends;
        self.disk_faults += other.disk_faults;
    }
}

/// What a run needs from the engine: the part of a scenario's plan that is not about its clients.
#[derive(Clone)]
pub(crate) struct Environment {
    pub(crate) shards: usize,
    /// A restarted broker may have another number of shards.
    pub(crate) changes_shards: bool,
    pub(crate) steps: u64,
    pub(crate) broker: BrokerPlan,
    pub(crate) faults: FaultPlan,
    pub(crate) network: NetworkPlan,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Steps,
    /// The steps are over: clients only complete what they have begun.
    Ending,
}

/// The world around a scenario's clients `C`.
pub(crate) struct Engine<'a, C> {
    pub(crate) rng: Rng,
    pub(crate) network: Network<C>,
    pub(crate) broker: Broker,
    pub(crate) injector: &'a mut dyn FaultInjector,
    setup: Setup,
    changes_shards: bool,
    faults: FaultPlan,
    fs: FaultFs,
    now_ms: u64,
    /// A disk fault was planned since the broker was started.
    is_troubled: bool,
    /// The broker was asked to end.
    is_draining: bool,
    phase: Phase,
    tally: Tally,
}

impl<'a, C: Copy + std::fmt::Debug> Engine<'a, C> {
    fn start(
        mut rng: Rng,
        environment: Environment,
        fs: FaultFs,
        injector: &'a mut dyn FaultInjector,
    ) -> Result<Self, Violation> {
        let Environment { shards, changes_shards, broker, faults, network, .. } = environment;
        let setup = Setup { plan: broker, wrap: injector.wrap() };
        let broker = Broker::start(&fs, &setup, shards, rng.roll(), START_MS)
            .map_err(|error| Violation(format!("the broker does not start on an empty disk: {error}")))?;
        fs.note(|| format!("{shards} shards, {faults:?}"));
        Ok(Self {
            rng,
            network: Network::new(network),
            broker,
            injector,
            setup,
            changes_shards,
            faults,
            fs,
            now_ms: START_MS,
            is_troubled: false,
            is_draining: false,
            phase: Phase::Steps,
            tally: Tally::default(),
        })
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        UNIX_MS_AT_ZERO + self.now_ms
    }

    /// Whether a disk fault was planned since the broker was started.
    pub(crate) fn is_troubled(&self) -> bool {
        self.is_troubled
    }

    /// Whether the broker was asked to end.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether the steps are over, so that clients only complete what they have begun.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase == Phase::Ending
    }

    /// The numbers of the run so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The disk, for those who add to the trace or check whether it has crashed later than now.
    pub(crate) fn fs(&self) -> &FaultFs {
        &self.fs
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn note(&self, line: impl FnOnce() -> String) {
        self.fs.note(line);
    }

    /// Opens a connection to a listener of `protocol` on a random shard.
    pub(crate) fn open(&mut self, client: C, protocol: Protocol) -> LinkId {
        let link = self.network.connect(client);
        let shard = self.any_shard();
        self.broker.open(link, shard, protocol);
        self.note(|| format!("{client:?} connects to shard {shard}"));
        link
    }

    /// Ends the client's side of a connection. What it sent may still arrive at the broker.
    pub(crate) fn cut(&mut self, link: LinkId) {
        if let Some(client) = self.network.cut(link) {
            self.note(|| format!("{client:?} is cut off"));
        }
    }

    /// Ends both sides of a connection at once. Returns output of the broker that was never sent.
    pub(crate) fn hang_up(&mut self, link: LinkId) -> Vec<u8> {
        self.network.remove(link);
        self.broker.hang_up(link)
    }

    fn any_shard(&mut self) -> usize {
        self.rng.below(self.broker.shards() as u64) as usize
    }
}

/// Returns one of the choices, each with the same probability.
pub(crate) fn pick<T: Clone>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize].clone()
}

/// Store settings that make compaction, checkpoints and reuse of files frequent.
pub(crate) fn draw_store_settings(rng: &mut Rng) -> Settings {
    Settings {
        open_files: 16,
        journal_bytes: pick(rng, &[0, 65_536]),
        checkpoint_bytes: pick(rng, &[1_024, 16_384, 1 << 20]),
        ..Settings::default()
    }
}
