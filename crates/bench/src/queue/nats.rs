//! Work queues of NATS JetStream: its text protocol, and requests to `$JS.API`.
//!
//! The stream has the retention `workqueue`: a message is gone once it is acknowledged. It is in files. One durable
//! consumer is shared by all who pull; each has asked for up to `prefetch` messages, and asks for more when half of
//! them have come. An acknowledgement is `+ACK`, which JetStream does not answer.

use std::io::Write;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::dialogue::Dialogue;
use super::options::QueueOptions;
use super::talk::{Heard, Role, Server, Talk};
use crate::error::BenchError;
use crate::wire::{STAMP_BYTES, Stamp};

/// The consumer that all pull from.
const CONSUMER: &str = "workers";
/// Deliveries that may be unacknowledged by default, over all who pull; more are allowed if they ask for more.
const ACK_PENDING_MIN: u64 = 1_000;
/// How long a message is waited for before it is delivered again, and a request for messages is good.
const PATIENCE_NS: u64 = 600_000_000_000;
/// Where a subscription of ours has its number.
const SID: &[u8] = b"1";

/// A server with JetStream.
#[derive(Debug)]
pub(super) struct JetStream<'a> {
    pub(super) options: &'a QueueOptions,
    pub(super) address: SocketAddr,
    /// The stream, and the subject of its messages.
    pub(super) queue: &'a str,
}

impl JetStream<'_> {
    /// Sends a request to the API and waits for its answer.
    fn ask(&self, api: &str, body: &str) -> Result<Value, BenchError> {
        let inbox = format!("_INBOX.{}.api", self.queue);
        let mut dialogue = connect(self.address)?;
        let request = format!("SUB {inbox} 1\r\nPUB $JS.API.{api} {inbox} {}\r\n{body}\r\n", body.len());
        dialogue.say(request.as_bytes())?;
        let answer = loop {
            let said = dialogue.hear(|bytes| {
                let Some((taken, said)) = Said::parse(bytes)? else { return Ok(None) };
                Ok(Some((taken, said.payload().map(<[u8]>::to_vec))))
            })?;
            if let Some(payload) = said {
                break payload;
            }
        };
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|_| BenchError::Open(format!("JetStream does not answer {api}: is it enabled?")))?;
        match answer.pointer("/error/description") {
            Some(error) => Err(BenchError::Broken(format!("{api}: {error}"))),
            None => Ok(answer),
        }
    }
}

impl Server for JetStream<'_> {
    type Talk = Client;

    fn declare(&mut self) -> Result<(), BenchError> {
        let queue = self.queue;
        let stream = json!({
            "name": queue,
            "subjects": [queue],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 1,
        });
        self.ask(&format!("STREAM.CREATE.{queue}"), &stream.to_string())?;
        let asked = u64::from(self.options.prefetch) * u64::from(self.options.consumers);
        let consumer = json!({
            "stream_name": queue,
            "config": {
                "durable_name": CONSUMER,
                "ack_policy": "explicit",
                "ack_wait": PATIENCE_NS,
                "max_ack_pending": asked.max(ACK_PENDING_MIN),
            },
        });
        self.ask(&format!("CONSUMER.DURABLE.CREATE.{queue}.{CONSUMER}"), &consumer.to_string()).map(drop)
    }

    fn open(&self, role: Role, number: u32) -> Result<(Dialogue, Client), BenchError> {
        let queue = self.queue;
        let mut dialogue = connect(self.address)?;
        let inbox = match role {
            Role::Publisher => format!("_INBOX.{queue}.p{number}"),
            Role::Consumer => format!("_INBOX.{queue}.c{number}"),
        };
        let (subject, slots) = match role {
            Role::Publisher => (format!("{inbox}.*"), self.options.in_flight),
            Role::Consumer => (inbox.clone(), 0),
        };
        dialogue.say(format!("SUB {subject} 1\r\n").as_bytes())?;
        let bytes = self.options.payload_bytes;
        let publishes = (0..slots).map(|slot| format!("PUB {queue} {inbox}.{slot} {bytes}\r\n").into_bytes());
        let client = Client {
            publishes: publishes.collect(),
            next: format!("PUB $JS.API.CONSUMER.MSG.NEXT.{queue}.{CONSUMER} {inbox}"),
            prefetch: self.options.prefetch.into(),
            asked: 0,
        };
        Ok((dialogue, client))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        let info = self.ask(&format!("STREAM.INFO.{}", self.queue), "")?;
        let messages = info.pointer("/state/messages").and_then(Value::as_u64);
        messages.map(Some).ok_or_else(|| odd("STREAM.INFO without a count"))
    }
}

