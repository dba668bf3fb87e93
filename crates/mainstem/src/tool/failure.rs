//! Errors of the tools, with the exit status.

use std::fmt;
use std::io;

use mainstem_mqtt::ReasonCode;

use super::describe::reason_text;

/// Exit status when `-W` expired, as in the Mosquitto clients.
const STATUS_TIMED_OUT: u8 = 27;

/// Why a tool failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    text: String,
    status: u8,
    /// A retry may succeed.
    transient: bool,
}

impl Failure {
    /// A permanent error, with exit status 1.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: 1, transient: false }
    }

    /// An error of the network or the broker that a retry may resolve, with exit status 1.
    pub(crate) fn transient(text: impl Into<String>) -> Self {
        Self { transient: true, ..Self::new(text) }
    }

    /// An error reason code of the broker, which becomes the exit status.
    pub(crate) fn refused(what: &str, reason: ReasonCode, reason_string: Option<&str>) -> Self {
        let detail = reason_string.map(|text| format!(": {text}")).unwrap_or_default();
        let transient = matches!(
            reason,
            ReasonCode::ServerUnavailable
                | ReasonCode::ServerBusy
                | ReasonCode::ServerShuttingDown
                | ReasonCode::KeepAliveTimeout
                | ReasonCode::AdministrativeAction
                | ReasonCode::ConnectionRateExceeded
                | ReasonCode::MaximumConnectTime
        );
        // A DISCONNECT with reason code 0 is a failure too.
        let status = (reason as u8).max(1);
        Self { text: format!("{what}: {}{detail}", reason_text(reason)), status, transient }
    }

    /// The timeout of `-W` expired. Has no message.
    pub(crate) fn timed_out() -> Self {
        Self { text: String::new(), status: STATUS_TIMED_OUT, transient: false }
    }

    /// Puts `prefix` before the message.
    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        Self { text: format!("{prefix}: {}", self.text), ..self }
    }

    /// Whether there is no message to print.
    pub(crate) fn is_silent(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        self.transient
    }

    /// Exit status of the process.
    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The message of an I/O error, in lower case and without the error number.
pub(crate) fn io_message(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_code_becomes_message_and_exit_status() {
        let failure = Failure::refused("publish refused", ReasonCode::QuotaExceeded, Some("try tomorrow"));
        assert_eq!(failure.to_string(), "publish refused: quota exceeded (0x97): try tomorrow");
        assert_eq!(failure.status(), 0x97);
    }

    #[test]
    fn io_message_is_lower_case_without_number() {
        let error = io::Error::from_raw_os_error(rustix::io::Errno::CONNREFUSED.raw_os_error());
        assert_eq!(io_message(&error), "connection refused");
    }
}
