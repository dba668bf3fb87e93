//! Decoding: the test vectors, and properties that hold for all of them.

use std::collections::HashSet;

use mainstem_mqtt::{Header, Version, connect_level, decode};

use crate::vectors::{Expected, all};

#[test]
fn every_vector_decodes_as_expected() {
    for vector in all() {
        let name = vector.name;
        let decoded = decode(vector.version, vector.bytes);
        match vector.expected {
            Expected::Canonical(packet) | Expected::Lenient(packet) => {
                assert_eq!(decoded, Ok(packet), "{name}");
            }
            Expected::Rejected(reason, clause) => {
                let error = decoded.expect_err(name);
                assert_eq!(error.reason, reason, "{name}: {error}");
                assert!(error.what.contains(clause), "{name}: {error}");
            }
        }
    }
}

#[test]
fn vector_names_are_unique() {
    let vectors = all();
    let names: HashSet<_> = vectors.iter().map(|vector| vector.name).collect();
    assert_eq!(names.len(), vectors.len());
}

#[test]
fn prefixes_of_packets_are_rejected() {
    for vector in all() {
        if matches!(vector.expected, Expected::Rejected(..)) {
            continue;
        }
        for len in 0..vector.bytes.len() {
            let prefix = &vector.bytes[..len];
            assert!(decode(vector.version, prefix).is_err(), "{}: {len} bytes", vector.name);
        }
    }
}

#[test]
fn header_is_incomplete_until_its_last_byte() {
    let frame = [0x30, 0x80, 0x80, 0x80, 0x01];
    for len in 0..frame.len() {
        assert_eq!(Header::parse(&frame[..len]), Ok(None), "{len} bytes");
    }
    let header = Header { first: 0x30, len: 5, remaining: 128 * 128 * 128 };
    assert_eq!(Header::parse(&frame), Ok(Some(header)));
    assert_eq!(header.packet_len(), 5 + 2_097_152);
}

#[test]
fn header_rejects_a_fourth_continuation_bit() {
    let frame = [0x30, 0x80, 0x80, 0x80, 0x80];
    assert_eq!(Header::parse(&frame[..4]), Ok(None));
    assert!(Header::parse(&frame).is_err(), "no fifth byte can make it valid (2.1.4)");
}

#[test]
fn header_parses_lengths_of_all_sizes() {
    for (bytes, remaining) in [
        (&[0x00][..], 0),
        (&[0x7F], 127),
        (&[0x80, 0x01], 128),
        (&[0xFF, 0x7F], 16_383),
        (&[0x80, 0x80, 0x01], 16_384),
        (&[0xFF, 0xFF, 0x7F], 2_097_151),
        (&[0x80, 0x80, 0x80, 0x01], 2_097_152),
        (&[0xFF, 0xFF, 0xFF, 0x7F], 268_435_455),
    ] {
        let frame = [&[0xC0], bytes, b"the rest"].concat();
        let header = Header { first: 0xC0, len: 1 + bytes.len(), remaining };
        assert_eq!(Header::parse(&frame), Ok(Some(header)));
    }
}

#[test]
fn connect_level_is_found_in_invalid_packets() {
    assert_eq!(connect_level(b"\x10\x0c\x00\x04MQTT\x06"), Some(6));
    assert_eq!(connect_level(b"\x10\x0c\x00\x06MQIsdp\x03\xff\xff"), Some(3));
    assert_eq!(connect_level(b"\x10\x0c\x00\x04MQTT"), None);
    assert_eq!(connect_level(b"\x20\x0c\x00\x04MQTT\x06"), None, "not a CONNECT");
    assert_eq!(connect_level(b""), None);
}

#[test]
fn decode_error_describes_the_problem() {
    let error = decode(Version::V4, b"\xc0\x01\x00").expect_err("PINGREQ with a body");
    assert_eq!(error.to_string(), "MalformedPacket: bytes after the last field");
}
