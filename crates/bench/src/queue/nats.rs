//! Work queues of NATS JetStream: the NATS text protocol, and requests to `$JS.API`.
//!
//! The stream has file storage and the retention `workqueue`, which removes a message once it is acknowledged. All
//! clients pull from one durable consumer. Each client requests up to `prefetch` messages, and requests more when half
//! of them have arrived. An acknowledgement is `+ACK`, to which JetStream does not respond.

use std::io::Write;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::blocking::BlockingConnection;
use super::options::QueueOptions;
use super::protocol::{Protocol, Role, Server, ServerEvent};
use crate::error::BenchError;
use crate::wire::{STAMP_BYTES, Stamp};

/// Name of the shared durable consumer.
const CONSUMER: &str = "workers";
/// Minimum of `max_ack_pending`; raised if the clients prefetch more in total.
const ACK_PENDING_MIN: u64 = 1_000;
/// Redelivery timeout of unacknowledged messages, and expiry of pull requests.
const TIMEOUT_NS: u64 = 600_000_000_000;
/// Id of the only subscription of a connection.
const SID: &[u8] = b"1";

/// A NATS server with JetStream.
#[derive(Debug)]
pub(super) struct JetStream<'a> {
    pub(super) options: &'a QueueOptions,
    pub(super) address: SocketAddr,
    /// Name of the stream, and subject of its messages.
    pub(super) queue: &'a str,
}

impl JetStream<'_> {
    /// Sends a request to the JetStream API and returns the response.
    fn api_request(&self, api: &str, body: &str) -> Result<Value, BenchError> {
        let inbox = format!("_INBOX.{}.api", self.queue);
        let mut conn = connect(self.address)?;
        let request = format!("SUB {inbox} 1\r\nPUB $JS.API.{api} {inbox} {}\r\n{body}\r\n", body.len());
        conn.send(request.as_bytes())?;
        let response = loop {
            let payload = conn.receive(|bytes| {
                let Some((taken, operation)) = Operation::parse(bytes)? else { return Ok(None) };
                Ok(Some((taken, operation.payload().map(<[u8]>::to_vec))))
            })?;
            if let Some(payload) = payload {
                break payload;
            }
        };
        let response: Value = serde_json::from_slice(&response)
            .map_err(|_| BenchError::Open(format!("no valid response to {api}: is JetStream enabled?")))?;
        match response.pointer("/error/description") {
            Some(error) => Err(BenchError::Broken(format!("{api}: {error}"))),
            None => Ok(response),
        }
    }
}

impl Server for JetStream<'_> {
    type Protocol = Client;

    fn declare(&mut self) -> Result<(), BenchError> {
        let queue = self.queue;
        let stream = json!({
            "name": queue,
            "subjects": [queue],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 1,
        });
        self.api_request(&format!("STREAM.CREATE.{queue}"), &stream.to_string())?;
        let prefetched = u64::from(self.options.prefetch) * u64::from(self.options.consumers);
        let consumer = json!({
            "stream_name": queue,
            "config": {
                "durable_name": CONSUMER,
                "ack_policy": "explicit",
                "ack_wait": TIMEOUT_NS,
                "max_ack_pending": prefetched.max(ACK_PENDING_MIN),
            },
        });
        self.api_request(&format!("CONSUMER.DURABLE.CREATE.{queue}.{CONSUMER}"), &consumer.to_string())
            .map(drop)
    }

    fn open(&self, role: Role, number: u32) -> Result<(BlockingConnection, Client), BenchError> {
        let queue = self.queue;
        let mut conn = connect(self.address)?;
        let inbox = match role {
            Role::Publisher => format!("_INBOX.{queue}.p{number}"),
            Role::Consumer => format!("_INBOX.{queue}.c{number}"),
        };
        let (subject, slots) = match role {
            Role::Publisher => (format!("{inbox}.*"), self.options.in_flight),
            Role::Consumer => (inbox.clone(), 0),
        };
        conn.send(format!("SUB {subject} 1\r\n").as_bytes())?;
        let bytes = self.options.payload_bytes;
        let publishes = (0..slots).map(|slot| format!("PUB {queue} {inbox}.{slot} {bytes}\r\n").into_bytes());
        let client = Client {
            publishes: publishes.collect(),
            next: format!("PUB $JS.API.CONSUMER.MSG.NEXT.{queue}.{CONSUMER} {inbox}"),
            prefetch: self.options.prefetch.into(),
            requested: 0,
        };
        Ok((conn, client))
    }

    fn depth(&mut self) -> Result<Option<u64>, BenchError> {
        let info = self.api_request(&format!("STREAM.INFO.{}", self.queue), "")?;
        let messages = info.pointer("/state/messages").and_then(Value::as_u64);
        messages.map(Some).ok_or_else(|| malformed("STREAM.INFO without a message count"))
    }
}

