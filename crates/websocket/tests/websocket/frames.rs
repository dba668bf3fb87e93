//! Frames of the peer, one table of cases that every implementation must handle, and frames to the peer.

use crate::kit::{
    BINARY, CLOSE, CONTINUATION, Connection, FIN, MASK, PING, PONG, TEXT, close, frame, unmasked,
};

/// Frames, the input that they carry, and what is sent in response.
struct Case {
    name: &'static str,
    received: Vec<u8>,
    input: Vec<u8>,
    sent: Vec<u8>,
}

fn case(name: &'static str, received: &[Vec<u8>], input: &[u8], sent: &[Vec<u8>]) -> Case {
    Case { name, received: received.concat(), input: input.to_vec(), sent: sent.concat() }
}

fn violation(name: &'static str, received: &[u8], code: u16) -> Case {
    case(name, &[received.to_vec()], b"", &[close(code)])
}

/// What a peer may send, and what it must not.
fn cases() -> Vec<Case> {
    let pong = |payload: &[u8]| unmasked(FIN | PONG, payload);
    let mut cases = vec![
        case("a message", &[frame(FIN | BINARY, b"abc")], b"abc", &[]),
        case("an empty message", &[frame(FIN | BINARY, b""), frame(FIN | BINARY, b"x")], b"x", &[]),
        case("125 bytes", &[frame(FIN | BINARY, &[1; 125])], &[1; 125], &[]),
        case("126 bytes", &[frame(FIN | BINARY, &[1; 126])], &[1; 126], &[]),
        case("65,535 bytes", &[frame(FIN | BINARY, &[1; 65_535])], &[1; 65_535], &[]),
        case("65,536 bytes", &[frame(FIN | BINARY, &[1; 65_536])], &[1; 65_536], &[]),
        case(
            "fragments with control frames between them",
            &[
                frame(BINARY, b"a"),
                frame(FIN | PING, b"1"),
                frame(CONTINUATION, b"b"),
                frame(FIN | PONG, b"unasked"),
                frame(CONTINUATION, b""),
                frame(FIN | CONTINUATION, b"c"),
                frame(FIN | BINARY, b"d"),
            ],
            b"abcd",
            &[pong(b"1")],
        ),
        case("a ping", &[frame(FIN | PING, b"")], b"", &[pong(b"")]),
        case("the longest ping", &[frame(FIN | PING, &[7; 125])], b"", &[pong(&[7; 125])]),
        case("a pong that nobody asked for", &[frame(FIN | PONG, b"x")], b"", &[]),
        case("a close without a code", &[frame(FIN | CLOSE, b"")], b"", &[close(1000)]),
        case("a close", &[frame(FIN | CLOSE, b"\x03\xE9going")], b"", &[close(1001)]),
        case("a close of an application", &[frame(FIN | CLOSE, b"\x0F\xA0")], b"", &[close(4000)]),
        case(
            "frames behind a close are ignored",
            &[frame(FIN | BINARY, b"a"), frame(FIN | CLOSE, b""), frame(FIN | BINARY, b"b"), vec![0xFF; 9]],
            b"a",
            &[close(1000)],
        ),
        case(
            "a close between fragments",
            &[frame(BINARY, b"a"), frame(FIN | CLOSE, b"")],
            b"a",
            &[close(1000)],
        ),
        case("input before a violation counts", &[frame(FIN | BINARY, b"a"), vec![0xC2]], b"a", &[]),
        violation("text", &frame(FIN | TEXT, b"hello"), 1003),
        violation("a fragment of text", &frame(TEXT, b"h"), 1003),
        violation("no mask", &unmasked(FIN | BINARY, b"abc"), 1002),
        violation("a ping without a mask", &unmasked(FIN | PING, b""), 1002),
        violation("a long ping", &frame(FIN | PING, &[0; 126]), 1002),
        violation("a fragmented ping", &frame(PING, b""), 1002),
        violation("a fragmented close", &frame(CLOSE, b""), 1002),
        violation("a continuation of nothing", &frame(CONTINUATION, b"a"), 1002),
        violation("the last fragment of nothing", &frame(FIN | CONTINUATION, b"a"), 1002),
        violation("half a code", &frame(FIN | CLOSE, b"\x03"), 1002),
        violation("a reserved code", &frame(FIN | CLOSE, b"\x03\xED"), 1002),
        violation("a reason that is not UTF-8", &frame(FIN | CLOSE, b"\x03\xE8\xFF"), 1007),
        violation("a length of 2^63", &[FIN | BINARY, 0xFF, 0x80, 0, 0, 0, 0, 0, 0, 0], 1002),
        violation(
            "a length of 2^63 - 1",
            &[FIN | BINARY, 0xFF, 0x7F, 255, 255, 255, 255, 255, 255, 255],
            1009,
        ),
        violation("512 MiB and a byte", &[FIN | BINARY, 0xFF, 0, 0, 0, 0, 0x20, 0, 0, 1], 1009),
        case(
            "the start of 512 MiB",
            &[vec![FIN | BINARY, 0xFF, 0, 0, 0, 0, 0x20, 0, 0, 0], MASK.into()],
            b"",
            &[],
        ),
        case(
            "a message in a message",
            &[frame(BINARY, b"a"), frame(FIN | BINARY, b"b")],
            b"a",
            &[close(1002)],
        ),
    ];
    for bits in [0x40, 0x20, 0x10, 0x70] {
        cases.push(violation("reserved bits", &frame(FIN | bits | BINARY, b"a"), 1002));
        cases.push(violation("reserved bits of a ping", &frame(FIN | bits | PING, b"a"), 1002));
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        cases.push(violation("a reserved opcode", &frame(FIN | opcode, b"a"), 1002));
    }
    cases
}

