//! The PROXY protocol, versions 1 and 2: a load balancer tells the address of its client in front of the stream.
//!
//! Only peers that the host trusts are believed ([`TrustedProxies`]), since whoever sends a header chooses the address
//! in it. Parsing is strict, and a header has a maximum length: anything else in front of the stream is an error.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Longest header, bytes. Version 2 allows 64 KiB, but addresses and what load balancers add take a few hundred.
pub(crate) const HEADER_BYTES_MAX: usize = 4096;
/// Longest header of version 1 with its line end, bytes.
const TEXT_BYTES_MAX: usize = 107;
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, command, family and length of version 2.
const BINARY_START_BYTES: usize = 16;

/// The peers of a listener that send a header, which is then required.
#[derive(Clone)]
pub struct TrustedProxies(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl TrustedProxies {
    /// Peers of the addresses for which `trusts` returns `true`. Others are refused.
    pub fn new(trusts: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(trusts))
    }

    pub(crate) fn contain(&self, peer: IpAddr) -> bool {
        (self.0)(peer)
    }
}

impl fmt::Debug for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrustedProxies")
    }
}

/// The client behind a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxiedClient {
    /// Its address.
    pub address: IpAddr,
    /// The host name that it asked for (SNI), if the proxy says so.
    pub authority: Option<Box<str>>,
    /// The common name of its certificate, if it presented one to the proxy, which verified it.
    pub common_name: Option<Box<str>>,
}

/// Progress of a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// Bytes are missing.
    Incomplete,
    /// Its length. Without a client, the proxy speaks for itself, as in health checks.
    Complete(usize, Option<ProxiedClient>),
}

/// Parses the header at the start of a stream.
///
/// # Errors
/// The stream does not begin with a valid header.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header, &'static str> {
    let starts_with = |expected: &[u8]| {
        let known = bytes.len().min(expected.len());
        bytes[..known] == expected[..known]
    };
    if starts_with(b"PROXY ") {
        parse_text(bytes)
    } else if starts_with(SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err("the stream does not begin with a header of the PROXY protocol")
    }
}

fn parse_text(bytes: &[u8]) -> Result<Header, &'static str> {
    const INVALID: &str = "the header of version 1 is malformed";
    let line = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        let is_too_long = bytes.len() >= TEXT_BYTES_MAX || line.contains(&b'\n');
        return if is_too_long { Err(INVALID) } else { Ok(Header::Incomplete) };
    };
    let text = std::str::from_utf8(&line[..end]).map_err(|_| INVALID)?;
    let mut words = text.split(' ').skip(1);
    let family = words.next().ok_or(INVALID)?;
    if family == "UNKNOWN" {
        return Ok(Header::Complete(end + 2, None));
    }
    let fields: [&str; 4] = words.collect::<Vec<_>>().try_into().map_err(|_| INVALID)?;
    let [source, destination, source_port, destination_port] = fields;
    let port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    if !port(source_port) || !port(destination_port) {
        return Err(INVALID);
    }
    let parse = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (Some(address), Some(_)) = (parse(source), parse(destination)) else { return Err(INVALID) };
    Ok(Header::Complete(end + 2, Some(ProxiedClient { address, authority: None, common_name: None })))
}

fn parse_binary(bytes: &[u8]) -> Result<Header, &'static str> {
    const SHORT: &str = "the addresses in the binary header are incomplete";
    let Some(start) = bytes.first_chunk::<BINARY_START_BYTES>() else { return Ok(Header::Incomplete) };
    let [version_and_command, family] = [start[12], start[13]];
    let len = BINARY_START_BYTES + usize::from(u16::from_be_bytes([start[14], start[15]]));
    if version_and_command >> 4 != 2 {
        return Err("the version in the binary header is not 2");
    }
    if len > HEADER_BYTES_MAX {
        return Err("the header has more than 4096 bytes");
    }
    let Some(header) = bytes.get(..len) else { return Ok(Header::Incomplete) };
    let body = &header[BINARY_START_BYTES..];
    match version_and_command & 0x0F {
        0 => return Ok(Header::Complete(len, None)),
        1 => {}
        _ => return Err("the command in the binary header is unknown"),
    }
    let (address, addresses_len) = match family {
        0x00 => (None, 0),
        0x11 => (Some(Ipv4Addr::from(*body.first_chunk::<4>().ok_or(SHORT)?).into()), 12),
        0x21 => (Some(Ipv6Addr::from(*body.first_chunk::<16>().ok_or(SHORT)?).into()), 36),
        0x31 => (None, 216),
        _ => return Err("the address family in the binary header is not that of a stream"),
    };
    let attributes = body.get(addresses_len..).ok_or(SHORT)?;
    let Attributes { authority, common_name } = parse_attributes(header, attributes)?;
    Ok(Header::Complete(len, address.map(|address| ProxiedClient { address, authority, common_name })))
}

