//! Conversion of Kafka error codes, and retries of transient errors.

use std::time::{Duration, Instant};

use mainstem_kafka::ErrorCode;

use crate::tool::failure::Failure;

/// Delay before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Converts an error code. The message has `context`, Kafka's name of the code, and the broker's message.
///
/// # Errors
/// If the code is not 0. The failure is transient if a retry may succeed.
pub(super) fn check(context: &str, code: i16, message: Option<&str>) -> Result<(), Failure> {
    let error = ErrorCode::from_code(code);
    if error == Some(ErrorCode::None) {
        return Ok(());
    }
    let name = error.map_or_else(|| format!("error {code}"), |error| error.name().to_owned());
    let detail = message.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default();
    let text = format!("{context}: {name}{detail}");
    Err(if error.is_some_and(is_retriable) { Failure::transient(text) } else { Failure::new(text) })
}

/// Whether a retry may succeed.
fn is_retriable(error: ErrorCode) -> bool {
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

/// Calls `attempt` until it succeeds, fails permanently, or `timeout` has passed.
///
/// # Errors
/// The last failure.
pub(super) fn retry<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let until = Instant::now() + timeout;
    loop {
        match attempt() {
            Err(failure) if failure.is_transient() && Instant::now() < until => {
                std::thread::sleep(RETRY_DELAY);
            }
            outcome => return outcome,
        }
    }
}

/// The first failure of a request for several items. Later failures are printed at once.
pub(super) struct FirstFailure {
    tool: &'static str,
    quiet: bool,
    first: Result<(), Failure>,
}

impl FirstFailure {
    pub(super) fn new(tool: &'static str, quiet: bool) -> Self {
        Self { tool, quiet, first: Ok(()) }
    }

    /// Records the outcome of one item.
    pub(super) fn record(&mut self, outcome: Result<(), Failure>) {
        match (&self.first, outcome) {
            (Ok(()), outcome) => self.first = outcome,
            (Err(_), Err(further)) if !self.quiet => eprintln!("mainstem {}: {further}", self.tool),
            _ => {}
        }
    }

    /// Returns the first failure, which has not been printed.
    ///
    /// # Errors
    /// If an item failed.
    pub(super) fn finish(self) -> Result<(), Failure> {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_messages_have_kafkas_name_and_the_brokers_message() {
        assert_eq!(check("topic t", 0, None), Ok(()));
        let failure = check("topic t", 36, Some("it is there")).unwrap_err();
        assert_eq!(failure.to_string(), "topic t: TOPIC_ALREADY_EXISTS: it is there");
        assert!(!failure.is_transient());
        assert_eq!(check("x", 9999, None).unwrap_err().to_string(), "x: error 9999");
        assert!(check("x", 5, None).unwrap_err().is_transient());
    }

    #[test]
    fn retries_transient_errors_only() {
        let mut attempts = 0;
        let outcome = retry(Duration::from_mins(1), || {
            attempts += 1;
            if attempts < 3 { check("x", 5, None) } else { check("x", 36, None) }
        });
        assert_eq!((attempts, outcome.unwrap_err().to_string()), (3, "x: TOPIC_ALREADY_EXISTS".into()));
        assert!(retry(Duration::ZERO, || check("x", 5, None)).is_err());
    }
}