/// Connects, and waits for the server's word that it is ready.
fn connect(address: SocketAddr) -> Result<Dialogue, BenchError> {
    let mut dialogue = Dialogue::open(address)?;
    let options =
        json!({"verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1});
    dialogue.say(format!("CONNECT {options}\r\nPING\r\n").as_bytes())?;
    loop {
        let is_ready = dialogue.hear(|bytes| {
            let Some((taken, said)) = Said::parse(bytes)? else { return Ok(None) };
            Ok(Some((taken, matches!(said, Said::Pong))))
        })?;
        if is_ready {
            return Ok(dialogue);
        }
    }
}

/// One client.
#[derive(Debug)]
pub(super) struct Client {
    /// For each slot, the line in front of a payload.
    publishes: Vec<Vec<u8>>,
    /// The beginning of a request for messages.
    next: String,
    prefetch: u32,
    /// Messages asked for that have not come.
    asked: u32,
}

impl Client {
    /// Asks for as many messages as it may have.
    fn ask(&mut self, out: &mut Vec<u8>) {
        let batch = self.prefetch - self.asked;
        let body = format!("{{\"batch\":{batch},\"expires\":{PATIENCE_NS}}}");
        write!(out, "{} {}\r\n{body}\r\n", self.next, body.len()).expect("a vector takes all");
        self.asked = self.prefetch;
    }
}

impl Talk for Client {
    fn begin(&mut self, out: &mut Vec<u8>) {
        self.ask(out);
    }

    #[inline]
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.publishes[slot as usize]);
        stamp.append(out);
        out.extend_from_slice(&filler[STAMP_BYTES..]);
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn take(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut heard: impl FnMut(Heard<'_>),
    ) -> Result<usize, BenchError> {
        let Some((taken, said)) = Said::parse(bytes)? else { return Ok(0) };
        match said {
            Said::Message(Message { reply: Some(reply), payload, .. }) => {
                out.extend_from_slice(b"PUB ");
                out.extend_from_slice(reply);
                out.extend_from_slice(b" 4\r\n+ACK\r\n");
                self.asked = self.asked.saturating_sub(1);
                if self.asked <= self.prefetch / 2 {
                    self.ask(out);
                }
                heard(Heard::Delivered(payload));
            }
            Said::Message(message) if self.publishes.is_empty() => {
                // A status: the request for messages came to an end.
                return Err(odd(&String::from_utf8_lossy(message.headers)));
            }
            Said::Message(message) => {
                let slot = message.last_token().ok_or_else(|| odd("an answer to no publish"))?;
                if let Some(error) = message.error() {
                    heard(Heard::Refused(slot, error));
                } else {
                    heard(Heard::Taken(slot));
                }
            }
            Said::Ping => out.extend_from_slice(b"PONG\r\n"),
            // Nobody else asks for one but `leave`.
            Said::Pong => heard(Heard::Left),
            Said::Other => {}
        }
        Ok(taken)
    }

    fn leave(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PING\r\n");
    }
}

/// What a server says.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Message(Message<'a>),
    Ping,
    Pong,
    Other,
}

/// MSG or HMSG.
#[derive(Debug, PartialEq, Eq)]
struct Message<'a> {
    subject: &'a [u8],
    reply: Option<&'a [u8]>,
    headers: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Said<'a> {
    /// What is said first in `bytes`, and how long it is; `None` if the rest has not come.
    #[inline]
    fn parse(bytes: &'a [u8]) -> Result<Option<(usize, Self)>, BenchError> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = bytes[..end].strip_suffix(b"\r").ok_or_else(|| odd("a line without an end"))?;
        let mut words = line.split(|byte| *byte == b' ');
        match words.next() {
            Some(b"MSG") => Message::parse(words, 0, &bytes[end + 1..]),
            Some(b"HMSG") => Message::parse(words, 1, &bytes[end + 1..]),
            Some(b"PING") => Ok(Some((0, Self::Ping))),
            Some(b"PONG") => Ok(Some((0, Self::Pong))),
            Some(b"INFO" | b"+OK") => Ok(Some((0, Self::Other))),
            _ => Err(odd(&String::from_utf8_lossy(line))),
        }
        .map(|said| said.map(|(body, said)| (end + 1 + body, said)))
    }

    /// The payload, if it is a message.
    fn payload(&self) -> Option<&'a [u8]> {
        match self {
            Self::Message(message) => Some(message.payload),
            _ => None,
        }
    }
}

