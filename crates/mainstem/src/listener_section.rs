//! The `[[listener]]` sections of the configuration: further listeners, with TLS or without, and WebSocket.

use std::path::PathBuf;

use mainstem_tls::{CertificateFiles, ClientCertificates, MinVersion, Settings};
use mainstem_websocket::AllowedOrigin;
use serde::Deserialize;

/// Names of the listeners of the sections `[mqtt]`, `[kafka]` and `[http]`.
const RESERVED: [&str; 3] = ["mqtt", "kafka", "http"];
/// Longest name, characters.
const NAME_MAX: usize = 100;
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
    pub(crate) tls: Option<TlsSection>,
    pub(crate) websocket: Option<WebSocketSection>,
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
        if let Some(websocket) = &self.websocket {
            if self.protocol != ListenerProtocol::Mqtt {
                return Err("websocket is for listeners of the protocol \"mqtt\"".into());
            }
            websocket.settings()?;
        }
        self.tls.as_ref().map_or(Ok(()), TlsSection::check)
    }
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
| `listen` | | | Address and port to listen on. |
| `advertised` | `\"\"` | | Kafka: host and port that clients of this listener are told; empty for its address, or the host name if that is a wildcard address. |
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