/// Connects, and waits for the PONG that shows that the server is ready.
fn connect(address: SocketAddr) -> Result<BlockingConnection, BenchError> {
    let mut conn = BlockingConnection::open(address)?;
    let options =
        json!({"verbose": false, "pedantic": false, "headers": true, "no_responders": true, "protocol": 1});
    conn.send(format!("CONNECT {options}\r\nPING\r\n").as_bytes())?;
    loop {
        let is_ready = conn.receive(|bytes| {
            let Some((taken, operation)) = Operation::parse(bytes)? else { return Ok(None) };
            Ok(Some((taken, matches!(operation, Operation::Pong))))
        })?;
        if is_ready {
            return Ok(conn);
        }
    }
}

/// Protocol state of one client.
#[derive(Debug)]
pub(super) struct Client {
    /// PUB line per slot.
    publishes: Vec<Vec<u8>>,
    /// Start of the PUB line of a pull request.
    next: String,
    prefetch: u32,
    /// Requested messages that have not arrived.
    requested: u32,
}

impl Client {
    /// Requests messages up to the prefetch limit.
    fn pull(&mut self, out: &mut Vec<u8>) {
        let batch = self.prefetch - self.requested;
        let body = format!("{{\"batch\":{batch},\"expires\":{TIMEOUT_NS}}}");
        write!(out, "{} {}\r\n{body}\r\n", self.next, body.len()).expect("writing to a vector cannot fail");
        self.requested = self.prefetch;
    }
}

impl Protocol for Client {
    fn start_consuming(&mut self, out: &mut Vec<u8>) {
        self.pull(out);
    }

    #[inline]
    fn publish(&mut self, slot: u32, stamp: &Stamp, filler: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&self.publishes[slot as usize]);
        stamp.append(out);
        out.extend_from_slice(&filler[STAMP_BYTES..]);
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn handle_input(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut on_event: impl FnMut(ServerEvent<'_>),
    ) -> Result<usize, BenchError> {
        let Some((taken, operation)) = Operation::parse(bytes)? else { return Ok(0) };
        match operation {
            Operation::Message(Message { reply: Some(reply), payload, .. }) => {
                out.extend_from_slice(b"PUB ");
                out.extend_from_slice(reply);
                out.extend_from_slice(b" 4\r\n+ACK\r\n");
                self.requested = self.requested.saturating_sub(1);
                if self.requested <= self.prefetch / 2 {
                    self.pull(out);
                }
                on_event(ServerEvent::Delivered(payload));
            }
            Operation::Message(message) if self.publishes.is_empty() => {
                // A status message: the pull request ended.
                return Err(malformed(&String::from_utf8_lossy(message.headers)));
            }
            Operation::Message(message) => {
                let slot =
                    message.last_token().ok_or_else(|| malformed("an acknowledgement without a slot"))?;
                if let Some(error) = message.error() {
                    on_event(ServerEvent::Refused(slot, error));
                } else {
                    on_event(ServerEvent::Acknowledged(slot));
                }
            }
            Operation::Ping => out.extend_from_slice(b"PONG\r\n"),
            // Only `close` sends a PING.
            Operation::Pong => on_event(ServerEvent::Closed),
            Operation::Other => {}
        }
        Ok(taken)
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"PING\r\n");
    }
}

/// A server operation.
#[derive(Debug, PartialEq, Eq)]
enum Operation<'a> {
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

impl<'a> Operation<'a> {
    /// Parses the first operation of `bytes`, and returns it with its length; `None` if incomplete.
    #[inline]
    fn parse(bytes: &'a [u8]) -> Result<Option<(usize, Self)>, BenchError> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
        let line = bytes[..end].strip_suffix(b"\r").ok_or_else(|| malformed("a line without CR LF"))?;
        let mut words = line.split(|byte| *byte == b' ');
        match words.next() {
            Some(b"MSG") => Message::parse(words, 0, &bytes[end + 1..]),
            Some(b"HMSG") => Message::parse(words, 1, &bytes[end + 1..]),
            Some(b"PING") => Ok(Some((0, Self::Ping))),
            Some(b"PONG") => Ok(Some((0, Self::Pong))),
            Some(b"INFO" | b"+OK") => Ok(Some((0, Self::Other))),
            _ => Err(malformed(&String::from_utf8_lossy(line))),
        }
        .map(|operation| operation.map(|(body, operation)| (end + 1 + body, operation)))
    }

    fn payload(&self) -> Option<&'a [u8]> {
        match self {
            Self::Message(message) => Some(message.payload),
            _ => None,
        }
    }
}

