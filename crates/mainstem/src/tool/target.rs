//! The broker's address and credentials, from flags or a URL.

use super::failure::Failure;
use crate::cli::ConnectArgs;

const PORT: u16 = 1883;
/// Port with TLS.
const TLS_PORT: u16 = 8883;

/// Address, credentials and topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host name or IP address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) uses_tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    /// The path of the URL without its first slash.
    pub(crate) topic: Option<String>,
}

impl Target {
    pub(crate) fn new(args: &ConnectArgs) -> Result<Self, Failure> {
        let Some(url) = &args.url else {
            let uses_tls = args.tls().is_set();
            return Ok(Self {
                host: args.broker.host.clone(),
                port: args.broker.port.or(args.port).unwrap_or(if uses_tls { TLS_PORT } else { PORT }),
                uses_tls,
                username: args.username.clone(),
                password: args.password.clone(),
                topic: None,
            });
        };
        let target = Self::parse(url).ok_or_else(|| {
            Failure::new(format!(
                "{url:?}: expected mqtt://[user[:password]@]host[:port][/topic], or mqtts://…"
            ))
        })?;
        if args.tls().is_set() && !target.uses_tls {
            return Err(Failure::new(format!("{url:?}: with TLS, the URL begins with mqtts://")));
        }
        Ok(target)
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (uses_tls, default_port) = match scheme {
            "mqtt" => (false, PORT),
            "mqtts" => (true, TLS_PORT),
            _ => return None,
        };
        let (authority, topic) = match rest.split_once('/') {
            Some((authority, topic)) => (authority, Some(topic).filter(|topic| !topic.is_empty())),
            None => (rest, None),
        };
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(user), host_port),
            None => (None, authority),
        };
        let (username, password) = match user.map(|user| user.split_once(':').ok_or(user)) {
            None => (None, None),
            Some(Ok((name, password))) => (Some(unescape(name)?), Some(unescape(password)?)),
            Some(Err(name)) => (Some(unescape(name)?), None),
        };
        let (host, port) = split_port(host_port, default_port)?;
        let topic = match topic {
            Some(topic) => Some(unescape(topic)?),
            None => None,
        };
        Some(Self { host, port, uses_tls, username, password, topic })
    }
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
fn split_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    (!host.is_empty()).then(|| (host.into(), port))
}

/// Decodes percent-encoding. `None` if the result is not UTF-8 or an escape is incomplete.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: u16, user: [Option<&str>; 2], topic: Option<&str>) -> Target {
        let [username, password] = user.map(|text| text.map(Into::into));
        Target { host: host.into(), port, username, password, topic: topic.map(Into::into), uses_tls: false }
    }

    #[test]
    fn parses_every_part_of_a_url() {
        assert_eq!(Target::parse("mqtt://h"), Some(target("h", 1883, [None, None], None)));
        assert_eq!(Target::parse("mqtt://h:1/a/b"), Some(target("h", 1, [None, None], Some("a/b"))));
        assert_eq!(
            Target::parse("mqtt://me:p%40ss@h/%23"),
            Some(target("h", 1883, [Some("me"), Some("p@ss")], Some("#")))
        );
        let tls = |port| Some(Target { uses_tls: true, ..target("h", port, [None, None], None) });
        assert_eq!([Target::parse("mqtts://h"), Target::parse("mqtts://h:1")], [tls(8883), tls(1)]);
        assert_eq!(Target::parse("mqtt://me@[::1]:99/"), Some(target("::1", 99, [Some("me"), None], None)));
    }

    #[test]
    fn rejects_invalid_urls() {
        for url in ["h", "http://h", "mqtt://", "mqtt://h:x", "mqtt://h:70000", "mqtt://[::1", "mqtt://a%4@h"]
        {
            assert_eq!(Target::parse(url), None, "{url}");
        }
    }

    #[test]
    fn ipv6_addresses_get_brackets() {
        assert_eq!(Target { host: "::1".into(), port: 5, ..Target::default() }.address(), "[::1]:5");
    }
}
