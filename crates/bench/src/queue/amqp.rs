//! Work queues over AMQP 0-9-1 with RabbitMQ's extensions.
//!
//! The queue is durable, messages are persistent and go through the default exchange, publishers use confirms, and
//! consumers acknowledge each message individually. Confirms may arrive in any order and cover several messages, so
//! each publisher keeps its unconfirmed messages in delivery-tag order.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::amqp_frames::{
    Arguments, FRAME_BODY, FRAME_BYTES_MORE, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, Frame, Method,
    frame, malformed, method, put_long, put_short, put_u16, put_u32,
};
use super::blocking::BlockingConnection;
use super::options::{QueueOptions, QueueType};
use super::protocol::{Protocol, Role, Server, ServerEvent};
use crate::error::BenchError;
use crate::wire::{STAMP_BYTES, Stamp};

/// Protocol header (4.2.2).
const PROTOCOL: &[u8] = b"AMQP\0\0\x09\x01";
/// Number of the only channel.
const CHANNEL: u16 = 1;
/// SASL PLAIN response with the default user, which a new server accepts from localhost.
const GUEST: &[u8] = b"\0guest\0guest";
/// Maximum frame size, equal to RabbitMQ's limit. Payloads fit into one frame.
const FRAME_BYTES_MAX: u32 = 128 * 1024;
/// Class of content methods.
const BASIC: u16 = 60;
/// Property flag of `delivery-mode`, and its value for persistent messages.
const HAS_DELIVERY_MODE: u16 = 0x1000;
const PERSISTENT: u8 = 2;
/// Flags of queue.declare.
const PASSIVE: u8 = 1;
const DURABLE: u8 = 2;

/// A server that speaks AMQP 0-9-1.
#[derive(Debug)]
pub(super) struct Rabbit<'a> {
    pub(super) options: &'a QueueOptions,
    pub(super) address: SocketAddr,
    pub(super) queue: &'a str,
    pub(super) queue_type: QueueType,
}

impl Rabbit<'_> {
    /// Opens a connection and its channel.
    fn connect(&self) -> Result<BlockingConnection, BenchError> {
        let mut conn = BlockingConnection::open(self.address)?;
        conn.send(PROTOCOL)?;
        expect(&mut conn, method::CONNECTION_START)?;
        call(&mut conn, 0, method::CONNECTION_START_OK, method::CONNECTION_TUNE, |out| {
            put_u32(out, 0);
            put_short(out, "PLAIN");
            put_long(out, GUEST);
            put_short(out, "en_US");
        })?;
        let mut out = Vec::new();
        method(&mut out, 0, method::CONNECTION_TUNE_OK, |out| {
            put_u16(out, CHANNEL);
            put_u32(out, FRAME_BYTES_MAX);
            // No heartbeats.
            put_u16(out, 0);
        });
        conn.send(&out)?;
        call(&mut conn, 0, method::CONNECTION_OPEN, method::CONNECTION_OPEN_OK, |out| {
            put_short(out, "/");
            put_u16(out, 0);
        })?;
        call(&mut conn, CHANNEL, method::CHANNEL_OPEN, method::CHANNEL_OPEN_OK, |out| out.push(0))?;
        Ok(conn)
    }

    /// Declares the queue; with [`PASSIVE`] only queries it. Returns the number of ready messages.
    fn declare_queue(&self, bits: u8) -> Result<u32, BenchError> {
        let mut conn = self.connect()?;
        let answer = call(&mut conn, CHANNEL, method::QUEUE_DECLARE, method::QUEUE_DECLARE_OK, |out| {
            put_u16(out, 0);
            put_short(out, self.queue);
            out.push(bits);
            let mut table = Vec::new();
            put_short(&mut table, "x-queue-type");
            table.push(b'S');
            put_long(&mut table, self.queue_type.argument().as_bytes());
            put_long(out, &table);
        })?;
        let mut arguments = Arguments(&answer);
        arguments.short()?;
        let ready = arguments.u32()?;
        call(&mut conn, 0, method::CONNECTION_CLOSE, method::CONNECTION_CLOSE_OK, put_close)?;
        Ok(ready)
    }
}