/// The attributes (TLVs) that are of interest here.
#[derive(Debug, Default)]
struct Attributes {
    authority: Option<Box<str>>,
    common_name: Option<Box<str>>,
}

fn parse_attributes(header: &[u8], mut bytes: &[u8]) -> Result<Attributes, &'static str> {
    const AUTHORITY: u8 = 0x02;
    const CRC32C: u8 = 0x03;
    const SSL: u8 = 0x20;
    let mut found = Attributes::default();
    while let Some(Attribute { kind, value, rest }) = take_attribute(bytes)? {
        match kind {
            AUTHORITY => found.authority = Some(text(value)?),
            CRC32C => check_sum(header, value)?,
            SSL => found.common_name = common_name(value)?,
            _ => {}
        }
        bytes = rest;
    }
    Ok(found)
}

/// An attribute, and what follows it.
struct Attribute<'a> {
    kind: u8,
    value: &'a [u8],
    rest: &'a [u8],
}

/// Takes an attribute. `None` at the end.
fn take_attribute(bytes: &[u8]) -> Result<Option<Attribute<'_>>, &'static str> {
    let [kind, high, low, rest @ ..] = bytes else {
        return if bytes.is_empty() {
            Ok(None)
        } else {
            Err("an attribute in the binary header is incomplete")
        };
    };
    let len = usize::from(u16::from_be_bytes([*high, *low]));
    let (value, rest) =
        rest.split_at_checked(len).ok_or("an attribute in the binary header is incomplete")?;
    Ok(Some(Attribute { kind: *kind, value, rest }))
}

fn text(value: &[u8]) -> Result<Box<str>, &'static str> {
    let text = std::str::from_utf8(value).map_err(|_| "an attribute in the binary header is not UTF-8")?;
    Ok(text.into())
}

/// Checks the checksum of the header, which was computed with zeros in its place.
fn check_sum(header: &[u8], sum: &[u8]) -> Result<(), &'static str> {
    const INVALID: &str = "the checksum in the binary header is wrong";
    let expected = *sum.first_chunk::<4>().filter(|_| sum.len() == 4).ok_or(INVALID)?;
    let at = sum.as_ptr().addr() - header.as_ptr().addr();
    let zeroed = crc32c::crc32c_append(crc32c::crc32c(&header[..at]), &[0; 4]);
    let computed = crc32c::crc32c_append(zeroed, &header[at + 4..]);
    if computed == u32::from_be_bytes(expected) { Ok(()) } else { Err(INVALID) }
}

