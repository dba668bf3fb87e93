//! What a scenario contributes to a run: its clients, and the oracle that judges what they observe.

use std::fmt::Debug;

use mainstem_disk::fault::Rng;

use super::{Engine, Environment, LinkId, Violation};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Clients act.
    Act,
    /// Bytes arrive at the broker.
    ToBroker,
    /// Bytes, or the end of a connection, arrive at a client.
    ToClient,
    /// A shard ends its turn and begins the next.
    Turn,
    /// A connection stalls or goes on.
    Stall,
    /// The broker notices that a client is gone.
    HangUp,
    /// Time passes.
    AdvanceTime,
}

/// The steps of a scenario with their weights, which add up to 100.
pub(crate) type Mix = &'static [(Step, u64)];

/// How long the end of a run may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettleLimits {
    /// Virtual time per round.
    pub(crate) round_ms: u64,
    /// Turns of each shard per round.
    pub(crate) turns: u32,
    /// Quiet rounds in a row after which nothing can be under way.
    pub(crate) quiet_rounds: u32,
    /// Rounds without a delivery after which the run fails.
    pub(crate) idle_rounds_max: u32,
    /// Rounds after which the run fails, whatever is delivered.
    pub(crate) rounds_max: u32,
    /// Rounds after which a broker with disk faults is restarted.
    pub(crate) restart_rounds: u32,
}

/// How a broker has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    First,
    /// It has recovered what is left of the last one.
    Recovered {
        lost_power: bool,
    },
}

/// Something that a scenario's clients or its oracle notice.
#[derive(Debug)]
pub(crate) enum Event<'a, C> {
    BrokerStarted(Start),
    /// The broker has ended. All connections are gone.
    BrokerEnded,
    /// A shard has begun a turn. If `is_written`, everything of its last turn was written and reported.
    TurnBegan {
        shard: usize,
        is_written: bool,
    },
    /// The file system crashed in a shard's turn: its output is gone.
    TurnCrashed,
    /// A shard sends bytes to a client.
    Sent {
        link: LinkId,
        client: C,
        bytes: &'a [u8],
    },
    /// A client receives bytes. They may be the last ones, and the connection already gone.
    Received {
        link: LinkId,
        client: C,
        bytes: &'a [u8],
    },
    /// The broker has closed a connection. Its client may have bytes to read.
    Closed {
        link: LinkId,
        client: C,
    },
    /// A client notices that its connection is gone, since `at_ms`.
    Disconnected {
        client: C,
        at_ms: u64,
    },
    /// The broker is done with a connection that was cut, and never sent these bytes.
    HungUp {
        link: LinkId,
        client: C,
        unsent: &'a [u8],
    },
}

/// What the clients of a run have achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) acknowledged: u64,
    pub(crate) delivered: u64,
}

/// The clients of a run and their oracle.
///
/// All randomness comes from the engine's generator, and the order of draws is part of a seed's meaning.
pub(crate) trait Scenario: Sized {
    /// Identifies a client with a connection.
    type Client: Copy + Debug + Eq;

    const MIX: Mix;
    const SETTLE: SettleLimits;

    /// Draws a run.
    fn draw(rng: &mut Rng) -> (Self, Environment);

    /// Lets one or more random clients act.
    fn act(&mut self, engine: &mut Engine<'_, Self::Client>) -> Result<(), Violation>;

    /// Lets every client complete what it has begun. Called once per round at the end of a run.
    fn act_all(&mut self, engine: &mut Engine<'_, Self::Client>) -> Result<(), Violation>;

    /// Takes note of an event.
    ///
    /// # Errors
    /// The broker has broken a promise.
    fn handle(
        &mut self,
        engine: &mut Engine<'_, Self::Client>,
        event: Event<'_, Self::Client>,
    ) -> Result<(), Violation>;

    /// Whether a client ends its connection after what it has received.
    fn is_leaving(&self, _client: Self::Client) -> bool {
        false
    }

    /// Whether a broker may be restarted at any step because it cannot recover by itself.
    fn needs_restart(&self, engine: &Engine<'_, Self::Client>) -> bool {
        engine.is_troubled()
    }

    /// Whether all clients have completed what they began.
    fn is_done(&self) -> bool;

    /// Everything has settled for the `count`th time. Returns whether the clients have begun something else.
    fn go_on(&mut self, engine: &mut Engine<'_, Self::Client>, count: u32) -> bool;

    /// Compares what was promised with what was observed in the whole run.
    ///
    /// # Errors
    /// The broker has broken a promise.
    fn check(&self, engine: &Engine<'_, Self::Client>) -> Result<(), Violation>;

    /// Number of MQTT sessions when everything has settled, if the scenario knows it.
    fn sessions(&self) -> Option<u64> {
        None
    }

    fn totals(&self) -> Totals;

    /// Describes the clients that have not completed what they began.
    fn unfinished(&self) -> String;
}
