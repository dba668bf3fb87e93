//! The `[[listener]]` sections of the configuration: further listeners, with TLS or without, and WebSocket.

use std::num::NonZeroU32;
use std::path::PathBuf;

use mainstem_auth::{CertificateName, CertificateUsers, WithPassword};
use mainstem_runtime::{TrustedProxies, UnixSocket};
use mainstem_sasl::Mechanism;
use mainstem_security::{NameRules, Network};
use mainstem_tls::{CertificateFiles, ClientCertificates, MinVersion, Settings};
use mainstem_websocket::AllowedOrigin;
use serde::Deserialize;

/// Names of the listeners of the sections `[mqtt]`, `[kafka]` and `[http]`.
const RESERVED: [&str; 3] = ["mqtt", "kafka", "http"];
/// Longest name, characters.
const NAME_MAX: usize = 100;
/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";
/// Permissions of a Unix socket, unless others are set.
const SOCKET_MODE: &str = "660";
/// Path of WebSocket, unless another one is set.
const WEBSOCKET_PATH: &str = "/mqtt";
/// The name in section 6 of MQTT 5, and what clients of MQTT 3.1 offered before that had a specification of its own.
const MQTT_SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// A `[[listener]]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerSection {
    pub(crate) name: String,
    pub(crate) protocol: ListenerProtocol,
    pub(crate) listen: String,
    #[serde(default)]
    pub(crate) advertised: String,
    #[serde(default)]
    pub(crate) sasl: Vec<String>,
    pub(crate) tls: Option<TlsSection>,
    pub(crate) websocket: Option<WebSocketSection>,
    pub(crate) max_connections: Option<NonZeroU32>,
    user_name_from: Option<UserNameFrom>,
    user_name_rules: Option<String>,
    user_with_password: Option<UserWithPassword>,
    proxy_protocol: Option<ProxySection>,
    socket_mode: Option<String>,
    socket_group: Option<String>,
}

/// The name in a client certificate that is its user.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum UserNameFrom {
    CommonName,
    Subject,
    Dns,
    Email,
    Uri,
}

/// What decides about a client with a certificate and a password.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum UserWithPassword {
    Password,
    Certificate,
    Both,
}

/// The proxies of a listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxySection {
    from: Vec<String>,
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListenerProtocol {
    Mqtt,
    Kafka,
    Http,
}

