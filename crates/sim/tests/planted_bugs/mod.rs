//! Brokers with a bug each. The product's code is the same: what is wrong is between it and its disk, or between it and
//! its clients.

mod kafka;
mod mqtt;
mod queue;
mod stores;

use mainstem_sim::{FaultInjector, Scenario};

/// A bug that the simulator must find.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    /// Part of the violation that it must cause. A bug that causes only others is not found.
    pub(crate) evidence: &'static str,
    /// A seed that finds it, so that a run need not search. Other seeds are tried if it no longer does.
    pub(crate) seed: u64,
    pub(crate) make: fn() -> Box<dyn FaultInjector>,
}

impl Bug {
    const fn new(
        name: &'static str,
        evidence: &'static str,
        seed: u64,
        make: fn() -> Box<dyn FaultInjector>,
    ) -> Self {
        Self { name, evidence, seed, make }
    }
}

/// All bugs of a scenario.
pub(crate) fn of(scenario: Scenario) -> &'static [Bug] {
    match scenario {
        Scenario::Mqtt => &mqtt::BUGS,
        Scenario::Kafka => &kafka::BUGS,
        Scenario::Queue => &queue::BUGS,
    }
}

/// True once in `every` calls.
fn is_turn(count: &mut u64, every: u64) -> bool {
    *count += 1;
    count.is_multiple_of(every)
}
