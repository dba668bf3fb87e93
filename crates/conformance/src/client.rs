//! A connection under the test's control: sends anything, reads packets with a deadline.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::packet::{
    self, Ack, Answer, ConnAck, Disconnect, Message, PUBACK, PUBCOMP, PUBREC, PUBREL, Packet,
};
use crate::wire::{self, Connect, Publish, Subscribe, Unsubscribe, Wire};
use crate::{Broker, Version, unique};

/// How long anything that must happen may take.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What reading from a connection can bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A packet.
    Packet(Packet),
    /// The server closed the connection.
    Closed,
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    version: Version,
    id: String,
    input: Vec<u8>,
    /// Packets that came while another was waited for.
    inbox: VecDeque<Packet>,
    next_id: u16,
    packet_len_max: usize,
}

impl Client {
    /// A TCP connection on which nothing was sent yet.
    #[track_caller]
    pub fn open(broker: &Broker, version: Version) -> Self {
        let stream = TcpStream::connect(broker.addr()).expect("the broker accepts connections");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        let (input, inbox) = (Vec::new(), VecDeque::new());
        Self { stream, version, id: String::new(), input, inbox, next_id: 1000, packet_len_max: usize::MAX }
    }

    /// Connects with clean start and a unique client identifier.
    #[track_caller]
    pub fn connect(broker: &Broker, version: Version) -> Self {
        let client_id = unique("c");
        let mut client = Self::connect_with(broker, version, &Connect::new(&client_id)).0;
        client.id = client_id;
        client
    }

    /// Connects with `connect`, which must be accepted.
    #[track_caller]
    pub fn connect_with(broker: &Broker, version: Version, connect: &Connect) -> (Self, ConnAck) {
        let (client, connack) = Self::try_connect(broker, version, connect);
        assert_eq!(connack.reason, 0, "CONNECT was refused");
        (client, connack)
    }

    /// Sends `connect`, and returns what the server says to it.
    #[track_caller]
    pub fn try_connect(broker: &Broker, version: Version, connect: &Connect) -> (Self, ConnAck) {
        let mut client = Self::open(broker, version);
        client.send(connect);
        match client.recv() {
            Packet::ConnAck(connack) => (client, connack),
            other => panic!("CONNACK expected, came {other:?}"),
        }
    }

    /// Sends `connect`, which must not be accepted: the server closes, and may say why in a CONNACK first.
    /// Returns the code of that CONNACK.
    #[track_caller]
    pub fn refused(broker: &Broker, version: Version, connect: &(impl Wire + ?Sized)) -> Option<u8> {
        let mut client = Self::open(broker, version);
        client.send(connect);
        let code = match client.event() {
            Event::Closed => return None,
            Event::Packet(Packet::ConnAck(connack)) => connack.reason,
            other @ Event::Packet(_) => {
                panic!("MQTT {version:?}: CONNACK or a close expected, came {other:?}")
            }
        };
        assert_ne!(code, 0, "MQTT {version:?}: CONNECT was accepted");
        client.expect_closed();
        Some(code)
    }

    /// Whether the broker accepts a CONNECT on this connection, which nothing was sent on yet. It may close it instead.
    pub fn answers_connect(mut self) -> bool {
        let is_sent = self.try_send(&Connect::new(unique("c"))).is_ok();
        is_sent && matches!(self.event(), Event::Packet(Packet::ConnAck(connack)) if connack.reason == 0)
    }

    /// The client identifier, where [`Client::connect`] made it.
    pub fn client_id(&self) -> &str {
        &self.id
    }

    /// From now on any larger packet from the server fails the test (3.1.2.11.4).
    pub fn limit_packets(&mut self, bytes: usize) {
        self.packet_len_max = bytes;
    }

    /// The socket, for tests that read or write in their own way.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes or a packet.
    #[track_caller]
    pub fn send(&mut self, what: &(impl Wire + ?Sized)) {
        self.try_send(what).expect("the connection takes what is sent");
    }