/// TLS of a listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsSection {
    certificate: PathBuf,
    key: PathBuf,
    #[serde(default)]
    more_certificates: Vec<CertificateSection>,
    #[serde(default)]
    client_certificates: RequestedCertificates,
    client_ca: Option<PathBuf>,
    client_crl: Option<PathBuf>,
    #[serde(default)]
    min_version: Version,
    alpn: Option<Vec<String>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateSection {
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RequestedCertificates {
    #[default]
    Off,
    Optional,
    Required,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum Version {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

/// WebSocket of a listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebSocketSection {
    #[serde(default = "default_path")]
    path: String,
    #[serde(default)]
    allowed_origins: Vec<String>,
}

fn default_path() -> String {
    WEBSOCKET_PATH.into()
}

impl WebSocketSection {
    /// The settings.
    ///
    /// # Errors
    /// A value is invalid.
    pub(crate) fn settings(&self) -> Result<mainstem_websocket::Settings, String> {
        let is_path = self.path.starts_with('/') && self.path.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_path || self.path.contains(['?', '#']) {
            return Err(format!("websocket.path: {:?} is not a path such as {WEBSOCKET_PATH:?}", self.path));
        }
        let origins = self.allowed_origins.iter().map(|origin| AllowedOrigin::parse(origin));
        let allowed_origins = origins.collect::<Result<_, _>>();
        Ok(mainstem_websocket::Settings {
            path: self.path.clone(),
            subprotocols: MQTT_SUBPROTOCOLS.map(str::to_owned).to_vec(),
            allowed_origins: allowed_origins
                .map_err(|error| format!("websocket.allowed_origins: {error}"))?,
        })
    }
}

impl TlsSection {
    /// The settings, with `alpn` as the names of application protocols unless others are set.
    fn settings(&self, alpn: &[&str]) -> Settings {
        let first = (&self.certificate, &self.key);
        let more = self.more_certificates.iter().map(|files| (&files.certificate, &files.key));
        let files = |(certificate, key): (&PathBuf, &PathBuf)| CertificateFiles {
            certificate: certificate.clone(),
            key: key.clone(),
        };
        Settings {
            certificates: std::iter::once(first).chain(more).map(files).collect(),
            client_certificates: match self.client_certificates {
                RequestedCertificates::Off => ClientCertificates::Off,
                RequestedCertificates::Optional => ClientCertificates::Optional,
                RequestedCertificates::Required => ClientCertificates::Required,
            },
            client_ca: self.client_ca.clone(),
            client_crl: self.client_crl.clone(),
            min_version: match self.min_version {
                Version::Tls12 => MinVersion::Tls12,
                Version::Tls13 => MinVersion::Tls13,
            },
            alpn: self.alpn.clone().unwrap_or_else(|| alpn.iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    fn check(&self) -> Result<(), String> {
        let requests_none = matches!(self.client_certificates, RequestedCertificates::Off);
        if requests_none && (self.client_ca.is_some() || self.client_crl.is_some()) {
            return Err(
                "tls.client_ca and tls.client_crl have no effect while tls.client_certificates is \"off\""
                    .into(),
            );
        }
        if !requests_none && self.client_ca.is_none() {
            return Err("tls.client_ca is required with tls.client_certificates".into());
        }
        let alpn = self.alpn.iter().flatten();
        if let Some(name) = alpn.into_iter().find(|name| name.is_empty() || name.len() > 255) {
            return Err(format!("tls.alpn: {name:?} has not 1 to 255 bytes"));
        }
        Ok(())
    }
}

impl ListenerSection {
    /// The settings of TLS, if the listener has it.
    pub(crate) fn tls_settings(&self) -> Option<Settings> {
        let alpn: &[&str] = match self.protocol {
            // Browsers offer nothing else for WebSocket.
            ListenerProtocol::Mqtt if self.websocket.is_some() => &["http/1.1"],
            ListenerProtocol::Mqtt => &["mqtt"],
            ListenerProtocol::Kafka => &[],
            ListenerProtocol::Http => &["http/1.1"],
        };
        self.tls.as_ref().map(|tls| tls.settings(alpn))
    }

    /// The Unix socket to listen on, if it is one.
    ///
    /// # Errors
    /// Mode or group is invalid.
    pub(crate) fn unix_socket(&self) -> Result<Option<UnixSocket>, String> {
        let Some(path) = self.listen.strip_prefix(UNIX) else {
            return match (&self.socket_mode, &self.socket_group) {
                (None, None) => Ok(None),
                _ => Err(format!("socket_mode and socket_group are for listen = \"{UNIX}/PATH\"")),
            };
        };
        if !path.starts_with('/') {
            return Err(format!("listen: {:?}: expected an absolute path behind {UNIX}", self.listen));
        }
        let mode = self.socket_mode.as_deref().unwrap_or(SOCKET_MODE);
        let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o777);
        let mode = bits.ok_or_else(|| format!("socket_mode: {mode:?} is not a mode such as \"660\""))?;
        let group = self.socket_group.as_deref().map(group_id).transpose()?;
        Ok(Some(UnixSocket { path: path.into(), mode, group }))
    }

    /// The proxies whose connections the listener takes.
    ///
    /// # Errors
    /// A network is invalid.
    pub(crate) fn proxies(&self) -> Result<Option<TrustedProxies>, String> {
        let Some(ProxySection { from }) = &self.proxy_protocol else { return Ok(None) };
        let parse =
            |text: &String| text.parse::<Network>().map_err(|error| format!("proxy_protocol.from: {error}"));
        let networks = from.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if networks.is_empty() {
            return Err("proxy_protocol.from must name at least one address or network".into());
        }
        Ok(Some(TrustedProxies::new(move |peer| networks.iter().any(|network| network.contains(peer)))))
    }

    /// How the listener takes users from client certificates, if it does.
    ///
    /// # Errors
    /// A key is invalid, or there are no certificates.
    pub(crate) fn certificate_users(&self) -> Result<Option<CertificateUsers>, String> {
        let Some(from) = self.user_name_from else {
            return match (&self.user_name_rules, self.user_with_password) {
                (None, None) => Ok(None),
                _ => {
                    Err("user_name_rules and user_with_password have no effect without user_name_from".into())
                }
            };
        };
        let requests_some =
            self.tls.as_ref().map(|tls| !matches!(tls.client_certificates, RequestedCertificates::Off));
        match (requests_some, &self.proxy_protocol) {
            (Some(true), _) => {}
            (None, Some(_)) if from == UserNameFrom::CommonName => {}
            (None, Some(_)) => {
                return Err("user_name_from: a proxy tells \"common-name\" only".into());
            }
            _ => {
                return Err(
                    "user_name_from needs tls.client_certificates, or proxy_protocol and no tls".into()
                );
            }
        }
        if !self.sasl.is_empty() && self.user_with_password == Some(UserWithPassword::Certificate) {
            return Err("user_with_password = \"certificate\" is for listeners without sasl".into());
        }
        let rules = self.user_name_rules.as_deref().map(str::parse::<NameRules>).transpose();
        Ok(Some(CertificateUsers {
            name: match from {
                UserNameFrom::CommonName => CertificateName::CommonName,
                UserNameFrom::Subject => CertificateName::Subject,
                UserNameFrom::Dns => CertificateName::Dns,
                UserNameFrom::Email => CertificateName::Email,
                UserNameFrom::Uri => CertificateName::Uri,
            },
            rules: rules.map_err(|error| format!("user_name_rules: {error}"))?,
            with_password: match self.user_with_password {
                Some(UserWithPassword::Certificate) => WithPassword::Certificate,
                Some(UserWithPassword::Both) => WithPassword::Both,
                Some(UserWithPassword::Password) | None => WithPassword::Password,
            },
        }))
    }

    fn check(&self, has_kafka: bool) -> Result<(), String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.name.is_empty() || self.name.len() > NAME_MAX || !self.name.chars().all(is_plain) {
            return Err(format!("the name must be 1 to {NAME_MAX} letters, digits, '.', '_' or '-'"));
        }
        if RESERVED.contains(&self.name.as_str()) {
            return Err(format!("the name is that of the listener in section [{}]", self.name));
        }
        if self.protocol == ListenerProtocol::Kafka && !has_kafka {
            return Err("kafka.listen is empty, which disables the Kafka protocol".into());
        }
        if self.protocol != ListenerProtocol::Kafka && !self.advertised.is_empty() {
            return Err("advertised is for listeners of the protocol \"kafka\"".into());
        }
        self.check_connections()?;
        self.certificate_users()?;
        if self.protocol != ListenerProtocol::Kafka && !self.sasl.is_empty() {
            return Err("sasl is for listeners of the protocol \"kafka\"".into());
        }
        mechanisms(&self.sasl).map_err(|error| format!("sasl: {error}"))?;
        if let Some(websocket) = &self.websocket {
            if self.protocol != ListenerProtocol::Mqtt {
                return Err("websocket is for listeners of the protocol \"mqtt\"".into());
            }
            websocket.settings()?;
        }
        self.tls.as_ref().map_or(Ok(()), TlsSection::check)
    }
}

impl ListenerSection {
    /// Checks what says where connections come from, and how many.
    fn check_connections(&self) -> Result<(), String> {
        let is_unix = self.unix_socket()?.is_some();
        let is_http = self.protocol == ListenerProtocol::Http;
        if is_http && (is_unix || self.proxy_protocol.is_some() || self.max_connections.is_some()) {
            return Err("Unix sockets, proxy_protocol and max_connections are for the protocols \"mqtt\" and \"kafka\"".into());
        }
        if is_unix && self.proxy_protocol.is_some() {
            return Err(
                "proxy_protocol is for listeners with an address: a Unix socket knows none of its peers"
                    .into(),
            );
        }
        if is_unix && self.protocol == ListenerProtocol::Kafka && self.advertised.is_empty() {
            return Err(
                "advertised is required with a Unix socket: Kafka clients are told a host and a port".into(),
            );
        }
        self.proxies().map(|_| ())
    }
}

/// The number of a group, which is given as such or by its name in `/etc/group`.
fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let groups = std::fs::read_to_string("/etc/group").map_err(|error| format!("/etc/group: {error}"))?;
    let found = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?
    });
    found.ok_or_else(|| format!("socket_group: there is no group {group:?} in /etc/group"))
}

