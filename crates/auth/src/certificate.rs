//! Users of client certificates: which name in a certificate is the user, and what rules make of it.
//!
//! The transport has verified the certificate; here it is only read, and once per log-in.

use std::fmt::Write;
use std::sync::Arc;

use mainstem_security::{NameRules, PeerCertificate, check_name};
use x509_parser::asn1_rs::ToDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// How a listener takes users from certificates.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateUsers {
    /// Which name is taken.
    pub name: CertificateName,
    /// What the user is called by that name; `None` for the name itself.
    pub rules: Option<NameRules>,
    /// What decides if the client also presents a password or a token.
    pub with_password: WithPassword,
}

/// A name in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateName {
    /// The common name. Of a certificate with several, none is taken.
    CommonName,
    /// The distinguished name of the subject, as RFC 2253 and Java write it: `CN=press-7,O=Plant,C=DE`.
    Subject,
    /// The first DNS name of the subject alternative names.
    Dns,
    /// The first e-mail address of these.
    Email,
    /// The first URI of these, as in SPIFFE.
    Uri,
}

/// What decides about a client with a certificate and a password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithPassword {
    /// The password. As in Kafka, a certificate then only secures the connection.
    #[default]
    Password,
    /// The certificate. The password is ignored.
    Certificate,
    /// Both: the password must be right, and of the user of the certificate.
    Both,
}

/// What a certificate says.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) common_name: Option<Arc<str>>,
    subject: Option<String>,
    dns: Option<String>,
    email: Option<String>,
    uri: Option<String>,
}

impl Names {
    /// Reads a certificate. Of one that cannot be read, there are no names.
    pub(crate) fn read(certificate: &PeerCertificate<'_>) -> Self {
        match certificate {
            PeerCertificate::CommonName(name) => {
                Self { common_name: plain_name(name).map(Into::into), ..Self::default() }
            }
            PeerCertificate::Der(bytes) => match X509Certificate::from_der(bytes) {
                Ok((_, certificate)) => Self::of(&certificate),
                Err(error) => {
                    log::warn!("a client certificate cannot be read: {error}");
                    Self::default()
                }
            },
        }
    }

    fn of(certificate: &X509Certificate<'_>) -> Self {
        let mut common_names = certificate.subject().iter_common_name();
        let first = common_names.next().and_then(|name| plain_name(name.as_str().ok()?));
        let mut names = Self {
            // The certificate could mean either of two.
            common_name: first.filter(|_| common_names.next().is_none()).map(Into::into),
            subject: distinguished_name(certificate.subject()),
            ..Self::default()
        };
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        for name in alternatives.iter().flat_map(|names| &names.value.general_names) {
            let (place, name) = match name {
                GeneralName::DNSName(name) => (&mut names.dns, *name),
                GeneralName::RFC822Name(name) => (&mut names.email, *name),
                GeneralName::URI(name) => (&mut names.uri, *name),
                _ => continue,
            };
            place.get_or_insert_with(|| name.to_owned());
        }
        names
    }

    /// The user that the certificate names on a listener; `None` if it names none.
    pub(crate) fn user(&self, users: &CertificateUsers) -> Option<Arc<str>> {
        let name = match users.name {
            CertificateName::CommonName => self.common_name.as_deref(),
            CertificateName::Subject => self.subject.as_deref(),
            CertificateName::Dns => self.dns.as_deref(),
            CertificateName::Email => self.email.as_deref(),
            CertificateName::Uri => self.uri.as_deref(),
        }?;
        let user = match &users.rules {
            Some(rules) => rules.apply(name)?,
            None => name.to_owned(),
        };
        plain_name(&user).map(Into::into)
    }
}

/// A name that may be that of a user.
fn plain_name(name: &str) -> Option<&str> {
    check_name(name).is_ok().then_some(name)
}

/// A distinguished name as `X500Principal.getName()` of Java writes it, which is the text that Kafka's rules are made
/// for: the most specific part first, keywords of RFC 2253, and other attributes as object identifiers with their
/// encoding in hexadecimal.
fn distinguished_name(name: &X509Name<'_>) -> Option<String> {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (at, part) in parts.into_iter().rev().enumerate() {
        if at > 0 {
            text.push(',');
        }
        for (at, attribute) in part.iter().enumerate() {
            if at > 0 {
                text.push('+');
            }
            push_attribute(&mut text, attribute)?;
        }
    }
    Some(text)
}

