//! Why a tool failed, and the exit status that says so.

use std::fmt;
use std::io;

use mainstem_mqtt::ReasonCode;

use super::describe::reason_words;

/// Exit status when `-W` ran out, the same as other clients use.
const STATUS_TIMED_OUT: u8 = 27;

/// Why a tool ended without having done what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    text: String,
    status: u8,
    /// Connecting again may help.
    passing: bool,
}

impl Failure {
    /// A failure of this side: exit status 1.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: 1, passing: false }
    }

    /// A failure of the network, or of a broker that may come back: exit status 1.
    pub(crate) fn lost(text: impl Into<String>) -> Self {
        Self { passing: true, ..Self::new(text) }
    }

    /// The broker refused with a reason code, which becomes the exit status.
    pub(crate) fn refused(what: &str, reason: ReasonCode, reason_string: Option<&str>) -> Self {
        let detail = reason_string.map(|text| format!(": {text}")).unwrap_or_default();
        let passing = matches!(
            reason,
            ReasonCode::ServerUnavailable
                | ReasonCode::ServerBusy
                | ReasonCode::ServerShuttingDown
                | ReasonCode::KeepAliveTimeout
                | ReasonCode::AdministrativeAction
                | ReasonCode::ConnectionRateExceeded
                | ReasonCode::MaximumConnectTime
        );
        // A DISCONNECT may carry Success, and it is a failure all the same.
        let status = (reason as u8).max(1);
        Self { text: format!("{what}: {}{detail}", reason_words(reason)), status, passing }
    }

    /// The time the user set has passed. Nothing needs to be said about it.
    pub(crate) fn timed_out() -> Self {
        Self { text: String::new(), status: STATUS_TIMED_OUT, passing: false }
    }

    /// The same, with `prefix` before its text.
    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        Self { text: format!("{prefix}: {}", self.text), ..self }
    }

    /// Whether there is nothing to say beyond the status.
    pub(crate) fn is_silent(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether connecting again may help.
    pub(crate) fn is_passing(&self) -> bool {
        self.passing
    }

    /// The process's exit status.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text of an I/O error as it reads in the middle of a sentence, without the number.
pub(crate) fn io_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_reason_and_becomes_the_exit_status() {
        let failure = Failure::refused("publish refused", ReasonCode::QuotaExceeded, Some("try tomorrow"));
        assert_eq!(failure.to_string(), "publish refused: quota exceeded (0x97): try tomorrow");
        assert_eq!(failure.status(), 0x97);
    }

    #[test]
    fn io_errors_read_as_part_of_a_sentence() {
        let error = io::Error::from_raw_os_error(rustix::io::Errno::CONNREFUSED.raw_os_error());
        assert_eq!(io_words(&error), "connection refused");
    }
}
