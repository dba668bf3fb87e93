//! The `[log_in_hook]` section of the configuration: an HTTP service that decides log-ins.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mainstem_auth::{Hook, HookSettings, ServiceLimits};
use mainstem_mqtt_server::settings;

settings! {
    /// An HTTP service that decides the log-ins of users that the user store does not have. See security.md.
    pub struct LogInHookConfig {
        /// URL of the service, with https, or with http on this machine; empty for none.
        url: String = "";
        /// PEM file with the authorities that are trusted for `url`; empty for those of the system.
        ca_file: String = "";
        /// Value of the header Authorization of the requests, such as `Bearer SECRET`; empty for none. Set it by
        /// `MAINSTEM_LOG_IN_HOOK__AUTHORIZATION` rather than in a file that others can read.
        authorization: String = "", [secret];
        /// File with this value; empty for none.
        authorization_file: String = "";
        /// Longest time for an answer, in ms. Without one, the client is refused.
        timeout_ms: u32 = 2_000_u32, in 10 ..= 60_000;
        /// Requests at the same time. 1,000 more log-ins wait; others are refused.
        max_requests: u32 = 4_u32, in 1 ..= 64;
        /// How long an allowed log-in is allowed again without a request, in seconds; 0 for never.
        cache_s: u32 = 60_u32, in 0 ..= 86_400;
        /// Failures in a row after which the service is not asked for a while.
        max_failures: u32 = 5_u32, in 1 ..= 1_000;
        /// How long it is not asked then, in ms.
        pause_ms: u32 = 5_000_u32, in 100 ..= 600_000;
    }
}

impl LogInHookConfig {
    /// Starts the threads; `None` without a service.
    ///
    /// # Errors
    /// A message for the user: the URL or a file is invalid.
    pub(crate) fn open(&self) -> Result<Option<Hook>, String> {
        if self.url.is_empty() {
            return Ok(None);
        }
        let file = |path: &String| (!path.is_empty()).then(|| PathBuf::from(path));
        let settings = HookSettings {
            url: self.url.clone(),
            ca_file: file(&self.ca_file),
            authorization: self.header_value()?,
            timeout: Duration::from_millis(self.timeout_ms.into()),
            limits: ServiceLimits {
                threads: self.max_requests as usize,
                keep: Duration::from_secs(self.cache_s.into()),
                failures_max: self.max_failures,
                pause: Duration::from_millis(self.pause_ms.into()),
            },
        };
        Hook::open(settings).map(Some)
    }

    /// The value of the header Authorization, if there is one.
    fn header_value(&self) -> Result<Option<String>, String> {
        let (source, value) = match (self.authorization.as_str(), self.authorization_file.as_str()) {
            ("", "") => return Ok(None),
            (value, "") => ("log_in_hook.authorization".to_owned(), Ok(value.to_owned())),
            ("", path) => (format!("log_in_hook.authorization_file: {path}"), fs::read_to_string(path)),
            _ => return Err("log_in_hook: set authorization or authorization_file, not both".into()),
        };
        let value = value.map_err(|error| format!("{source}: {error}"))?.trim().to_owned();
        if value.is_empty() || !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(format!("{source}: expected one line of printable ASCII characters"));
        }
        Ok(Some(value))
    }
}
