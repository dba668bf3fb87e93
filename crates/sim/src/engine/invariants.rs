//! Invariants of a broker that clients cannot observe: its gauges, and what it holds for work under way.
//!
//! The engine checks them after every turn of every shard, and once more when a run has come to rest. They find leaks
//! and counters that drift long before either has an effect on clients.

use mainstem_mqtt_server::Counters;

use super::Violation;
use super::broker::Broker;

/// Checks what holds between any two turns.
///
/// # Errors
/// A gauge is negative, or larger than another one that includes it.
pub(super) fn check_turn(broker: &Broker) -> Result<(), Violation> {
    let Counters { connections, clients_connected, sessions, .. } = broker.counters();
    let Counters { subscriptions, shared_subscriptions, queued_messages, log_failing, .. } =
        broker.counters();
    let gauges = [
        ("connections", connections),
        ("clients_connected", clients_connected),
        ("sessions", sessions),
        ("subscriptions", subscriptions),
        ("shared_subscriptions", shared_subscriptions),
        ("queued_messages", queued_messages),
        ("log_failing", log_failing),
    ];
    // A gauge that was decremented below zero has wrapped around.
    if let Some((name, value)) = gauges.into_iter().find(|(_, value)| value.cast_signed() < 0) {
        return Err(Violation(format!("the gauge {name} is {}", value.cast_signed())));
    }
    let pairs = [
        ("clients_connected", clients_connected, "sessions", sessions),
        ("clients_connected", clients_connected, "connections", connections),
        ("shared_subscriptions", shared_subscriptions, "subscriptions", subscriptions),
    ];
    for (part, of_them, whole, all) in pairs {
        if of_them > all {
            return Err(Violation(format!("the gauge {part} is {of_them}, and {whole} is {all}")));
        }
    }
    Ok(())
}

/// Checks what holds when nothing is under way.
///
/// # Errors
/// Something of what is over is still held.
pub(super) fn check_rest(broker: &mut Broker, sessions_expected: Option<u64>) -> Result<(), Violation> {
    let unfinished = broker.unfinished();
    if unfinished != 0 {
        return Err(Violation(format!("all is over, and {unfinished} things are remembered")));
    }
    if let Some((account, due)) = broker.accounts().into_iter().find(|(account, due)| account != due) {
        return Err(Violation(format!("the account of a session is {account} bytes, and should be {due}")));
    }
    let Counters { queued_messages, sessions, .. } = broker.counters();
    if queued_messages != 0 {
        return Err(Violation(format!("all is delivered, and {queued_messages} messages are queued")));
    }
    if let Some(expected) = sessions_expected.filter(|expected| *expected != sessions) {
        return Err(Violation(format!("there should be {expected} sessions, and there are {sessions}")));
    }
    Ok(())
}
