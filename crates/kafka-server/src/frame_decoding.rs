//! What is done with a complete frame: its request begins, is queued, or is decoded in steps.
//!
//! A frame of a megabyte can hold a hundred thousand names, and decoding it takes longer than a turn may. The frame
//! stays in the input buffer of its connection, whose input is held, while each turn decodes a part of it. The request
//! begins with the last part, so that the order of the connection's requests does not change, and everything that is
//! checked when a request begins is as new as if it had been decoded at once. The share of each connection in the work
//! of a turn is the runtime's.
//!
//! Most Produce requests have few partitions, and are decoded at once without a copy of their records. One that names
//! thousands is decoded in steps too.

use mainstem_kafka::api::produce::{ProduceRequest, has_more_partitions};
use mainstem_kafka::{Request, RequestHeader};
use mainstem_runtime::{ConnId, Io, MemoryPressure};

use crate::conn_quotas::count_request_time;
use crate::division::WIDE_PRODUCE;
use crate::handlers;
use crate::long_request::{LONG_FRAME_BYTES, LongRequest, PartlyDecoded, STEP_UNITS};
use crate::shard::Shard;
use crate::shard_message::Mail;

/// What has become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// It must be offered again.
    Later,
    /// Its connection has moved to another shard, with the frame.
    HandedOver,
    /// Its connection is closed.
    Closed,
}

/// What a frame is.
#[derive(Debug)]
enum Decoded {
    /// It is decoded when its request begins.
    Short,
    /// It is not decoded completely: continue in a later turn.
    Partly,
    /// Its request may begin.
    Long(Box<dyn LongRequest>),
    /// It is malformed, and its connection has been closed.
    Refused,
}

/// Whether the frame holds a pipelined request.
pub(crate) fn pipelines(frame: &[u8]) -> bool {
    frame.first_chunk().is_some_and(|key| i16::from_be_bytes(*key) == ProduceRequest::KEY)
}

/// Whether a frame is a Produce that others must not be pipelined with, because it names thousands of partitions.
fn is_wide_produce(frame: &[u8]) -> bool {
    if frame.len() < LONG_FRAME_BYTES {
        return false;
    }
    let Ok((header, body)) = RequestHeader::parse(frame) else { return false };
    header.api_key == ProduceRequest::KEY
        && ProduceRequest::VERSIONS.contains(&header.api_version)
        && has_more_partitions(body, header.api_version, WIDE_PRODUCE) == Ok(true)
}

impl Shard {
    /// Begins the request of a complete frame, queues it, or decodes a part of it.
    pub(crate) fn take_frame(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) -> Taken {
        let has_room = io.has_ample_room(id);
        let Some(conn) = self.conns.get_mut(id) else { return Taken::Closed };
        let may_pipeline = pipelines(frame) && !is_wide_produce(frame);
        if !conn.may_begin(may_pipeline) || !has_room {
            if !self.conns.wait(id, frame, may_pipeline) {
                return Taken::Later;
            }
            self.conns.finish_request(id);
            return Taken::Yes;
        }
        let is_settled = conn.is_settled;
        let request = match self.decode_long(io, id, frame) {
            Decoded::Short if !is_settled && self.hand_over_if_remote(io, id, frame) => {
                return Taken::HandedOver;
            }
            Decoded::Short => None,
            Decoded::Long(request) => Some(request),
            Decoded::Partly => return Taken::Later,
            Decoded::Refused => return Taken::Closed,
        };
        self.conns.finish_request(id);
        self.begin(io, id, frame, request);
        Taken::Yes
    }

    /// Decodes a part of a frame that may begin now, if it is long.
    fn decode_long(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) -> Decoded {
        if frame.len() < LONG_FRAME_BYTES {
            return Decoded::Short;
        }
        // Before that there is no long request, and what is sent may be no request at all.
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.log_in.is_complete()) else {
            return Decoded::Short;
        };
        let quotas = conn.quotas.quotas.clone();
        let Ok((header, body)) = RequestHeader::parse(frame) else { return Decoded::Short };
        let mut request = match (conn.decoding.take(), header.api_key) {
            (Some(partly), _) => partly.request,
            (None, ProduceRequest::KEY) if !is_wide_produce(frame) => return Decoded::Short,
            (None, key) => match handlers::begin_long(key, header.api_version) {
                Some(request) => request,
                None => return Decoded::Short,
            },
        };
        if request.array_bytes() == 0 && io.memory().pressure() >= MemoryPressure::Critical {
            // It waits until there is memory again. Those that have begun go on, and give theirs back.
            return Decoded::Partly;
        }
        loop {
            io.charge(STEP_UNITS);
            if let Some(quotas) = &quotas {
                count_request_time(quotas, self.env.me(), STEP_UNITS.into(), io.clock.now_ms);
            }
            let outcome = request.step(body);
            let refusal = match &outcome {
                Ok(_) => handlers::too_long(header.api_key, request.elements()),
                Err(error) => Some(handlers::malformed(header.api_key, header.api_version, error)),
            };
            if let Some(what) = refusal {
                io.discard(request);
                self.refuse(io, id, &what);
                return Decoded::Refused;
            }
            if outcome == Ok(true) {
                return Decoded::Long(request);
            }
            if io.is_exhausted() {
                let memory = self.env.memory().map(|memory| memory.requests.charge(request.array_bytes()));
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.decoding = Some(PartlyDecoded::new(request, memory));
                }
                return Decoded::Partly;
            }
        }
    }
}
