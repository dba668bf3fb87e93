//! Work queues over AMQP 0-9-1, as RabbitMQ speaks it: a durable queue, persistent messages through the default
//! exchange, publisher confirms, and consumers that acknowledge each message by itself.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::amqp_frames::{
    Arguments, FRAME_BODY, FRAME_BYTES_MORE, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, Frame, Method,
    frame, method, odd, put_long, put_short, put_u16, put_u32,
};
use super::dialogue::Dialogue;
use super::options::{QueueOptions, QueueType};
use super::talk::{Heard, Role, Server, Talk};
use crate::error::BenchError;
use crate::wire::{STAMP_BYTES, Stamp};

/// What a client says first (4.2.2).
const PROTOCOL: &[u8] = b"AMQP\0\0\x09\x01";
/// The only channel.
const CHANNEL: u16 = 1;
/// The user and password that a fresh server takes from this machine.
const GUEST: &[u8] = b"\0guest\0guest";
/// The largest frame we take, RabbitMQ's own limit; payloads fit into one.
const FRAME_BYTES_MAX: u32 = 128 * 1024;
/// The class of messages.
const BASIC: u16 = 60;
/// The property flag of `delivery-mode`, and its value for messages that are kept.
const HAS_DELIVERY_MODE: u16 = 0x1000;
const PERSISTENT: u8 = 2;
/// Bits of queue.declare.
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
    /// Opens a connection with a channel.
    fn connect(&self) -> Result<Dialogue, BenchError> {
        let mut dialogue = Dialogue::open(self.address)?;
        dialogue.say(PROTOCOL)?;
        expect(&mut dialogue, method::CONNECTION_START)?;
        call(&mut dialogue, 0, method::CONNECTION_START_OK, method::CONNECTION_TUNE, |out| {
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
        dialogue.say(&out)?;
        call(&mut dialogue, 0, method::CONNECTION_OPEN, method::CONNECTION_OPEN_OK, |out| {
            put_short(out, "/");
            put_u16(out, 0);
        })?;
        call(&mut dialogue, CHANNEL, method::CHANNEL_OPEN, method::CHANNEL_OPEN_OK, |out| out.push(0))?;
        Ok(dialogue)
    }

    /// Declares the queue, or with [`PASSIVE`] asks for it. How many messages are ready in it.
    fn declare_queue(&self, bits: u8) -> Result<u32, BenchError> {
        let mut dialogue = self.connect()?;
        let answer = call(&mut dialogue, CHANNEL, method::QUEUE_DECLARE, method::QUEUE_DECLARE_OK, |out| {
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
        call(&mut dialogue, 0, method::CONNECTION_CLOSE, method::CONNECTION_CLOSE_OK, put_close)?;
        Ok(ready)
    }
}

impl Server for Rabbit<'_> {
    type Talk = Channel;

    fn declare(&mut self) -> Result<(), BenchError> {
        self.declare_queue(DURABLE).map(drop)
    }

    fn open(&self, role: Role, _number: u32) -> Result<(Dialogue, Channel), BenchError> {
        let mut dialogue = self.connect()?;
        match role {
            Role::Publisher => {
                call(&mut dialogue, CHANNEL, method::CONFIRM_SELECT, method::CONFIRM_SELECT_OK, |out| {
                    out.push(0);
                })?;
            }
            Role::Consumer => {
                call(&mut dialogue, CHANNEL, method::BASIC_QOS, method::BASIC_QOS_OK, |out| {
                    put_u32(out, 0);
                    put_u16(out, self.options.prefetch);
                    out.push(0);
                })?;
            }
        }
        Ok((dialogue, Channel::new(self.queue, self.options.payload_bytes)))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        if self.queue_type == QueueType::Flux {
            return Ok(None);
        }
        // What consumers had is ready again: they have left, and the server has said so.
        self.declare_queue(PASSIVE | DURABLE).map(|ready| Some(ready.into()))
    }
}

/// Calls a method and waits for its answer, whose arguments are returned.
fn call(
    dialogue: &mut Dialogue,
    channel: u16,
    called: Method,
    answer: Method,
    put: impl FnOnce(&mut Vec<u8>),
) -> Result<Vec<u8>, BenchError> {
    let mut out = Vec::new();
    method(&mut out, channel, called, put);
    dialogue.say(&out)?;
    expect(dialogue, answer)
}

/// Waits for a method, whose arguments are returned.
fn expect(dialogue: &mut Dialogue, expected: Method) -> Result<Vec<u8>, BenchError> {
    dialogue.hear(|bytes| {
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

/// What to make of a method that has no place where it came.
fn unexpected(found: Method, mut arguments: Arguments<'_>) -> BenchError {
    if let method::CONNECTION_CLOSE | method::CHANNEL_CLOSE = found
        && let (Ok(code), Ok(text)) = (arguments.u16(), arguments.short())
    {
        return BenchError::Broken(format!("the server closed: {code} {}", String::from_utf8_lossy(text)));
    }
    odd(&format!("method {found:?}"))
}

/// The arguments of connection.close that say that all is well.
fn put_close(out: &mut Vec<u8>) {
    put_u16(out, 200);
    put_short(out, "");
    put_u32(out, 0);
}

/// One connection's channel.
#[derive(Debug)]
pub(super) struct Channel {
    queue: String,
    /// What stands in front of a payload: basic.publish, the content header, the head of the body.
    head: Vec<u8>,
    /// The slots of messages that were not confirmed, in the order of their delivery tags; `None` for those that were
    /// before others.
    unconfirmed: VecDeque<Option<u32>>,
    /// The delivery tag of the first of them.
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
        // The payload and the end of its frame are different each time.
        head.truncate(head.len() - payload_bytes - 1);
        Self { queue: queue.to_owned(), head, unconfirmed: VecDeque::new(), first_tag: 1 }
    }

    /// The server has spoken of the message with this delivery tag, or of all up to it.
    fn confirmed(
        &mut self,
        tag: u64,
        is_multiple: bool,
        mut each: impl FnMut(u32),
    ) -> Result<(), BenchError> {
        let position = tag.checked_sub(self.first_tag).filter(|at| *at < self.unconfirmed.len() as u64);
        let last = position.ok_or_else(|| odd("a confirmation of nothing"))? as usize;
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

impl Talk for Channel {
    fn begin(&mut self, out: &mut Vec<u8>) {
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
    fn take(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut heard: impl FnMut(Heard<'_>),
    ) -> Result<usize, BenchError> {
        let Some(first) = Frame::parse(bytes)? else { return Ok(0) };
        if first.kind == FRAME_HEARTBEAT {
            return Ok(first.len);
        }
        let mut arguments = Arguments(first.payload);
        match arguments.method()? {
            _ if first.kind != FRAME_METHOD => return Err(odd("content of no method")),
            method::BASIC_DELIVER => {
                arguments.short()?;
                let tag = arguments.u64()?;
                let Some((payload, len)) = content(&bytes[first.len..])? else { return Ok(0) };
                append_ack(out, tag);
                heard(Heard::Delivered(payload));
                return Ok(first.len + len);
            }
            method::BASIC_ACK => {
                let (tag, bits) = (arguments.u64()?, arguments.u8()?);
                self.confirmed(tag, bits & 1 == 1, |slot| heard(Heard::Taken(slot)))?;
            }
            method::BASIC_NACK => {
                let (tag, bits) = (arguments.u64()?, arguments.u8()?);
                self.confirmed(tag, bits & 1 == 1, |slot| heard(Heard::Refused(slot, "basic.nack".into())))?;
            }
            method::BASIC_CONSUME_OK => {}
            method::CONNECTION_CLOSE_OK => heard(Heard::Left),
            other => return Err(unexpected(other, arguments)),
        }
        Ok(first.len)
    }

    fn leave(&mut self, out: &mut Vec<u8>) {
        method(out, 0, method::CONNECTION_CLOSE, put_close);
    }
}

/// The payload of a message whose frames begin `bytes`, and the length of those frames; `None` if the rest has not
/// come.
#[inline]
fn content(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, BenchError> {
    let Some(header) = Frame::parse(bytes)? else { return Ok(None) };
    let mut arguments = Arguments(header.payload);
    arguments.u32()?;
    let size = arguments.u64()?;
    let Some(body) = Frame::parse(&bytes[header.len..])? else { return Ok(None) };
    if (header.kind, body.kind, body.payload.len() as u64) != (FRAME_HEADER, FRAME_BODY, size) {
        return Err(odd("a message in pieces"));
    }
    Ok(Some((body.payload, header.len + body.len)))
}

/// Appends basic.ack of one message: what `method` makes of it, in one piece.
#[inline]
fn append_ack(out: &mut Vec<u8>, tag: u64) {
    let mut bytes = [1, 0, CHANNEL as u8, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xCE];
    bytes[11..19].copy_from_slice(&tag.to_be_bytes());
    out.extend_from_slice(&bytes);
}

// Payloads go into one frame.
const _: () = assert!(super::options::PAYLOAD_BYTES_MAX + FRAME_BYTES_MORE <= FRAME_BYTES_MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::filler;

    const STAMP: Stamp = Stamp { due_ns: 5, stream: 6, sequence: 7 };

    fn heard(channel: &mut Channel, bytes: &[u8]) -> (usize, Vec<String>, Vec<u8>) {
        let (mut words, mut out) = (Vec::new(), Vec::new());
        let taken = channel.take(bytes, &mut out, |heard| words.push(format!("{heard:?}"))).unwrap();
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
    fn a_publish_is_three_frames() {
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
    fn confirmations_come_in_any_order_and_many_at_once() {
        let filler = filler(16);
        let mut channel = Channel::new("jobs", 16);
        for slot in [4, 5, 6, 7] {
            channel.publish(slot, &STAMP, &filler, &mut Vec::new());
        }
        assert_eq!(heard(&mut channel, &ack(2, 0)).1, ["Taken(5)"]);
        assert_eq!(heard(&mut channel, &ack(3, 1)).1, ["Taken(4)", "Taken(6)"]);
        assert!(channel.take(&ack(3, 0), &mut Vec::new(), |_| ()).is_err(), "it was confirmed before");
        channel.publish(4, &STAMP, &filler, &mut Vec::new());
        assert_eq!(heard(&mut channel, &ack(5, 1)).1, ["Taken(7)", "Taken(4)"]);
    }

    #[test]
    fn a_delivery_is_acknowledged_by_its_tag() {
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
            assert_eq!(heard(&mut channel, &bytes[..length]), (0, vec![], vec![]), "{length}");
        }
        let (taken, words, out) = heard(&mut channel, &bytes);
        assert_eq!((taken, words.len()), (bytes.len(), 1));
        assert_eq!(out, ack(99, 0));
    }

    #[test]
    fn a_server_that_closes_says_why() {
        let mut bytes = Vec::new();
        method(&mut bytes, CHANNEL, method::CHANNEL_CLOSE, |out| {
            put_u16(out, 404);
            put_short(out, "NOT_FOUND");
            put_u32(out, 0);
        });
        let error = Channel::new("q", 16).take(&bytes, &mut Vec::new(), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "the server closed: 404 NOT_FOUND");
    }
}
