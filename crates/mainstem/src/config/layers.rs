//! The layers of the configuration: defaults, the file, the environment, `--set`, and other flags. Later ones win.
//!
//! Values are merged as TOML and deserialized once more after each override, so that an error names the variable or the
//! flag that causes it. Keys of one item of an array are applied together: the first alone would lack the others.

use std::collections::BTreeMap;
use std::ffi::OsString;

use mainstem_mqtt_server::config_value::{Kind, similar};
use toml::{Table, Value};

use super::environment;
use super::file::ConfigFile;
use super::key_path::KeyPath;
use super::problem::{FileText, Origin, Problem, Problems};
use super::{ARRAYS, Config, SECTIONS};
use crate::cli::{ServeArgs, Setting};

/// A value that replaces the one of the layers below.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    pub(crate) path: KeyPath,
    value: Value,
    origin: Origin,
}

impl Override {
    /// Parses the text of a value, as the type of its key has it.
    ///
    /// # Errors
    /// There is no such section.
    pub(crate) fn parse(path: KeyPath, text: &str, origin: Origin) -> Result<Self, String> {
        let section = path.section();
        let names: Vec<&str> = SECTIONS.iter().map(|section| section.name).chain(ARRAYS).collect();
        if !names.contains(&section) {
            let hint =
                similar(&names, section).map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            return Err(format!("unknown section `{section}`{hint}"));
        }
        let value = parse_value(&path, text);
        Ok(Self { path, value, origin })
    }
}

/// The value in `text`: TOML, or text without quotation marks. Lists of texts may be separated by commas.
fn parse_value(path: &KeyPath, text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let parsed = parsed.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    let as_text = || Value::String(text.to_owned());
    match (kind_of(path), parsed) {
        (Some(Kind::Text), Some(value @ Value::String(_)))
        | (Some(Kind::Texts), Some(value @ Value::Array(_))) => value,
        (Some(Kind::Text), _) => as_text(),
        (Some(Kind::Texts), _) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
        (_, parsed) => parsed.unwrap_or_else(as_text),
    }
}

/// The type of a key, if it is known without its neighbours.
fn kind_of(path: &KeyPath) -> Option<Kind> {
    let key = path.last_key();
    match path.section() {
        // All that is a number or a flag in TOML is text here but one: `socket_mode` and `tls.min_version` are.
        "listener" if matches!(key, "max_connections" | "tls" | "websocket" | "proxy_protocol") => None,
        "listener" if matches!(key, "sasl" | "alpn" | "allowed_origins" | "from") => Some(Kind::Texts),
        "listener" if !key.is_empty() && key != "more_certificates" => Some(Kind::Text),
        name => {
            let section = SECTIONS.iter().find(|section| section.name == name)?;
            (section.fields)().into_iter().find(|field| field.key == key).map(|field| field.kind)
        }
    }
}

/// A configuration without errors, and where its values come from.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) file: FileText,
    /// The values that are set. All others have their defaults.
    pub(crate) table: Table,
    pub(crate) origins: BTreeMap<KeyPath, Origin>,
}

/// Loads the configuration of the command line, with the environment of this process.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn load(args: &ServeArgs) -> Result<Loaded, Problems> {
    load_with(args, std::env::vars_os())
}

/// Loads the configuration of the command line, with these environment variables.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_with(
    args: &ServeArgs,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Loaded, Problems> {
    let file = args.config.as_ref().map_or(Ok(ConfigFile::default()), |path| ConfigFile::read(path));
    let file = file.map_err(|message| Problems {
        file: FileText::default(),
        problems: vec![Problem { origin: None, message }],
    })?;
    let ConfigFile { text, table, origins, mut problems } = file;
    let has_file_errors = !problems.is_empty();
    let (mut overrides, errors) = environment::overrides(variables);
    problems.extend(errors);
    for setting in &args.set {
        match from_setting(setting) {
            Ok(found) => overrides.push(found),
            Err(message) => problems.push(Problem { origin: Some(flag_of(setting)), message }),
        }
    }
    overrides.extend(from_flags(args));
    let mut loaded = Loaded { file: text, table, origins, config: Config::default() };
    problems.extend(loaded.apply(overrides));
    match loaded.table.clone().try_into::<Config>() {
        Ok(config) => loaded.config = config,
        // Reported by `apply`, or in the file.
        Err(error) if problems.is_empty() => {
            problems.push(Problem { origin: None, message: error.message().to_owned() });
        }
        Err(_) => {}
    }
    let faults = if has_file_errors { loaded.config.check_bounds() } else { loaded.config.check() };
    for fault in faults {
        problems.push(Problem { origin: loaded.origin(&fault.path).cloned(), message: fault.message });
    }
    if problems.is_empty() {
        return Ok(loaded);
    }
    let mut problems = Problems { file: loaded.file, problems };
    problems.sort();
    Err(problems)
}