/// The mechanisms of SASL with these names.
///
/// # Errors
/// Names the unknown mechanism.
pub(crate) fn mechanisms(names: &[String]) -> Result<Vec<Mechanism>, String> {
    let known = Mechanism::ALL.map(Mechanism::name).join(", ");
    let of_name = |name: &String| {
        Mechanism::from_name(name).ok_or_else(|| format!("{name:?} is no mechanism; known are {known}"))
    };
    names.iter().map(of_name).collect()
}

/// Checks the sections. Files are read when the listeners are opened.
///
/// # Errors
/// Names the invalid listener and its error.
pub(crate) fn check_listeners(sections: &[ListenerSection], has_kafka: bool) -> Result<(), String> {
    let mut names: Vec<&str> = Vec::new();
    for section in sections {
        section.check(has_kafka).map_err(|error| format!("listener {:?}: {error}", section.name))?;
        if names.contains(&section.name.as_str()) {
            return Err(format!("two listeners have the name {:?}", section.name));
        }
        names.push(&section.name);
    }
    Ok(())
}

/// Listeners in the configuration reference.
pub(crate) const REFERENCE: &str = "
## `[[listener]]`

A further listener, beside those of the sections `[mqtt]`, `[kafka]` and `[http]`. May be repeated. See
[tls.md](tls.md) and [websocket.md](websocket.md).

