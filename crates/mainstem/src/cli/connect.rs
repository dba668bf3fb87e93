//! Flags shared by `pub` and `sub`: address, credentials, will and properties.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Args};
use mainstem_mqtt::packet::{QoS, Version};

use super::tls::TlsArgs;

/// Connection flags of `pub` and `sub`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Connection")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct ConnectArgs {
    /// Broker's host name or address, and port
    #[arg(
        short = 'h',
        visible_short_alias = 'b',
        long,
        visible_alias = "host",
        value_name = "HOST[:PORT]",
        default_value = "127.0.0.1"
    )]
    pub(crate) broker: HostPort,
    /// Broker's port, if -b has none [default: 1883, or 8883 with TLS]
    #[arg(short, long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Host, port, user, password and topic in one: `mqtt://[user[:password]@]host[:port][/topic]`, or
    /// `mqtts://…` with TLS
    #[arg(short = 'L', long, value_name = "URL", conflicts_with_all = ["port", "username", "password"])]
    pub(crate) url: Option<String>,
    /// Local address to connect from
    #[arg(short = 'A', long = "bind", value_name = "ADDR")]
    pub(crate) bind: Option<IpAddr>,
    /// Protocol version: 5, 311 or 31 (mqttv5, mqttv311 and mqttv31 work too)
    #[arg(short = 'V', long = "protocol-version", value_name = "VERSION", default_value = "5",
          value_parser = parse_version)]
    pub(crate) protocol: Version,
    /// Client identifier [default: assigned by the broker with version 5, generated with 3.x]
    #[arg(short = 'i', long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Client identifier from this prefix and the process id
    #[arg(short = 'I', long, value_name = "PREFIX", conflicts_with = "id")]
    pub(crate) id_prefix: Option<String>,
    /// Keep alive in seconds; 0 turns it off
    #[arg(short = 'k', long = "keepalive", value_name = "SECONDS", default_value_t = 60)]
    pub(crate) keep_alive: u16,
    /// Resume the session of the client identifier, and keep it after disconnecting; requires --id
    #[arg(short = 'c', long = "disable-clean-session")]
    pub(crate) keep_session: bool,
    /// Session expiry after disconnecting, in seconds; "never" (or -1) for no expiry
    /// [default: 0, or never with -c]
    #[arg(short = 'x', long, value_name = "SECONDS", value_parser = parse_expiry, allow_negative_numbers = true)]
    pub(crate) session_expiry: Option<u32>,
    /// User name
    #[arg(short, long, value_name = "NAME")]
    pub(crate) username: Option<String>,
    /// Password; version 5 allows one without a user name
    #[arg(short = 'P', long, alias = "pw", value_name = "PASSWORD")]
    pub(crate) password: Option<String>,
    /// Longest wait for CONNACK
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds)]
    pub(crate) connect_timeout: Duration,
    /// A version 5 property: -D PACKET NAME VALUE, or -D PACKET user-property KEY VALUE; may be repeated.
    /// PACKET is connect, publish, subscribe, unsubscribe, disconnect or will
    #[arg(short = 'D', long = "property", value_names = ["PACKET", "NAME", "VALUE"], num_args = 3..=4,
          action = ArgAction::Append)]
    pub(crate) property: Vec<String>,
    /// Print every packet to stderr
    #[arg(short, long)]
    pub(crate) debug: bool,
    /// Print no errors; rely on the exit status
    #[arg(long, conflicts_with = "debug")]
    pub(crate) quiet: bool,
    /// Accepted for compatibility; small packets are never delayed
    #[arg(long, hide = true)]
    pub(crate) nodelay: bool,
    /// The will message.
    #[command(flatten)]
    pub(crate) will: WillArgs,
    /// TLS flags.
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// The same as --tls-key, under Mosquitto's name
    #[arg(long, value_name = "FILE", help_heading = "TLS", conflicts_with = "tls_key")]
    pub(crate) key: Option<PathBuf>,
}

/// `HOST`, `HOST:PORT`, `[V6]` or `[V6]:PORT`. An IPv6 address without a port needs no brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').and_then(|(host, after)| match after {
                "" => Some((host, None)),
                after => Some((host, Some(after.strip_prefix(':')?))),
            }),
            None if text.matches(':').count() > 1 => Some((text, None)),
            None => Some(text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)))),
        };
        let parsed = parts.filter(|(host, _)| !host.is_empty()).and_then(|(host, port)| {
            let port = port.map(str::parse).transpose().ok()?;
            Some(Self { host: host.into(), port })
        });
        parsed.ok_or_else(|| "expected HOST or HOST:PORT, with brackets around an IPv6 address".into())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.host.contains(':'), self.port) {
            (false, None) => f.write_str(&self.host),
            (true, None) => write!(f, "[{}]", self.host),
            (false, Some(port)) => write!(f, "{}:{port}", self.host),
            (true, Some(port)) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

/// Adds the default port to an address without a port. Leaves text that is no address as it is.
pub(crate) fn with_default_port(address: &str, port: u16) -> String {
    match address.parse() {
        Ok(HostPort { host, port: None }) => HostPort { host, port: Some(port) }.to_string(),
        Ok(HostPort { port: Some(_), .. }) | Err(_) => address.into(),
    }
}

/// The will message.
#[derive(Args, Debug)]
#[expect(clippy::struct_field_names, reason = "the field names are the names of the flags")]
#[command(next_help_heading = "Will (published by the broker if the connection breaks)")]
pub(crate) struct WillArgs {
    /// Topic of the will
    #[arg(long, value_name = "TOPIC")]
    pub(crate) will_topic: Option<String>,
    /// Payload of the will [default: empty]
    #[arg(long, value_name = "TEXT", requires = "will_topic")]
    pub(crate) will_payload: Option<String>,
    /// Quality of service of the will: 0, 1 or 2
    #[arg(long, value_name = "QOS", default_value = "0", value_parser = parse_qos)]
    pub(crate) will_qos: QoS,
    /// Publish the will retained
    #[arg(long, requires = "will_topic")]
    pub(crate) will_retain: bool,
    /// Delay before the broker publishes the will, in seconds (version 5)
    #[arg(long, value_name = "SECONDS", requires = "will_topic")]
    pub(crate) will_delay: Option<u32>,
}

/// The packet of a `-D` property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    Connect,
    Publish,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Will,
}