impl Loaded {
    /// Merges overrides, and returns the errors that they cause.
    fn apply(&mut self, mut overrides: Vec<Override>) -> Vec<Problem> {
        // A stable sort: of two values of one path, the later layer is last.
        overrides.sort_by(|one, other| one.path.cmp(&other.path));
        let mut problems = Vec::new();
        let is_one = |one: &Override, other: &Override| {
            let item = one.path.enclosing_item();
            item.is_some() && item == other.path.enclosing_item()
        };
        for group in overrides.chunk_by(is_one) {
            let before = self.table.clone();
            let Err(message) = self.apply_group(group) else { continue };
            self.table = before;
            problems.push(Problem { origin: Some(group[0].origin.clone()), message });
        }
        problems
    }

    fn apply_group(&mut self, group: &[Override]) -> Result<(), String> {
        for Override { path, value, .. } in group {
            path.set(&mut self.table, value.clone())?;
        }
        self.table.clone().try_into::<Config>().map_err(|error| {
            let item = group[0].path.enclosing_item().filter(|_| group.len() > 1);
            item.map_or_else(|| error.message().to_owned(), |item| format!("{item}: {}", error.message()))
        })?;
        for Override { path, origin, .. } in group {
            self.origins.retain(|other, _| !other.is_within(path));
            self.origins.insert(path.clone(), origin.clone());
        }
        Ok(())
    }

    /// Where the value of a path comes from; `None` if it is a default. For an item of an array: where it begins.
    pub(crate) fn origin(&self, path: &KeyPath) -> Option<&Origin> {
        let within =
            || self.origins.iter().find(|(other, _)| other.is_within(path)).map(|(_, origin)| origin);
        self.origins.get(path).or_else(within)
    }
}

fn flag_of(setting: &Setting) -> Origin {
    Origin::Flag(format!("--set {}", setting.key))
}

/// One `--set section.key=value`.
fn from_setting(setting: &Setting) -> Result<Override, String> {
    let path = KeyPath::parse(&setting.key, ".")?;
    Override::parse(path, &setting.value, flag_of(setting))
}

