//! Warnings of certificates that end soon: once a day from 30 days before, so that nobody learns it from clients that
//! can no longer connect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_tls::CertificateEnd;

const DAY_S: i64 = 86_400;
/// How long before its end a certificate is warned of.
const WARN_BEFORE_S: i64 = 30 * DAY_S;

/// What has been warned of. It has as many entries as there are certificates in the configuration.
#[derive(Debug, Default)]
pub(super) struct ExpiryWarnings(BTreeMap<(String, PathBuf), Warned>);

#[derive(Clone, Copy, Debug)]
struct Warned {
    not_after_s: i64,
    at_s: i64,
}

impl ExpiryWarnings {
    /// Logs the warnings that are due.
    pub(super) fn log<'a>(&mut self, ends: impl Iterator<Item = (&'a str, CertificateEnd)>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for warning in self.due(ends, now.as_secs().cast_signed()) {
            log::warn!("{warning}");
        }
    }

    /// The warnings that are due at a time.
    fn due<'a>(&mut self, ends: impl Iterator<Item = (&'a str, CertificateEnd)>, now_s: i64) -> Vec<String> {
        let mut due = Vec::new();
        for (listener, CertificateEnd { file, not_after_s }) in ends {
            let left_s = not_after_s - now_s;
            let key = (listener.to_owned(), file);
            if left_s > WARN_BEFORE_S {
                self.0.remove(&key);
                continue;
            }
            let is_known = |warned: &Warned| {
                warned.not_after_s == not_after_s && (0..DAY_S).contains(&(now_s - warned.at_s))
            };
            if self.0.get(&key).is_some_and(is_known) {
                continue;
            }
            let when = match left_s {
                ..0 => "has ended: clients refuse it".to_owned(),
                0..DAY_S => "ends within a day".to_owned(),
                _ => format!("ends in {} days", left_s / DAY_S),
            };
            let file = key.1.display();
            due.push(format!(
                "listener {listener:?}: the certificate in {file} {when}; replace the file (tls.certificate)"
            ));
            self.0.insert(key, Warned { not_after_s, at_s: now_s });
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_once_a_day_until_it_is_replaced() {
        let mut warnings = ExpiryWarnings::default();
        let mut due = |not_after_s, now_s| {
            let end = CertificateEnd { file: "a.crt".into(), not_after_s };
            warnings.due(std::iter::once(("mqtts", end)), now_s)
        };
        let end = 100 * DAY_S;
        assert!(due(end, end - WARN_BEFORE_S - 1).is_empty());
        let first = due(end, end - WARN_BEFORE_S);
        let text = "listener \"mqtts\": the certificate in a.crt ends in 30 days; replace the file (tls.certificate)";
        assert_eq!(first, [text]);
        assert!(due(end, end - WARN_BEFORE_S + DAY_S - 1).is_empty(), "warned within a day");
        assert!(due(end, end - WARN_BEFORE_S + DAY_S)[0].contains("in 29 days"));
        assert!(due(end + 1, end - WARN_BEFORE_S + DAY_S)[0].contains("in 29 days"), "another certificate");
        assert!(due(end, end - 1)[0].contains("within a day"));
        assert!(due(end, end + DAY_S)[0].contains("has ended"));
        assert!(due(end, end).len() == 1, "a clock that goes back keeps no warning from the log");
        assert!(due(end + 90 * DAY_S, end).is_empty());
    }
}