/// [MQTT5-6.0.0-1], [MQTT5-6.0.0-2], [MQTT3-6.0.0-1], [MQTT3-6.0.0-2]
#[test]
fn frames_have_their_meaning_wherever_they_are_cut() {
    for Case { name, received, input, sent } in cases() {
        let is_long = received.len() > 1000;
        for step in if is_long { vec![received.len(), 997] } else { vec![received.len(), 1, 2, 3, 7] } {
            let mut connection = Connection::open();
            for part in received.chunks(step) {
                if connection.is_open {
                    connection.receive(part);
                }
            }
            assert_eq!(connection.take_input(), input, "{name}, {step} bytes at a time");
            assert_eq!(connection.take_sent(), sent, "{name}, {step} bytes at a time");
            let ends = sent.starts_with(&[FIN | CLOSE]);
            assert_eq!(connection.is_open, !ends, "{name}");
        }
    }
}

#[test]
fn a_header_is_judged_before_its_payload_arrives() {
    for start in [[FIN | TEXT, 0x85], [FIN | BINARY, 5], [FIN | 0x40 | BINARY, 0x85], [PING, 0x80]] {
        let mut connection = Connection::open();
        connection.receive(&start);
        assert!(!connection.is_open, "{start:?}");
    }
}

#[test]
fn a_flood_of_pings_gets_one_pong_per_read() {
    let mut connection = Connection::open();
    let flood: Vec<u8> = (0..1000_u16).flat_map(|number| frame(FIN | PING, &number.to_be_bytes())).collect();
    connection.receive(&flood);
    assert_eq!(connection.take_sent(), unmasked(FIN | PONG, &999_u16.to_be_bytes()));
    assert!(connection.layer.take_charge() >= 250, "the work counts");
}

#[test]
fn endless_fragments_need_no_memory_and_count_as_work() {
    let mut connection = Connection::open();
    connection.receive(&frame(BINARY, b""));
    connection.layer.take_charge();
    let fragments = frame(CONTINUATION, b"").repeat(10_000);
    for _ in 0..10 {
        connection.receive(&fragments);
        assert!(connection.layer.take_charge() >= 2500);
    }
    assert!(connection.input.capacity() == 0 && connection.sent.capacity() == 0);
}

#[test]
fn output_leaves_behind_a_header_and_as_it_is() {
    let mut connection = Connection::open();
    assert!(connection.layer.passes_output());
    for len in [1, 125, 126, 65_535] {
        let sent = connection.layer.send(&vec![7; len], &mut connection.sent);
        let bytes = connection.take_sent();
        assert!(sent == len.min(16 * 1024 - 4) && bytes.ends_with(&vec![7; sent]));
        let header = &bytes[..bytes.len() - sent];
        match sent {
            0..126 => assert_eq!(header, [FIN | BINARY, sent as u8]),
            _ => assert_eq!(header, [FIN | BINARY, 126, (sent >> 8) as u8, sent as u8]),
        }
    }
}

#[test]
fn a_close_of_the_server_is_normal_and_nothing_is_sent_without_an_upgrade() {
    let mut connection = Connection::open();
    connection.layer.close(&mut connection.sent);
    assert_eq!(connection.take_sent(), close(1000));
    assert_eq!(connection.layer.send(b"late", &mut connection.sent), 0);

    let mut early = Connection::new(&[]);
    early.receive(b"GET /mq");
    assert_eq!(early.layer.send(b"early", &mut early.sent), 0);
    early.layer.close(&mut early.sent);
    assert_eq!(early.take_sent(), b"");
}