impl Server for Rabbit<'_> {
    type Protocol = Channel;

    fn declare(&mut self) -> Result<(), BenchError> {
        self.declare_queue(DURABLE).map(drop)
    }

    fn open(&self, role: Role, _number: u32) -> Result<(BlockingConnection, Channel), BenchError> {
        let mut conn = self.connect()?;
        match role {
            Role::Publisher => {
                call(&mut conn, CHANNEL, method::CONFIRM_SELECT, method::CONFIRM_SELECT_OK, |out| {
                    out.push(0);
                })?;
            }
            Role::Consumer => {
                call(&mut conn, CHANNEL, method::BASIC_QOS, method::BASIC_QOS_OK, |out| {
                    put_u32(out, 0);
                    put_u16(out, self.options.prefetch);
                    out.push(0);
                })?;
            }
        }
        Ok((conn, Channel::new(self.queue, self.options.payload_bytes)))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        if self.queue_type == QueueType::Flux {
            return Ok(None);
        }
        // Unacknowledged messages count as ready again, because all consumers have closed their connections.
        self.declare_queue(PASSIVE | DURABLE).map(|ready| Some(ready.into()))
    }
}

/// Sends a method and returns the arguments of the response method.
fn call(
    conn: &mut BlockingConnection,
    channel: u16,
    called: Method,
    answer: Method,
    put: impl FnOnce(&mut Vec<u8>),
) -> Result<Vec<u8>, BenchError> {
    let mut out = Vec::new();
    method(&mut out, channel, called, put);
    conn.send(&out)?;
    expect(conn, answer)
}

/// Waits for a method and returns its arguments.
fn expect(conn: &mut BlockingConnection, expected: Method) -> Result<Vec<u8>, BenchError> {
    conn.receive(|bytes| {
        let Some(frame) = Frame::parse(bytes)? else { return Ok(None) };
        let mut arguments = Arguments(frame.payload);
        match arguments.method()? {
            found if frame.kind == FRAME_METHOD && found == expected => {
                Ok(Some((frame.len, arguments.0.to_vec())))
            }
            found => Err(unexpected(found, arguments)),
        }
    })
}

/// Error for an unexpected method; includes the reason if the server closed.
fn unexpected(found: Method, mut arguments: Arguments<'_>) -> BenchError {
    if let method::CONNECTION_CLOSE | method::CHANNEL_CLOSE = found
        && let (Ok(code), Ok(text)) = (arguments.u16(), arguments.short())
    {
        return BenchError::Broken(format!("the server closed: {code} {}", String::from_utf8_lossy(text)));
    }
    malformed(&format!("method {found:?}"))
}

/// Appends the arguments of a normal connection.close.
fn put_close(out: &mut Vec<u8>) {
    put_u16(out, 200);
    put_short(out, "");
    put_u32(out, 0);
}

/// Channel of one connection.
#[derive(Debug)]
pub(super) struct Channel {
    queue: String,
    /// Bytes before a payload: basic.publish, the content header, the body frame header.
    head: Vec<u8>,
    /// Slots of unconfirmed messages in delivery-tag order; `None` for a message confirmed before earlier ones.
    unconfirmed: VecDeque<Option<u32>>,
    /// Delivery tag of the first entry of `unconfirmed`.
    first_tag: u64,
}

impl Channel {
    fn new(queue: &str, payload_bytes: usize) -> Self {
        let mut head = Vec::new();
        method(&mut head, CHANNEL, method::BASIC_PUBLISH, |out| {
            put_u16(out, 0);
            put_short(out, "");
            put_short(out, queue);
            out.push(0);
        });
        frame(&mut head, FRAME_HEADER, CHANNEL, |out| {
            put_u16(out, BASIC);
            put_u16(out, 0);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
            put_u16(out, HAS_DELIVERY_MODE);
            out.push(PERSISTENT);
        });
        frame(&mut head, FRAME_BODY, CHANNEL, |out| out.resize(out.len() + payload_bytes, 0));
        // Cut off the payload, which differs per message, and the frame end.
        head.truncate(head.len() - payload_bytes - 1);
        Self { queue: queue.to_owned(), head, unconfirmed: VecDeque::new(), first_tag: 1 }
    }