    /// Sends bytes or a packet on a connection that the server may have closed.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn try_send(&mut self, what: &(impl Wire + ?Sized)) -> std::io::Result<()> {
        self.stream.write_all(&what.bytes(self.version))
    }

    /// Ends the sending half of the connection, as a client that crashes would.
    #[track_caller]
    pub fn shut(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("the connection is open");
    }

    /// Closes the connection without DISCONNECT and waits for the server to close its side, so that what
    /// the server does at a lost connection has begun.
    #[track_caller]
    pub fn abort(mut self) {
        self.shut();
        while let Event::Packet(_) = self.event() {}
    }

    /// Sends a normal DISCONNECT and waits for the server to close.
    #[track_caller]
    pub fn disconnect(self) {
        self.disconnect_with(&wire::DISCONNECT);
    }

    /// Sends a DISCONNECT and waits for the server to close.
    #[track_caller]
    pub fn disconnect_with(mut self, disconnect: &[u8]) {
        self.send(disconnect);
        while let Event::Packet(_) = self.event() {}
    }

    /// The next packet, or the close, by the deadline.
    #[track_caller]
    pub fn event(&mut self) -> Event {
        self.event_within(DEADLINE)
            .unwrap_or_else(|| panic!("MQTT {:?}: nothing came within {DEADLINE:?}", self.version))
    }

    /// The next packet, or the close; `None` if `time` passes without either.
    #[track_caller]
    pub fn event_within(&mut self, time: Duration) -> Option<Event> {
        match self.inbox.pop_front() {
            Some(packet) => Some(Event::Packet(packet)),
            None => self.read(Instant::now() + time),
        }
    }

    /// Lets `time` pass on the clock, as rules with an interval in them demand; keeps what comes meanwhile.
    #[track_caller]
    pub fn pass(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while let Some(event) = self.read(deadline) {
            match event {
                Event::Packet(packet) => self.inbox.push_back(packet),
                Event::Closed => panic!("MQTT {:?}: the connection ended while time passed", self.version),
            }
        }
    }

    /// The next packet.
    #[track_caller]
    pub fn recv(&mut self) -> Packet {
        match self.event() {
            Event::Packet(packet) => packet,
            Event::Closed => {
                panic!("MQTT {:?}: a packet expected, came the end of the connection", self.version)
            }
        }
    }

    /// The next PUBLISH, as it stands; other packets are kept for later.
    #[track_caller]
    pub fn expect_publish(&mut self) -> Message {
        self.recv_where(|packet| match packet {
            Packet::Publish(message) => Some(message.clone()),
            _ => None,
        })
    }

    /// The next PUBLISH; acknowledges it to the end.
    #[track_caller]
    pub fn expect_message(&mut self) -> Message {
        let message = self.expect_publish();
        self.acknowledge(&message);
        message
    }

    /// Acknowledges a PUBLISH as its QoS demands.
    #[track_caller]
    pub fn acknowledge(&mut self, message: &Message) {
        match message.qos {
            0 => {}
            1 => self.send(&wire::ack(PUBACK, message.id)),
            _ => {
                self.send(&wire::ack(PUBREC, message.id));
                let id = message.id;
                self.expect_ack_of(PUBREL, id);
                self.send(&wire::ack(PUBCOMP, id));
            }
        }
    }

    /// The next acknowledgement of type `kind`; other packets are kept for later.
    #[track_caller]
    pub fn expect_ack(&mut self, kind: u8) -> Ack {
        self.recv_where(|packet| match packet {
            Packet::Ack(ack) if ack.kind == kind => Some(ack.clone()),
            _ => None,
        })
    }

    /// The acknowledgement of type `kind` for `id`; other packets are kept for later.
    #[track_caller]
    pub fn expect_ack_of(&mut self, kind: u8, id: u16) -> Ack {
        self.recv_where(|packet| match packet {
            Packet::Ack(ack) if ack.kind == kind && ack.id == id => Some(ack.clone()),
            _ => None,
        })
    }

    /// The next SUBACK or UNSUBACK; other packets are kept for later.
    #[track_caller]
    pub fn expect_answer(&mut self, kind: u8) -> Answer {
        self.recv_where(|packet| match packet {
            Packet::Answer(answer) if answer.kind == kind => Some(answer.clone()),
            _ => None,
        })
    }

    /// Subscribes, and returns the SUBACK's codes.
    #[track_caller]
    pub fn try_subscribe(&mut self, filter: &str, options: u8) -> Vec<u8> {
        let id = self.fresh_id();
        self.send(&Subscribe::new(id).filter(filter, options));
        let answer = self.expect_answer(packet::SUBACK);
        assert_eq!(answer.id, id, "SUBACK of another SUBSCRIBE");
        answer.reasons
    }

    /// Subscribes; the QoS in `options` must be granted.
    #[track_caller]
    pub fn subscribe(&mut self, filter: &str, options: u8) {
        assert_eq!(self.try_subscribe(filter, options), [options & 3], "SUBACK for {filter}");
    }

    /// Unsubscribes, and returns the UNSUBACK's codes.
    #[track_caller]
    pub fn unsubscribe(&mut self, filter: &str) -> Vec<u8> {
        let id = self.fresh_id();
        self.send(&Unsubscribe::new(id).filter(filter));
        let answer = self.expect_answer(packet::UNSUBACK);
        assert_eq!(answer.id, id, "UNSUBACK of another UNSUBSCRIBE");
        answer.reasons
    }

    /// Publishes and completes the exchange; the last acknowledgement's reason code comes back (0 at QoS 0).
    #[track_caller]
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8) -> u8 {
        self.publish_with(Publish::new(topic, payload), qos)
    }

    /// Publishes `publish` at `qos` with a fresh packet identifier and completes the exchange.
    #[track_caller]
    pub fn publish_with(&mut self, publish: Publish, qos: u8) -> u8 {
        if qos == 0 {
            self.send(&publish);
            return 0;
        }
        let id = self.fresh_id();
        self.send(&publish.qos(qos).id(id));
        if qos == 1 {
            return self.expect_ack_of(PUBACK, id).reason;
        }
        let received = self.expect_ack_of(PUBREC, id).reason;
        if received < 0x80 {
            self.send(&wire::ack(PUBREL, id));
            assert_eq!(self.expect_ack_of(PUBCOMP, id).reason, 0, "PUBCOMP");
        }
        received
    }

    /// A packet identifier that this client has not used yet.
    pub fn fresh_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends PINGREQ and waits for PINGRESP: the server handled all that was sent before.
    /// Packets that come before it are kept for later.
    #[track_caller]
    pub fn ping(&mut self) {
        self.send(&wire::PINGREQ);
        self.recv_where(|packet| (*packet == Packet::PingResp).then_some(()));
    }

    /// Shows that the server has not answered anything: the next packet is the answer to a ping.
    #[track_caller]
    pub fn expect_silence(&mut self) {
        self.send(&wire::PINGREQ);
        assert_eq!(self.recv(), Packet::PingResp, "silence expected");
    }

    /// All messages that come before one that `publisher` publishes now, acknowledged.
    ///
    /// The marker goes out at QoS 1 and stays in order behind what `publisher` published before.
    #[track_caller]
    pub fn drain(&mut self, publisher: &mut Self) -> Vec<Message> {
        let marker = unique("marker");
        self.subscribe(&marker, 1);
        publisher.publish(&marker, "", 1);
        let mut before = Vec::new();
        loop {
            let message = self.expect_message();
            if message.topic == marker {
                return before;
            }
            before.push(message);
        }
    }

    /// The server closes the connection, and sends nothing before that.
    #[track_caller]
    pub fn expect_closed(&mut self) {
        assert_eq!(self.event(), Event::Closed, "MQTT {:?}", self.version);
    }

    /// The server ends the connection: in version 5 by DISCONNECT with `reason` and a close, in 3.x by a mere
    /// close. Returns the DISCONNECT.
    #[track_caller]
    pub fn expect_refused(&mut self, reason: u8) -> Option<Disconnect> {
        self.expect_refused_with(&[reason])
    }

    /// As [`Client::expect_refused`], with a choice of reasons.
    #[track_caller]
    pub fn expect_refused_with(&mut self, reasons: &[u8]) -> Option<Disconnect> {
        let mut came = None;
        if self.version == Version::V5 {
            match self.event() {
                Event::Packet(Packet::Disconnect(disconnect)) => {
                    assert!(
                        reasons.contains(&disconnect.reason),
                        "{reasons:02x?} expected: {disconnect:02x?}"
                    );
                    came = Some(disconnect);
                }
                other => panic!("DISCONNECT with one of {reasons:02x?} expected, came {other:?}"),
            }
        }
        self.expect_closed();
        came
    }

    /// The first packet that `pick` takes; those before it stay in the inbox, in order.
    #[track_caller]
    pub fn recv_where<T>(&mut self, pick: impl Fn(&Packet) -> Option<T>) -> T {
        let mut skipped = VecDeque::new();
        let deadline = Instant::now() + DEADLINE;
        loop {
            let event = match self.inbox.pop_front() {
                Some(packet) => Some(Event::Packet(packet)),
                None => self.read(deadline),
            };
            match event {
                Some(Event::Packet(packet)) => match pick(&packet) {
                    Some(picked) => {
                        skipped.append(&mut self.inbox);
                        self.inbox = skipped;
                        return picked;
                    }
                    None => skipped.push_back(packet),
                },
                Some(Event::Closed) => {
                    panic!("MQTT {:?}: the connection ended; before that came {skipped:?}", self.version)
                }
                None => panic!("MQTT {:?}: not within {DEADLINE:?}; came {skipped:?}", self.version),
            }
        }
    }

    /// Reads the next packet from the socket.
    fn read(&mut self, deadline: Instant) -> Option<Event> {
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(packet) = self.parse() {
                return Some(Event::Packet(packet));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.stream.set_read_timeout(Some(left)).expect("a timeout that is not zero");
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    assert!(self.input.is_empty(), "closed inside a packet: {:02x?}", self.input);
                    return Some(Event::Closed);
                }
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    // The server closed while bytes of ours were still unread: a close as well.
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Some(Event::Closed),
                    _ => panic!("reading from the broker: {e}"),
                },
            }
        }
    }

    fn parse(&mut self) -> Option<Packet> {
        let len = packet::packet_len(&self.input).unwrap_or_else(|e| panic!("{e}: {:02x?}", self.input))?;
        if self.input.len() < len {
            return None;
        }
        let bytes: Vec<u8> = self.input.drain(..len).collect();
        let shown = &bytes[..bytes.len().min(200)];
        assert!(
            len <= self.packet_len_max,
            "{len} bytes, at most {} wanted: {shown:02x?}",
            self.packet_len_max
        );
        let decoded = packet::decode(self.version, &bytes);
        Some(decoded.unwrap_or_else(|e| panic!("the server sent what it must not: {e}: {shown:02x?}")))
    }
}