fn push_attribute(text: &mut String, attribute: &AttributeTypeAndValue<'_>) -> Option<()> {
    let id = attribute.attr_type().to_id_string();
    let keyword = match id.as_str() {
        "2.5.4.3" => Some("CN"),
        "2.5.4.6" => Some("C"),
        "2.5.4.7" => Some("L"),
        "2.5.4.8" => Some("ST"),
        "2.5.4.9" => Some("STREET"),
        "2.5.4.10" => Some("O"),
        "2.5.4.11" => Some("OU"),
        "0.9.2342.19200300.100.1.1" => Some("UID"),
        "0.9.2342.19200300.100.1.25" => Some("DC"),
        _ => None,
    };
    if let (Some(keyword), Ok(value)) = (keyword, attribute.as_str()) {
        text.push_str(keyword);
        text.push('=');
        push_escaped(text, value);
        return Some(());
    }
    text.push_str(keyword.unwrap_or(&id));
    text.push_str("=#");
    for byte in attribute.attr_value().to_der_vec().ok()? {
        write!(text, "{byte:02x}").ok()?;
    }
    Some(())
}

fn push_escaped(text: &mut String, value: &str) {
    let last = value.len() - value.chars().rev().take_while(|c| *c == ' ').count();
    let first = value.len() - value.trim_start_matches(' ').len();
    for (at, c) in value.char_indices() {
        let is_outer_space = c == ' ' && (at < first || at >= last);
        match c {
            '\0' => text.push_str("\\00"),
            _ if is_outer_space || ",=+<>#;\"\\".contains(c) => text.extend(['\\', c]),
            _ => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::string::Ia5String;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(names: &[(DnType, &str)], alternatives: &[SanType]) -> Vec<u8> {
        let mut subject = DistinguishedName::new();
        for (kind, name) in names {
            subject.push(kind.clone(), *name);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        params.subject_alt_names = alternatives.to_vec();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn user(der: &[u8], name: CertificateName, rules: &str) -> Option<String> {
        let rules = (!rules.is_empty()).then(|| rules.parse().unwrap());
        let users = CertificateUsers { name, rules, with_password: WithPassword::Password };
        Names::read(&PeerCertificate::Der(der)).user(&users).map(|user| user.to_string())
    }

    fn ia5(text: &str) -> Ia5String {
        text.try_into().unwrap()
    }

    #[test]
    fn each_name_of_a_certificate_may_be_the_user() {
        let names = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "Plant, South"),
            (DnType::CommonName, "press-7"),
        ];
        let alternatives = [
            SanType::Rfc822Name(ia5("press@example.org")),
            SanType::DnsName(ia5("press-7.example.org")),
            SanType::DnsName(ia5("other.example.org")),
            SanType::URI(ia5("spiffe://example.org/press/7")),
        ];
        let der = certificate(&names, &alternatives);
        let path = r"RULE:^spiffe:\/\/[^\/]+\/press\/(.*)$/press-$1/";
        for (name, rules, expected) in [
            (CertificateName::CommonName, "", Some("press-7")),
            (CertificateName::CommonName, "RULE:^press-(.*)$/P$1/", Some("P7")),
            (CertificateName::CommonName, "RULE:^x.*$/y/", None),
            (CertificateName::Subject, "", Some(r"CN=press-7,O=Plant\, South,C=DE")),
            (CertificateName::Subject, "RULE:^CN=([^,]*),.*$/$1/U", Some("PRESS-7")),
            (CertificateName::Dns, "", Some("press-7.example.org")),
            (CertificateName::Email, "", Some("press@example.org")),
            (CertificateName::Uri, "", Some("spiffe://example.org/press/7")),
            (CertificateName::Uri, path, Some("press-7")),
        ] {
            assert_eq!(user(&der, name, rules).as_deref(), expected, "{name:?} {rules}");
        }
        let bare = certificate(&[(DnType::OrganizationName, "Plant")], &[]);
        for name in
            [CertificateName::CommonName, CertificateName::Dns, CertificateName::Email, CertificateName::Uri]
        {
            assert_eq!(user(&bare, name, ""), None, "{name:?}");
        }
        assert_eq!(user(b"no certificate", CertificateName::CommonName, ""), None);
    }

    #[test]
    fn names_that_cannot_be_a_user_name_none() {
        for name in ["a\nb", "a\0b", "", &"x".repeat(256)] {
            let der = certificate(&[(DnType::CommonName, name)], &[]);
            assert_eq!(user(&der, CertificateName::CommonName, ""), None, "{name:?}");
        }
        let der = certificate(&[(DnType::CommonName, "Jürgen #1=+")], &[]);
        assert_eq!(user(&der, CertificateName::Subject, "").as_deref(), Some(r"CN=Jürgen \#1\=\+"));
        let der =
            certificate(&[(DnType::CustomDnType(vec![1, 2, 3, 4]), "x"), (DnType::CommonName, " a ")], &[]);
        assert_eq!(user(&der, CertificateName::Subject, "").as_deref(), Some(r"CN=\ a\ ,1.2.3.4=#0c0178"));
    }

    #[test]
    fn a_proxy_tells_the_common_name_only() {
        let names = Names::read(&PeerCertificate::CommonName("press-7"));
        let user =
            |name| names.user(&CertificateUsers { name, rules: None, with_password: WithPassword::Both });
        assert_eq!(user(CertificateName::CommonName).as_deref(), Some("press-7"));
        assert_eq!(user(CertificateName::Subject), None);
    }
}