    /// Handles a confirm of one delivery tag or, if `is_multiple`, of all tags up to it.
    fn confirmed(
        &mut self,
        tag: u64,
        is_multiple: bool,
        mut each: impl FnMut(u32),
    ) -> Result<(), BenchError> {
        let position = tag.checked_sub(self.first_tag).filter(|at| *at < self.unconfirmed.len() as u64);
        let last = position.ok_or_else(|| malformed("a confirm of an unknown delivery tag"))? as usize;
        let first = if is_multiple { 0 } else { last };
        for slot in self.unconfirmed.range_mut(first..=last) {
            if let Some(slot) = slot.take() {
                each(slot);
            }
        }
        while let Some(None) = self.unconfirmed.front() {
            self.unconfirmed.pop_front();
            self.first_tag += 1;
        }
        Ok(())
    }
}

impl Protocol for Channel {
    fn start_consuming(&mut self, out: &mut Vec<u8>) {
        let queue = &self.queue;
        method(out, CHANNEL, method::BASIC_CONSUME, |out| {
            put_u16(out, 0);
            put_short(out, queue);
            put_short(out, "");
            out.push(0);
            put_u32(out, 0);
        });
    }

    #[inline]
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        stamp.append(out);
        out.extend_from_slice(&filler[STAMP_BYTES..]);
        out.push(0xCE);
        self.unconfirmed.push_back(Some(slot));
    }

    #[inline]
    fn handle_input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut on_event: impl FnMut(ServerEvent<'_>),
    ) -> Result<usize, BenchError> {
        let Some(first) = Frame::parse(bytes)? else { return Ok(0) };
        if first.kind == FRAME_HEARTBEAT {
            return Ok(first.len);
        }
        let mut arguments = Arguments(first.payload);
        match arguments.method()? {
            _ if first.kind != FRAME_METHOD => return Err(malformed("content without a method")),
            method::BASIC_DELIVER => {
                arguments.short()?;
                let tag = arguments.u64()?;
                let Some((payload, len)) = content(&bytes[first.len..])? else { return Ok(0) };
                append_ack(out, tag);
                on_event(ServerEvent::Delivered(payload));
                return Ok(first.len + len);
            }
            method::BASIC_ACK => {
                let (tag, bits) = (arguments.u64()?, arguments.u8()?);
                self.confirmed(tag, bits & 1 == 1, |slot| on_event(ServerEvent::Acknowledged(slot)))?;
            }
            method::BASIC_NACK => {
                let (tag, bits) = (arguments.u64()?, arguments.u8()?);
                self.confirmed(tag, bits & 1 == 1, |slot| {
                    on_event(ServerEvent::Refused(slot, "basic.nack".into()));
                })?;
            }
            method::BASIC_CONSUME_OK => {}
            method::CONNECTION_CLOSE_OK => on_event(ServerEvent::Closed),
            other => return Err(unexpected(other, arguments)),
        }
        Ok(first.len)
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        method(out, 0, method::CONNECTION_CLOSE, put_close);
    }
}