impl<'a> Message<'a> {
    /// The words behind MSG, or HMSG with one length more, and what is behind the line. How long the body is.
    #[inline]
    fn parse(
        words: impl Iterator<Item = &'a [u8]>,
        lengths_before: usize,
        body: &'a [u8],
    ) -> Result<Option<(usize, Said<'a>)>, BenchError> {
        let mut found = [&b""[..]; 5];
        let mut count = 0;
        for word in words.take(found.len()) {
            found[count] = word;
            count += 1;
        }
        // Subject and number of the subscription, the reply if there is one, the lengths.
        let (subject, reply, lengths) = match count.checked_sub(lengths_before) {
            Some(3) => (found[0], None, &found[2..count]),
            Some(4) => (found[0], Some(found[2]), &found[3..count]),
            _ => return Err(odd("a message of an unknown form")),
        };
        if found[1] != SID {
            return Err(odd("a message of no subscription"));
        }
        let number = |word: &[u8]| decimal(word).ok_or_else(|| odd("a length that is no number"));
        let total = number(lengths[lengths_before])? as usize;
        let headers = if lengths_before == 1 { number(lengths[0])? as usize } else { 0 };
        if headers > total {
            return Err(odd("headers longer than their message"));
        }
        if body.len() < total + 2 {
            return Ok(None);
        }
        let (headers, payload) = body[..total].split_at(headers);
        Ok(Some((total + 2, Said::Message(Self { subject, reply, headers, payload }))))
    }

    /// The number at the end of its subject.
    #[inline]
    fn last_token(&self) -> Option<u32> {
        let token = self.subject.rsplit(|byte| *byte == b'.').next()?;
        decimal(token).and_then(|number| u32::try_from(number).ok())
    }

    /// Why a publish was refused, if it was.
    #[inline]
    fn error(&self) -> Option<String> {
        if !self.headers.is_empty() {
            // Nobody listens to the subject.
            return Some(String::from_utf8_lossy(self.headers).trim().to_owned());
        }
        // The field comes first if it is there: the answer is not parsed for those that are taken.
        if self.payload.starts_with(b"{\"error\"") || !self.payload.starts_with(b"{\"stream\"") {
            return Some(String::from_utf8_lossy(self.payload).into_owned());
        }
        None
    }
}

/// A number in decimal digits.
#[inline]
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

fn odd(what: &str) -> BenchError {
    BenchError::Broken(format!("the server said: {}", what.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(slots: u32, prefetch: u32) -> Client {
        let publishes = (0..slots).map(|slot| format!("PUB q i.{slot} 16\r\n").into_bytes()).collect();
        Client { publishes, next: "PUB n i".into(), prefetch, asked: 0 }
    }

    /// All that is heard of `bytes`, in words, and what is answered.
    fn talk(client: &mut Client, mut bytes: &[u8]) -> (Vec<String>, String) {
        let (mut words, mut out) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let taken = client.take(bytes, &mut out, |heard| words.push(format!("{heard:?}"))).unwrap();
            assert!(taken > 0, "something is missing");
            bytes = &bytes[taken..];
        }
        (words, String::from_utf8(out).unwrap())
    }

    #[test]
    fn publishes_are_taken_or_refused_by_their_slot() {
        let mut client = client(12, 0);
        let (words, out) = talk(
            &mut client,
            b"MSG i.3 1 26\r\n{\"stream\":\"q\", \"seq\":1001}\r\nPING\r\n\
              MSG i.11 1 30\r\n{\"error\":{\"code\":503},\"seq\":0}\r\n\
              HMSG i.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n",
        );
        assert_eq!(words[0], "Taken(3)");
        assert!(words[1].starts_with("Refused(11,") && words[1].contains("503"), "{words:?}");
        assert!(words[2].starts_with("Refused(0,") && words[2].contains("503"), "{words:?}");
        assert_eq!((words[3].as_str(), out.as_str()), ("Left", "PONG\r\n"));
    }

    #[test]
    fn half_of_the_messages_bring_a_request_for_more() {
        let mut client = client(0, 2);
        let mut out = Vec::new();
        client.begin(&mut out);
        assert!(String::from_utf8(out).unwrap().contains("\"batch\":2"));
        let (words, out) = talk(&mut client, b"MSG q 1 $JS.ACK.1 2\r\nab\r\n");
        assert_eq!(words, ["Delivered([97, 98])"]);
        assert!(out.starts_with("PUB $JS.ACK.1 4\r\n+ACK\r\n") && out.contains("\"batch\":1"), "{out}");
    }

    #[test]
    fn what_has_not_come_is_waited_for() {
        let whole = b"HMSG q 1 r 4 6\r\nab\r\ncd\r\n";
        for length in 0..whole.len() {
            assert_eq!(Said::parse(&whole[..length]).unwrap(), None, "{length}");
        }
        let (taken, said) = Said::parse(whole).unwrap().unwrap();
        let message = Message { subject: b"q", reply: Some(b"r"), headers: b"ab\r\n", payload: b"cd" };
        assert_eq!((taken, said), (whole.len(), Said::Message(message)));
    }

    #[test]
    fn what_makes_no_sense_ends_the_run() {
        for bytes in [
            &b"-ERR 'Slow Consumer'\r\n"[..],
            b"MSG q 2 1\r\na\r\n",
            b"MSG q\r\n",
            b"HMSG q 1 9 3\r\nabc\r\n",
        ] {
            assert!(Said::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