/// One `-D` property. The value is not parsed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PropertyArg {
    pub(crate) packet: PacketKind,
    /// Name as in the specification, in lower case with hyphens.
    pub(crate) name: String,
    /// Value, or the key of a user property.
    pub(crate) value: String,
    /// Value of a user property.
    pub(crate) second: Option<String>,
}

impl PropertyArg {
    pub(crate) fn new(packet: PacketKind, name: &str, value: &str, second: Option<&str>) -> Self {
        Self { packet, name: name.into(), value: value.into(), second: second.map(Into::into) }
    }
}

impl ConnectArgs {
    /// The TLS flags under all their names.
    pub(crate) fn tls(&self) -> TlsArgs {
        TlsArgs { key: self.tls.key.clone().or_else(|| self.key.clone()), ..self.tls.clone() }
    }

    /// Groups the arguments of every `-D`.
    ///
    /// # Errors
    /// A message for the user if a packet is unknown or an argument is missing.
    pub(crate) fn properties(&self) -> Result<Vec<PropertyArg>, String> {
        let mut words = self.property.iter();
        let mut properties = Vec::new();
        while let Some(packet) = words.next() {
            let packet = PacketKind::parse(packet)?;
            let name = words.next().ok_or("-D: the property name is missing")?.to_ascii_lowercase();
            let value = words.next().ok_or_else(|| format!("-D {name}: the value is missing"))?;
            let second = match name.as_str() {
                "user-property" => Some(words.next().ok_or("-D user-property: expected a key and a value")?),
                _ => None,
            };
            properties.push(PropertyArg::new(packet, &name, value, second.map(String::as_str)));
        }
        Ok(properties)
    }
}

impl PacketKind {
    fn parse(word: &str) -> Result<Self, String> {
        Ok(match word.to_ascii_lowercase().as_str() {
            "connect" => Self::Connect,
            "publish" => Self::Publish,
            "subscribe" => Self::Subscribe,
            "unsubscribe" => Self::Unsubscribe,
            "disconnect" => Self::Disconnect,
            "will" => Self::Will,
            _ => {
                return Err(format!(
                    "-D {word}: expected connect, publish, subscribe, unsubscribe, disconnect or will"
                ));
            }
        })
    }
}

/// Parses a quality of service: `0`, `1` or `2`.
pub(crate) fn parse_qos(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err("expected 0, 1 or 2".into()),
    }
}

/// Parses a number of seconds, with or without a fraction, of one year at most.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    const YEAR_S: f64 = 365.0 * 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=YEAR_S).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds".into()),
    }
}

/// Parses `key=value`. Splits at the first `=`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text.to_ascii_lowercase().trim_start_matches("mqttv") {
        "5" | "50" => Ok(Version::V5),
        "311" | "3.1.1" | "4" => Ok(Version::V4),
        "31" | "3.1" | "3" => Ok(Version::V3),
        _ => Err("expected 5, 311 or 31".into()),
    }
}

fn parse_expiry(text: &str) -> Result<u32, String> {
    match text {
        "never" | "-1" | "∞" => Ok(u32::MAX),
        _ => text.parse().map_err(|_| "expected seconds, or never".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_named_by_host_and_port() {
        for (text, host, port) in [
            ("h", "h", None),
            ("h:1", "h", Some(1)),
            ("::1", "::1", None),
            ("[::1]", "::1", None),
            ("[::1]:99", "::1", Some(99)),
        ] {
            assert_eq!(text.parse(), Ok(HostPort { host: host.into(), port }));
        }
        for text in ["", ":1", "h:", "h:x", "h:70000", "[::1", "[::1]x", "[]:1"] {
            assert!(text.parse::<HostPort>().is_err(), "{text}");
        }
        let completed = ["h", "h:1", "::1", "[::1]:2"].map(|text| with_default_port(text, 9092));
        assert_eq!(completed, ["h:9092", "h:1", "[::1]:9092", "[::1]:2"]);
    }
}