/// Parses the header and body frames of a message. Returns its payload and the length of the frames; `None` if
/// incomplete.
#[inline]
fn content(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, BenchError> {
    let Some(header) = Frame::parse(bytes)? else { return Ok(None) };
    let mut arguments = Arguments(header.payload);
    arguments.u32()?;
    let size = arguments.u64()?;
    let Some(body) = Frame::parse(&bytes[header.len..])? else { return Ok(None) };
    if (header.kind, body.kind, body.payload.len() as u64) != (FRAME_HEADER, FRAME_BODY, size) {
        return Err(malformed("a message in several body frames"));
    }
    Ok(Some((body.payload, header.len + body.len)))
}

/// Appends basic.ack of one message, pre-encoded; equal to the output of `method`.
#[inline]
fn append_ack(out: &mut Vec<u8>, tag: u64) {
    let mut bytes = [1, 0, CHANNEL as u8, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xCE];
    bytes[11..19].copy_from_slice(&tag.to_be_bytes());
    out.extend_from_slice(&bytes);
}

// A payload must fit into one frame.
const _: () = assert!(super::options::PAYLOAD_BYTES_MAX + FRAME_BYTES_MORE <= FRAME_BYTES_MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::filler;

    const STAMP: Stamp = Stamp { due_ns: 5, stream: 6, sequence: 7 };

    fn feed(channel: &mut Channel, bytes: &[u8]) -> (usize, Vec<String>, Vec<u8>) {
        let (mut words, mut out) = (Vec::new(), Vec::new());
        let taken = channel.handle_input(bytes, &mut out, |event| words.push(format!("{event:?}"))).unwrap();
        (taken, words, out)
    }

    fn ack(tag: u64, bits: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        method(&mut bytes, CHANNEL, method::BASIC_ACK, |out| {
            out.extend_from_slice(&tag.to_be_bytes());
            out.push(bits);
        });
        bytes
    }

    #[test]
    fn publish_is_three_frames() {
        let filler = filler(40);
        let mut bytes = Vec::new();
        Channel::new("jobs", 40).publish(0, &STAMP, &filler, &mut bytes);
        let first = Frame::parse(&bytes).unwrap().unwrap();
        assert_eq!(Arguments(first.payload).method().unwrap(), method::BASIC_PUBLISH);
        let (payload, len) = content(&bytes[first.len..]).unwrap().unwrap();
        assert_eq!((first.len + len, payload.len()), (bytes.len(), 40));
        assert_eq!(Stamp::read(payload), Some(STAMP));
        assert_eq!(payload[STAMP_BYTES..], filler[STAMP_BYTES..]);
    }

    #[test]
    fn confirms_arrive_in_any_order_and_in_groups() {
        let filler = filler(16);
        let mut channel = Channel::new("jobs", 16);
        for slot in [4, 5, 6, 7] {
            channel.publish(slot, &STAMP, &filler, &mut Vec::new());
        }
        assert_eq!(feed(&mut channel, &ack(2, 0)).1, ["Acknowledged(5)"]);
        assert_eq!(feed(&mut channel, &ack(3, 1)).1, ["Acknowledged(4)", "Acknowledged(6)"]);
        assert!(channel.handle_input(&ack(3, 0), &mut Vec::new(), |_| ()).is_err(), "already confirmed");
        channel.publish(4, &STAMP, &filler, &mut Vec::new());
        assert_eq!(feed(&mut channel, &ack(5, 1)).1, ["Acknowledged(7)", "Acknowledged(4)"]);
    }

    #[test]
    fn acknowledges_a_delivery_by_its_tag() {
        let mut bytes = Vec::new();
        method(&mut bytes, CHANNEL, method::BASIC_DELIVER, |out| {
            put_short(out, "consumer");
            out.extend_from_slice(&99_u64.to_be_bytes());
            out.push(0);
            put_short(out, "");
            put_short(out, "jobs");
        });
        let deliver = bytes.len();
        let mut publish = Vec::new();
        Channel::new("jobs", 16).publish(0, &STAMP, &filler(16), &mut publish);
        let first = Frame::parse(&publish).unwrap().unwrap().len;
        bytes.extend_from_slice(&publish[first..]);
        let mut channel = Channel::new("jobs", 16);
        for length in [deliver - 1, deliver, bytes.len() - 1] {
            assert_eq!(feed(&mut channel, &bytes[..length]), (0, vec![], vec![]), "{length}");
        }
        let (taken, words, out) = feed(&mut channel, &bytes);
        assert_eq!((taken, words.len()), (bytes.len(), 1));
        assert_eq!(out, ack(99, 0));
    }

    #[test]
    fn close_error_contains_the_reason() {
        let mut bytes = Vec::new();
        method(&mut bytes, CHANNEL, method::CHANNEL_CLOSE, |out| {
            put_u16(out, 404);
            put_short(out, "NOT_FOUND");
            put_u32(out, 0);
        });
        let error = Channel::new("q", 16).handle_input(&bytes, &mut Vec::new(), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "the server closed: 404 NOT_FOUND");
    }
}