| key | default | bounds | description |
|---|---|---|---|
| `name` | | 1 to 100 letters, digits, `.`, `_`, `-` | Name of the listener, in its line of output at start and in the log. |
| `protocol` | | mqtt, kafka, http | Protocol of its clients. |
| `listen` | | | Address and port to listen on, or `unix:/PATH` for a Unix socket (MQTT and Kafka). A socket that a process left behind is replaced. |
| `socket_mode` | `\"660\"` | octal | Permissions of a Unix socket: whoever may write it may connect. |
| `socket_group` | | | Group of a Unix socket: a name in `/etc/group`, or a number. |
| `max_connections` | | from 1 | MQTT, Kafka: maximum number of connections of this listener, beside that of its protocol. |
| `proxy_protocol.from` | | addresses, networks | MQTT, Kafka: load balancers that name their clients by the PROXY protocol, version 1 or 2, such as `[\"192.0.2.0/24\"]`. With it, every connection must come from one of them and begin with a header. See [tls.md](tls.md#behind-a-load-balancer). |
| `advertised` | `\"\"` | | Kafka: host and port that clients of this listener are told; empty for its address, or the host name if that is a wildcard address. |
| `sasl` | `[]` | PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER | Kafka: mechanisms of SASL that the listener offers. If there are any, its clients must log in. |
| `user_name_from` | | common-name, subject, dns, email, uri | The name in a client certificate that is the user. With it, certificates log clients in. See [security.md](security.md#certificates). |
| `user_name_rules` | | rules as in Kafka's `ssl.principal.mapping.rules` | What the user is called by that name, such as `\"RULE:^CN=(.*?),.*$/$1/L,DEFAULT\"`. Without, the name itself. |
| `user_with_password` | `\"password\"` | password, certificate, both | What decides if a client with a certificate also presents a password or a token. |
| `tls.certificate` | | a PEM file | Certificate chain, the server's certificate first. Without `tls`, the listener is plain. |
| `tls.key` | | a PEM file | Private key of the certificate. |
| `tls.more_certificates` | `[]` | tables with `certificate` and `key` | Further certificates. The first one that is valid for the name that a client asks for (SNI) is used, or else the first of all. |
| `tls.client_certificates` | `\"off\"` | off, optional, required | Whether clients present certificates. An invalid one is refused, also if it is optional. |
| `tls.client_ca` | | a PEM file | Authorities that sign client certificates. |
| `tls.client_crl` | | a PEM file | Revocation lists. Every authority in a client's chain needs one that has not expired. |
| `tls.min_version` | `\"1.2\"` | 1.2, 1.3 | Lowest version of TLS. |
| `tls.alpn` | `[\"mqtt\"]`; `[\"http/1.1\"]` with WebSocket and with HTTP; `[]` with Kafka | names of 1 to 255 bytes | Application protocols (ALPN). A client that uses ALPN must offer one of them; `[]` ignores ALPN. |
| `websocket.path` | `\"/mqtt\"` | begins with `/` | MQTT: with `websocket`, clients connect by WebSocket, at this path. `websocket = {}` for the defaults. |
| `websocket.allowed_origins` | `[]` | origins such as `https://example.com`, or `*` | Origins of the web pages that may connect, beside those that were served by the same address or by `localhost`. See [websocket.md](websocket.md#web-pages). |
";
