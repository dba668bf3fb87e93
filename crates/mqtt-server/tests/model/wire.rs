//! One connection as the run sees it: what the client has sent and the broker not yet dealt with, and what the
//! broker has to answer.

use std::collections::{HashMap, VecDeque};

use mainstem_mqtt::{ReasonCode, Version};

use crate::plan::{Connecting, Op};
use crate::session::Serial;

/// An answer that is due, in the order of the packets that cause them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    ConnAck { is_present: bool },
    SubAck { packet_id: u16, reasons: Vec<u8> },
    UnsubAck { packet_id: u16, reasons: Vec<u8> },
    PubAck(u16, ReasonCode),
    PubRec(u16, ReasonCode),
    PubRel(u16, ReasonCode),
    PubComp(u16, ReasonCode),
    Pong,
    Disconnect(ReasonCode),
}

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) client: usize,
    pub(crate) version: Version,
    pub(crate) packet_max: usize,
    pub(crate) inflight_max: usize,
    pub(crate) alias_max: u16,
    /// The session it serves, once the broker has dealt with CONNECT.
    pub(crate) serial: Option<Serial>,
    /// The how many-th CONNECT of the run it brought.
    pub(crate) order: usize,
    /// Packets with the number of bytes sent up to their end.
    pub(crate) ops: VecDeque<(usize, Op)>,
    /// Bytes of all packets so far.
    pub(crate) queued: usize,
    /// The last of them, not sent yet.
    pub(crate) unsent: Vec<u8>,
    pub(crate) replies: VecDeque<Reply>,
    /// The number of each UNSUBSCRIBE that waits for its UNSUBACK.
    pub(crate) unsubscribing: VecDeque<u64>,
    /// Output that is not a whole packet yet.
    pub(crate) partial: Vec<u8>,
    /// Topic aliases that the broker has set, and the client.
    pub(crate) aliases_in: HashMap<u16, String>,
    pub(crate) aliases_out: HashMap<u16, &'static str>,
    /// Nothing more is to come but what was on its way.
    pub(crate) has_ended: bool,
    /// Output has waited for the client: it may tell of times that are past.
    pub(crate) was_stalled: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) last_packet_ms: u64,
    /// The shard it is open to, since when, and how long that one waits for CONNECT.
    pub(crate) shard: usize,
    pub(crate) opened_ms: u64,
    pub(crate) connect_timeout_ms: u32,
}

impl Wire {
    pub(crate) fn new(connecting: &Connecting, keep_alive_s: u16, connect_timeout_ms: u32) -> Self {
        Self {
            client: connecting.client,
            version: connecting.version,
            packet_max: connecting.packet_max.map_or(usize::MAX, |most| most as usize),
            inflight_max: 0,
            alias_max: connecting.alias_max.unwrap_or(0),
            serial: None,
            order: 0,
            ops: VecDeque::new(),
            queued: 0,
            unsent: Vec::new(),
            replies: VecDeque::new(),
            unsubscribing: VecDeque::new(),
            partial: Vec::new(),
            aliases_in: HashMap::new(),
            aliases_out: HashMap::new(),
            has_ended: false,
            was_stalled: false,
            keep_alive_s,
            last_packet_ms: 0,
            shard: 0,
            opened_ms: 0,
            connect_timeout_ms,
        }
    }

    /// Notes a packet that is to be sent.
    pub(crate) fn queue(&mut self, op: Op, frame: &[u8]) {
        self.queued += frame.len();
        self.unsent.extend_from_slice(frame);
        self.ops.push_back((self.queued, op));
    }

    /// A shard has accepted it.
    pub(crate) fn open(&mut self, shard: usize, now_ms: u64) {
        self.shard = shard;
        self.opened_ms = now_ms;
        self.last_packet_ms = now_ms;
    }

    /// When the broker is to lose patience.
    pub(crate) fn due_ms(&self) -> Option<u64> {
        if self.has_ended {
            return None;
        }
        if self.serial.is_none() {
            return Some(self.opened_ms + u64::from(self.connect_timeout_ms));
        }
        (self.keep_alive_s > 0).then(|| self.last_packet_ms + u64::from(self.keep_alive_s) * 1500)
    }
}