/// The flags that stand for a key.
fn from_flags(args: &ServeArgs) -> Vec<Override> {
    let text = |text: &String| Value::String(text.clone());
    let data = args.data.as_ref().map(|data| Value::String(data.display().to_string()));
    let shards = args.shards.map(|shards| Value::Integer(i64::try_from(shards).unwrap_or(i64::MAX)));
    let flags = [
        ("--data", "server", "data", data),
        ("--listen", "mqtt", "listen", args.listen.as_ref().map(text)),
        ("--kafka-listen", "kafka", "listen", args.kafka_listen.as_ref().map(text)),
        ("--http-listen", "http", "listen", args.http_listen.as_ref().map(text)),
        ("--shards", "runtime", "shards", shards),
    ];
    let override_of = |(flag, section, key, value): (&str, &str, &str, Option<Value>)| {
        let origin = Origin::Flag(flag.to_owned());
        Some(Override { path: KeyPath::key(section, key), value: value?, origin })
    };
    flags.into_iter().filter_map(override_of).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn with(set: &[&str]) -> Result<Config, String> {
        let set = set.iter().map(|text| text.parse().unwrap()).collect();
        load_with(&ServeArgs { set, ..ServeArgs::default() }, [])
            .map(|loaded| loaded.config)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn numbers_may_have_a_unit_and_errors_say_what_is_expected() {
        let config =
            with(&["mqtt.max_queued_bytes=4MiB", "mqtt.connect_timeout_ms=2s", "kafka.retention_ms=-1"])
                .unwrap();
        assert_eq!((config.mqtt.max_queued_bytes, config.mqtt.connect_timeout_ms), (4 << 20, 2_000));
        for (setting, parts) in [
            (
                "mqtt.max_queued_bytes=4 apples",
                ["expected a number of bytes, or a size such as", "max_queued_bytes"],
            ),
            ("mqtt.max_sessions=many", ["expected a number", "max_sessions"]),
            ("mqtt.max_sessions=-1", ["-1 is out of range", "max_sessions"]),
            ("mqtt.max_sesions=1", ["unknown key `max_sesions`", "did you mean `max_sessions`?"]),
            ("mqtt.queue_qos0=1", ["expected true or false", "queue_qos0"]),
        ] {
            let error = with(&[setting]).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{setting}: {error}");
            assert!(
                !["u8", "u16", "u32", "u64", "i64", "usize"].iter().any(|name| error.contains(name)),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_override_the_file_and_are_checked() {
        let config = with(&["mqtt.max_queued_messages=7", "mqtt.queue_overflow=drop-oldest"]).unwrap();
        assert_eq!(config.mqtt.max_queued_messages, 7);
        assert_eq!(config.mqtt.queue_overflow, mainstem_mqtt_server::QueueOverflow::DropOldest);
        assert_eq!(
            with(&["kafka.group_min_session_timeout_ms=10", "kafka.group_max_session_timeout_ms=9"])
                .unwrap_err(),
            "--set kafka.group_min_session_timeout_ms: kafka.group_min_session_timeout_ms: is above \
             group_max_session_timeout_ms"
        );
        assert_eq!(
            with(&["mqtt.maximum_qos=3", "mqtt.max_sessions=0"]).unwrap_err(),
            "--set mqtt.max_sessions: mqtt.max_sessions: 0 is not within 1 to 100_000_000\n\
             --set mqtt.maximum_qos: mqtt.maximum_qos: 3 is not within 0 to 2"
        );
        assert!(with(&["mqtt.max_quued=3"]).unwrap_err().contains("unknown key `max_quued`"));
        assert!(with(&["mqtt.retain_available=7"]).unwrap_err().contains("retain_available"));
    }

    #[test]
    fn one_service_decides_log_ins_and_its_section_is_whole() {
        let directory = ["ldap.url=ldap://localhost", "ldap.user_dn=uid=${user},o=x"];
        assert!(with(&directory).is_ok());
        for (more, expected) in [
            (&["log_in_hook.url=http://localhost"][..], "ldap.url, log_in_hook.url: one service"),
            (&["ldap.user_base=o=x"], "ldap.user_dn: expected either"),
            (&["ldap.user_dn="], "ldap.user_dn: expected either"),
            (&["ldap.bind_dn=cn=broker"], "ldap.bind_dn: expected bind_password_file"),
            (&["ldap.url="], "ldap.user_dn: has no effect without ldap.url"),
        ] {
            let error = with(&[&directory[..], more].concat()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn write_only_topics_are_valid_filters() {
        assert!(with(&["mqtt.write_only_topics=[\"secret/#\", \"+/key\"]"]).is_ok());
        for filter in ["", "a#", "a/#/b", "a+", "$share/g/a"] {
            let error = with(&[&format!("mqtt.write_only_topics=[{filter:?}]")]).unwrap_err();
            assert!(error.contains(": mqtt.write_only_topics: filter"), "{error}");
        }
    }

    #[test]
    fn origins_are_listed_one_by_one() {
        assert!(with(&["http.allowed_origins=[\"https://a.example\", \"http://localhost:3000\"]"]).is_ok());
        for origin in ["*", "null", "a.example", "https://a.example/", "https://"] {
            let error = with(&[&format!("http.allowed_origins=[{origin:?}]")]).unwrap_err();
            assert!(error.contains("http.allowed_origins: "), "{error}");
        }
    }

    fn from(file: &str, variables: &[(&str, &str)], args: ServeArgs) -> Result<Loaded, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mainstem-config-{}-{number}.toml", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let loaded = load_with(&ServeArgs { config: Some(path.clone()), ..args }, variables);
        std::fs::remove_file(&path).unwrap();
        loaded.map_err(|problems| problems.to_string().replace(path.to_str().unwrap(), "FILE"))
    }

    #[test]
    fn later_layers_win_and_each_value_has_its_origin() {
        let file =
            "[mqtt]\nlisten = \"1.1.1.1:1\"\nmax_sessions = 5\nqueue_prefetch = 5\nmax_queued_messages = 5\n";
        let variables = [
            ("MAINSTEM_MQTT__LISTEN", "1.1.1.1:2"),
            ("MAINSTEM_MQTT__MAX_SESSIONS", "6"),
            ("MAINSTEM_MQTT__QUEUE_PREFETCH", "6"),
            ("MAINSTEM_KAFKA__SASL", "PLAIN, SCRAM-SHA-256"),
            ("MAINSTEM_SERVER__DATA", "7"),
        ];
        let set = ["mqtt.max_sessions=7", "mqtt.max_sessions=8"].map(|text| text.parse().unwrap()).to_vec();
        let args = ServeArgs { set, listen: Some("1.1.1.1:3".into()), ..ServeArgs::default() };
        let loaded = from(file, &variables, args).unwrap();
        let Config { mqtt, kafka, server, .. } = &loaded.config;
        assert_eq!((mqtt.listen.as_str(), mqtt.max_sessions, mqtt.queue_prefetch), ("1.1.1.1:3", 8, 6));
        assert_eq!((&kafka.sasl, server.data.as_str()), (&vec!["PLAIN".into(), "SCRAM-SHA-256".into()], "7"));
        let origin = |key: &str| loaded.origin(&KeyPath::parse(key, ".").unwrap()).cloned();
        assert_eq!(origin("mqtt.listen"), Some(Origin::Flag("--listen".into())));
        assert_eq!(origin("mqtt.max_sessions"), Some(Origin::Flag("--set mqtt.max_sessions".into())));
        assert_eq!(
            origin("mqtt.queue_prefetch"),
            Some(Origin::Environment("MAINSTEM_MQTT__QUEUE_PREFETCH".into()))
        );
        assert!(matches!(origin("mqtt.max_queued_messages"), Some(Origin::File(_))));
        assert_eq!(origin("mqtt.receive_maximum"), None);
    }

    #[test]
    fn the_environment_adds_and_completes_array_items() {
        let file = "[[listener]]\nname = \"a\"\nprotocol = \"mqtt\"\nlisten = \"127.0.0.1:0\"\n";
        let variables = [
            ("MAINSTEM_LISTENER__0__MAX_CONNECTIONS", "9"),
            ("MAINSTEM_LISTENER__1__PROTOCOL", "mqtt"),
            ("MAINSTEM_LISTENER__1__LISTEN", "unix:/run/m.sock"),
            ("MAINSTEM_LISTENER__1__NAME", "7"),
            ("MAINSTEM_LISTENER__1__SOCKET_MODE", "600"),
            ("MAINSTEM_QUEUE__0__NAME", "jobs"),
            ("MAINSTEM_QUEUE__0__LEASE_MS", "30s"),
        ];
        let loaded = from(file, &variables, ServeArgs::default()).unwrap();
        let names: Vec<&str> = loaded.config.listener.iter().map(|listener| listener.name.as_str()).collect();
        assert_eq!(names, ["a", "7"]);
        assert_eq!(loaded.config.listener[0].max_connections.unwrap().get(), 9);
        let error = from(file, &[("MAINSTEM_LISTENER__1__NAME", "b")], ServeArgs::default()).unwrap_err();
        assert_eq!(error, "environment variable MAINSTEM_LISTENER__1__NAME: missing field `protocol`");
    }

    #[test]
    fn errors_of_all_layers_are_reported_with_their_place() {
        let file = "[mqtt]\nmaximum_qos = 3\nqueue_qos0 = 1\n";
        let variables = [
            ("MAINSTEM_MQTT__MAX_SESIONS", "1"),
            ("MAINSTEM_KAFKA__NODE_ID", "one"),
            ("MAINSTEM_HTTP__MAX_CONNECTIONS", "0"),
        ];
        let error =
            from(file, &variables, ServeArgs { shards: Some(65), ..ServeArgs::default() }).unwrap_err();
        for part in [
            "FILE:2:1: mqtt.maximum_qos: 3 is not within 0 to 2\n  |\n2 | maximum_qos = 3\n  | ^^^^^^^^^^^\n",
            "FILE:3:14: invalid type: integer `1`, expected true or false\n  |\n3 | queue_qos0 = 1\n",
            "environment variable MAINSTEM_MQTT__MAX_SESIONS: unknown key `max_sesions`; did you mean `max_sessions`?",
            "environment variable MAINSTEM_KAFKA__NODE_ID: invalid type: string \"one\", expected a number",
            "environment variable MAINSTEM_HTTP__MAX_CONNECTIONS: http.max_connections: 0 is not within 1 to 100_000",
            "--shards: runtime.shards: 65 is not within 0 to 64",
        ] {
            assert!(error.contains(part), "{part}\n{error}");
        }
        assert_eq!(error.lines().filter(|line| line.contains(": ")).count(), 6, "{error}");
    }
}