/// The common name in the attribute about TLS, if the proxy has verified the certificate.
fn common_name(value: &[u8]) -> Result<Option<Box<str>>, &'static str> {
    /// The client presented a certificate, over this connection or an earlier one of its TLS session.
    const HAS_CERTIFICATE: u8 = 0x02 | 0x04;
    const COMMON_NAME: u8 = 0x22;
    let Some(([client, verify @ ..], mut attributes)) = value.split_first_chunk::<5>() else {
        return Err("an attribute in the binary header is incomplete");
    };
    let mut name = None;
    while let Some(Attribute { kind, value, rest }) = take_attribute(attributes)? {
        if kind == COMMON_NAME {
            name = Some(text(value)?);
        }
        attributes = rest;
    }
    let is_verified = *verify == [0; 4] && client & HAS_CERTIFICATE != 0;
    Ok(name.filter(|_| is_verified))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> ProxiedClient {
        ProxiedClient { address: address.parse().unwrap(), authority: None, common_name: None }
    }

    fn attribute(kind: u8, value: &[u8]) -> Vec<u8> {
        [&[kind][..], &(value.len() as u16).to_be_bytes(), value].concat()
    }

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    /// A header for a client at 192.0.2.1.
    fn of_client(attributes: &[u8]) -> Vec<u8> {
        let addresses = [192, 0, 2, 1, 192, 0, 2, 9, 0x12, 0x34, 0, 80];
        binary(0x21, 0x11, &[&addresses, attributes].concat())
    }

    fn ssl(client: u8, verify: u32, name: &[u8]) -> Vec<u8> {
        let names = [attribute(0x21, b"TLSv1.3"), attribute(0x22, name)].concat();
        attribute(0x20, &[&[client][..], &verify.to_be_bytes(), &names].concat())
    }

    #[test]
    fn headers_end_where_they_say_and_may_be_cut_anywhere() {
        let v6 = [&[0x20, 1, 0xD, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 20]].concat();
        for (header, expected) in [
            (b"PROXY TCP4 192.0.2.1 192.0.2.9 65535 1883\r\n".to_vec(), Some(client("192.0.2.1"))),
            (b"PROXY TCP6 2001:db8::7 ::1 1 2\r\n".to_vec(), Some(client("2001:db8::7"))),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 whatever 0 0\r\n".to_vec(), None),
            (of_client(b""), Some(client("192.0.2.1"))),
            (of_client(&attribute(0x04, &[0; 300])), Some(client("192.0.2.1"))),
            (binary(0x21, 0x21, &v6), Some(client("2001:db8::7"))),
            (binary(0x20, 0x00, b""), None),
            (binary(0x20, 0x11, b"ignored"), None),
            (binary(0x21, 0x00, b""), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            for cut in 0..header.len() {
                assert_eq!(parse(&header[..cut]), Ok(Header::Incomplete), "{cut} of {header:?}");
            }
            let stream = [&header[..], b"PROXY TCP4 stream"].concat();
            assert_eq!(parse(&stream), Ok(Header::Complete(header.len(), expected)));
        }
    }

    #[test]
    fn attributes_name_the_host_and_a_verified_certificate() {
        let name_of = |attributes: &[u8]| match parse(&of_client(attributes)) {
            Ok(Header::Complete(_, Some(client))) => (client.authority, client.common_name),
            other => panic!("{other:?}"),
        };
        let both = [attribute(0x02, b"plant.example.com"), ssl(0x07, 0, b"press-7")].concat();
        assert_eq!(name_of(&both), (Some("plant.example.com".into()), Some("press-7".into())));
        assert_eq!(name_of(&ssl(0x05, 0, b"press-7")).1, Some("press-7".into()), "an earlier connection");
        assert_eq!(name_of(&ssl(0x07, 18, b"press-7")).1, None, "not verified");
        assert_eq!(name_of(&ssl(0x01, 0, b"press-7")).1, None, "no certificate");
    }

    #[test]
    fn a_checksum_must_be_right() {
        let mut header = of_client(&[attribute(0x03, &[0; 4]), attribute(0x02, b"a")].concat());
        let sum = crc32c::crc32c(&header);
        let at = BINARY_START_BYTES + 12 + 3;
        header[at..at + 4].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(parse(&header), Ok(Header::Complete(_, Some(_)))));
        header[at] ^= 1;
        assert!(parse(&header).is_err());
        assert!(parse(&of_client(&attribute(0x03, &[0; 3]))).is_err());
    }

    #[test]
    fn everything_else_is_an_error() {
        let long = binary(0x21, 0x11, &[0; HEADER_BYTES_MAX]);
        for bytes in [
            b"\x10\x0d\x00\x04MQTT".as_slice(),
            b"proxy ",
            b"GET ",
            b"PROXY TCP4 192.0.2.1 192.0.2.9 1 2 3\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.9 1\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.9 1 65536\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.9 1 +2\r\n",
            b"PROXY TCP4 192.0.2.1 ::1 1 2\r\n",
            b"PROXY TCP6 192.0.2.1 192.0.2.9 1 2\r\n",
            b"PROXY TCP4  192.0.2.1 192.0.2.9 1 2\r\n",
            b"PROXY UDP4 192.0.2.1 192.0.2.9 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.9 1 2\n",
            b"PROXY \xFF\r\n",
            &[b"PROXY UNKNOWN ".as_slice(), &[b'a'; 100]].concat(),
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x22, 0x11, &[0; 12]),
            &binary(0x21, 0x12, &[0; 12]),
            &binary(0x21, 0x11, &[0; 11]),
            &binary(0x21, 0x21, &[0; 35]),
            &binary(0x21, 0x31, &[0; 215]),
            &of_client(&[1]),
            &of_client(&[1, 0, 9, 0]),
            &of_client(&attribute(0x02, b"\xFF")),
            &of_client(&attribute(0x20, b"\x07\0\0\0")),
            &of_client(&attribute(0x20, b"\x07\0\0\0\0\x22\0\x09a")),
            &long[..BINARY_START_BYTES],
        ] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
