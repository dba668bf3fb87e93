//! Error codes of brokers as failures, and trying again what may pass.

use std::time::{Duration, Instant};

use mainstem_kafka::ErrorCode;

use crate::tool::failure::Failure;

/// Pause before trying again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What an error code says of `what`, with the broker's words if it has any. No error if the code says none.
///
/// # Errors
/// The failure.
pub(super) fn check(what: &str, code: i16, message: Option<&str>) -> Result<(), Failure> {
    let error = ErrorCode::from_code(code);
    if error == Some(ErrorCode::None) {
        return Ok(());
    }
    let name = error.map_or_else(|| format!("error {code}"), |error| error.name().to_owned());
    let detail = message.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default();
    let text = format!("{what}: {name}{detail}");
    Err(if error.is_some_and(may_pass) { Failure::lost(text) } else { Failure::new(text) })
}

/// Whether the same request may succeed a moment later.
fn may_pass(error: ErrorCode) -> bool {
    matches!(
        error,
        ErrorCode::UnknownTopicOrPartition
            | ErrorCode::LeaderNotAvailable
            | ErrorCode::NotLeaderOrFollower
            | ErrorCode::RequestTimedOut
            | ErrorCode::NetworkException
            | ErrorCode::CoordinatorLoadInProgress
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::NotCoordinator
            | ErrorCode::NotEnoughReplicas
            | ErrorCode::NotEnoughReplicasAfterAppend
            | ErrorCode::FencedLeaderEpoch
            | ErrorCode::UnknownLeaderEpoch
    )
}

/// Tries until it succeeds, fails for good, or `patience` is over.
///
/// # Errors
/// The last failure.
pub(super) fn persist<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let until = Instant::now() + patience;
    loop {
        match attempt() {
            Err(failure) if failure.is_passing() && Instant::now() < until => std::thread::sleep(RETRY_PAUSE),
            outcome => return outcome,
        }
    }
}

/// The first failure of several things that were asked for together, all of which are told.
pub(super) struct Several {
    tool: &'static str,
    quiet: bool,
    first: Result<(), Failure>,
}

impl Several {
    /// Of `mainstem <tool>`.
    pub(super) fn new(tool: &'static str, quiet: bool) -> Self {
        Self { tool, quiet, first: Ok(()) }
    }

    /// Takes in one outcome.
    pub(super) fn add(&mut self, outcome: Result<(), Failure>) {
        match (&self.first, outcome) {
            (Ok(()), outcome) => self.first = outcome,
            (Err(_), Err(further)) if !self.quiet => eprintln!("mainstem {}: {further}", self.tool),
            _ => {}
        }
    }

    /// The first failure, which is still to be told.
    ///
    /// # Errors
    /// If there was one.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_kafkas_names_and_the_brokers_words() {
        assert_eq!(check("topic t", 0, None), Ok(()));
        let failure = check("topic t", 36, Some("it is there")).unwrap_err();
        assert_eq!(failure.to_string(), "topic t: TOPIC_ALREADY_EXISTS: it is there");
        assert!(!failure.is_passing());
        assert_eq!(check("x", 9999, None).unwrap_err().to_string(), "x: error 9999");
        assert!(check("x", 5, None).unwrap_err().is_passing());
    }

    #[test]
    fn what_may_pass_is_tried_again_and_nothing_else() {
        let mut attempts = 0;
        let outcome = persist(Duration::from_mins(1), || {
            attempts += 1;
            if attempts < 3 { check("x", 5, None) } else { check("x", 36, None) }
        });
        assert_eq!((attempts, outcome.unwrap_err().to_string()), (3, "x: TOPIC_ALREADY_EXISTS".into()));
        assert!(persist(Duration::ZERO, || check("x", 5, None)).is_err());
    }
}
