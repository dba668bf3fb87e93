//! Environment variables that set configuration keys: `MAINSTEM_SECTION__KEY`.

use std::ffi::OsString;

use super::key_path::KeyPath;
use super::layers::Override;
use super::problem::{Origin, Problem};

const PREFIX: &str = "MAINSTEM_";
/// Between section and key. A variable without it is none of the configuration, such as `MAINSTEM_PASSWORD`.
const SEPARATOR: &str = "__";

/// The keys that `variables` set, and the variables that name none.
pub(crate) fn overrides(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Vec<Override>, Vec<Problem>) {
    let (mut overrides, mut problems) = (Vec::new(), Vec::new());
    for (name, value) in variables {
        let Some(name) = name.to_str().filter(|name| is_key(name)) else { continue };
        match parse(name, value) {
            Ok(found) => overrides.push(found),
            Err(message) => {
                problems.push(Problem { origin: Some(Origin::Environment(name.to_owned())), message });
            }
        }
    }
    (overrides, problems)
}

fn is_key(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| rest.contains(SEPARATOR))
}

fn parse(name: &str, value: OsString) -> Result<Override, String> {
    let key = name.trim_start_matches(PREFIX).to_ascii_lowercase();
    let path = KeyPath::parse(&key, SEPARATOR)?;
    let text = value.into_string().map_err(|_| "the value is not UTF-8".to_owned())?;
    Override::parse(path, &text, Origin::Environment(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_two_underscores_are_keys() {
        let variables = [
            ("MAINSTEM_LOG_IN_HOOK__URL", "https://h"),
            ("MAINSTEM_LISTENER__0__TLS__KEY", "k.pem"),
            ("MAINSTEM_PASSWORD", "secret"),
            ("MAINSTEM_PORT_1883_TCP", "tcp://127.0.0.1:1883"),
            ("OTHER__KEY", "x"),
            ("MAINSTEM_MQTT__", "x"),
            ("MAINSTEM_MQT__LISTEN", "x"),
        ];
        let (overrides, problems) = overrides(variables.map(|(name, value)| (name.into(), value.into())));
        let paths: Vec<String> = overrides.iter().map(|found| found.path.to_string()).collect();
        assert_eq!(paths, ["log_in_hook.url", "listener.0.tls.key"]);
        let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
        assert_eq!(messages, ["expected SECTION__KEY", "unknown section `mqt`; did you mean `mqtt`?"]);
    }
}