impl<'a> Message<'a> {
    /// Parses the arguments of MSG, or of HMSG with one more length, and the body after the line. Returns the length of
    /// the body.
    #[inline]
    fn parse(
        words: impl Iterator<Item = &'a [u8]>,
        lengths_before: usize,
        body: &'a [u8],
    ) -> Result<Option<(usize, Operation<'a>)>, BenchError> {
        let mut found = [&b""[..]; 5];
        let mut count = 0;
        for word in words.take(found.len()) {
            found[count] = word;
            count += 1;
        }
        // Subject, subscription id, optional reply subject, lengths.
        let (subject, reply, lengths) = match count.checked_sub(lengths_before) {
            Some(3) => (found[0], None, &found[2..count]),
            Some(4) => (found[0], Some(found[2]), &found[3..count]),
            _ => return Err(malformed("a message with unexpected arguments")),
        };
        if found[1] != SID {
            return Err(malformed("a message for an unknown subscription"));
        }
        let number = |word: &[u8]| decimal(word).ok_or_else(|| malformed("an invalid length"));
        let total = number(lengths[lengths_before])? as usize;
        let headers = if lengths_before == 1 { number(lengths[0])? as usize } else { 0 };
        if headers > total {
            return Err(malformed("headers longer than the message"));
        }
        if body.len() < total + 2 {
            return Ok(None);
        }
        let (headers, payload) = body[..total].split_at(headers);
        Ok(Some((total + 2, Operation::Message(Self { subject, reply, headers, payload }))))
    }

    /// Number in the last token of the subject.
    #[inline]
    fn last_token(&self) -> Option<u32> {
        let token = self.subject.rsplit(|byte| *byte == b'.').next()?;
        decimal(token).and_then(|number| u32::try_from(number).ok())
    }

    /// Reason if a publish was refused.
    #[inline]
    fn error(&self) -> Option<String> {
        if !self.headers.is_empty() {
            // No stream listens on the subject.
            return Some(String::from_utf8_lossy(self.headers).trim().to_owned());
        }
        // The error field comes first if present, so successful responses need no JSON parsing.
        if self.payload.starts_with(b"{\"error\"") || !self.payload.starts_with(b"{\"stream\"") {
            return Some(String::from_utf8_lossy(self.payload).into_owned());
        }
        None
    }
}

/// Parses a decimal number of at most 18 digits.
#[inline]
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits
        .iter()
        .try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')))
}

fn malformed(what: &str) -> BenchError {
    BenchError::Broken(format!("the server sent: {}", what.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(slots: u32, prefetch: u32) -> Client {
        let publishes = (0..slots).map(|slot| format!("PUB q i.{slot} 16\r\n").into_bytes()).collect();
        Client { publishes, next: "PUB n i".into(), prefetch, requested: 0 }
    }

    /// Handles all of `bytes`. Returns the events as text, and the output.
    fn feed(client: &mut Client, mut bytes: &[u8]) -> (Vec<String>, String) {
        let (mut words, mut out) = (Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let taken =
                client.handle_input(bytes, &mut out, |event| words.push(format!("{event:?}"))).unwrap();
            assert!(taken > 0, "incomplete input");
            bytes = &bytes[taken..];
        }
        (words, String::from_utf8(out).unwrap())
    }

    #[test]
    fn acknowledgements_and_refusals_carry_the_slot() {
        let mut client = client(12, 0);
        let (words, out) = feed(
            &mut client,
            b"MSG i.3 1 26\r\n{\"stream\":\"q\", \"seq\":1001}\r\nPING\r\n\
              MSG i.11 1 30\r\n{\"error\":{\"code\":503},\"seq\":0}\r\n\
              HMSG i.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPONG\r\n",
        );
        assert_eq!(words[0], "Acknowledged(3)");
        assert!(words[1].starts_with("Refused(11,") && words[1].contains("503"), "{words:?}");
        assert!(words[2].starts_with("Refused(0,") && words[2].contains("503"), "{words:?}");
        assert_eq!((words[3].as_str(), out.as_str()), ("Closed", "PONG\r\n"));
    }

    #[test]
    fn pulls_more_after_half_of_the_messages() {
        let mut client = client(0, 2);
        let mut out = Vec::new();
        client.start_consuming(&mut out);
        assert!(String::from_utf8(out).unwrap().contains("\"batch\":2"));
        let (words, out) = feed(&mut client, b"MSG q 1 $JS.ACK.1 2\r\nab\r\n");
        assert_eq!(words, ["Delivered([97, 98])"]);
        assert!(out.starts_with("PUB $JS.ACK.1 4\r\n+ACK\r\n") && out.contains("\"batch\":1"), "{out}");
    }

    #[test]
    fn incomplete_operations_parse_as_none() {
        let whole = b"HMSG q 1 r 4 6\r\nab\r\ncd\r\n";
        for length in 0..whole.len() {
            assert_eq!(Operation::parse(&whole[..length]).unwrap(), None, "{length}");
        }
        let (taken, operation) = Operation::parse(whole).unwrap().unwrap();
        let message = Message { subject: b"q", reply: Some(b"r"), headers: b"ab\r\n", payload: b"cd" };
        assert_eq!((taken, operation), (whole.len(), Operation::Message(message)));
    }

    #[test]
    fn rejects_malformed_operations() {
        for bytes in [
            &b"-ERR 'Slow Consumer'\r\n"[..],
            b"MSG q 2 1\r\na\r\n",
            b"MSG q\r\n",
            b"HMSG q 1 9 3\r\nabc\r\n",
        ] {
            assert!(Operation::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
