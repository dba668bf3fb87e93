//! A connection: which of its requests are under way, and the order in which their answers leave.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// Requests of one connection that may be under way at once. Producers pipeline a handful.
pub(crate) const PIPELINED_MAX: usize = 1024;
/// Bytes of requests that wait for those before them, beyond which a connection is read no further.
const WAITING_BYTES_MAX: usize = 256 * 1024;

/// What the shard knows of a connection.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a connection, independent of each other")]
pub(crate) struct Conn {
    pub(crate) generation: u32,
    pub(crate) is_open: bool,
    /// Where the client is, if that is known.
    pub(crate) peer: Option<IpAddr>,
    /// Number of the request whose answer leaves next.
    first: u64,
    /// Requests under way, from `first` on: their answers, as far as they are there.
    under_way: VecDeque<Option<Vec<u8>>>,
    /// All that is under way may be followed by more of its kind.
    pipelines: bool,
    /// Frames that wait until what is under way is answered.
    waiting: VecDeque<Box<[u8]>>,
    waiting_bytes: usize,
    /// It is in the shard's list of connections to be looked at.
    pub(crate) is_listed: bool,
    /// A fault of this client has been logged.
    pub(crate) is_noted: bool,
    /// What the client calls itself, as last seen.
    pub(crate) client_id: Option<Arc<str>>,
    /// Name and version of the client's library (KIP-511).
    pub(crate) software: Option<(String, String)>,
    /// It has produced or fetched, and is on the shard where it stays.
    pub(crate) is_settled: bool,
    /// The fetch session that this connection made last.
    pub(crate) fetch_session: i32,
    /// The job of its last fetch, which may be over.
    pub(crate) fetch_job: u64,
}

impl Conn {
    pub(crate) fn open(generation: u32, peer: Option<IpAddr>) -> Self {
        Self { generation, is_open: true, peer, ..Self::default() }
    }

    /// Whether a request may begin now. Those that pipeline need not wait for one another.
    pub(crate) fn may_begin(&self, pipelines: bool) -> bool {
        self.waiting.is_empty() && self.may_go_on(pipelines)
    }

    fn may_go_on(&self, pipelines: bool) -> bool {
        self.under_way.is_empty() || (pipelines && self.pipelines && self.under_way.len() < PIPELINED_MAX)
    }

    /// Begins a request and returns its number.
    pub(crate) fn begin(&mut self, pipelines: bool) -> u64 {
        self.pipelines = pipelines;
        self.under_way.push_back(None);
        self.first + self.under_way.len() as u64 - 1
    }

    /// Lets a frame wait; false if too much waits already.
    pub(crate) fn wait(&mut self, frame: &[u8]) -> bool {
        if self.waiting_bytes + frame.len() > WAITING_BYTES_MAX {
            return false;
        }
        self.waiting_bytes += frame.len();
        self.waiting.push_back(frame.into());
        true
    }

    /// The next frame that waited, if it may begin now; `pipelines` tells of its kind.
    pub(crate) fn next_waiting(&mut self, pipelines: impl Fn(&[u8]) -> bool) -> Option<Box<[u8]>> {
        let frame = self.waiting.front()?;
        if !self.may_go_on(pipelines(frame)) {
            return None;
        }
        self.waiting_bytes -= frame.len();
        self.waiting.pop_front()
    }

    /// Whether appends are under way that it is to hear of.
    pub(crate) fn is_producing(&self) -> bool {
        self.pipelines && !self.under_way.is_empty()
    }

    /// Whether frames wait.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether this request is the one that is answered next.
    pub(crate) fn is_next(&self, request: u64) -> bool {
        self.first == request
    }

    /// The request that is next has been answered by other means.
    pub(crate) fn answered(&mut self) {
        self.under_way.pop_front();
        self.first += 1;
    }

    /// Takes the answer to a request; it leaves when it is its turn. An empty one is none.
    pub(crate) fn answer(&mut self, request: u64, response: Vec<u8>) {
        let Some(place) = request.checked_sub(self.first) else { return };
        if let Some(slot) = self.under_way.get_mut(place as usize) {
            *slot = Some(response);
        }
    }

    /// The next answer that may leave.
    pub(crate) fn next_answer(&mut self) -> Option<Vec<u8>> {
        let answer = self.under_way.front_mut()?.take()?;
        self.answered();
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_the_order_of_the_requests() {
        let mut conn = Conn::open(1, None);
        assert!(conn.may_begin(true));
        let first = conn.begin(true);
        assert!(!conn.may_begin(false) && conn.may_begin(true));
        let second = conn.begin(true);
        conn.answer(second, vec![2]);
        assert_eq!(conn.next_answer(), None);
        conn.answer(first, vec![1]);
        assert_eq!(conn.next_answer(), Some(vec![1]));
        assert_eq!(conn.next_answer(), Some(vec![2]));
        assert!(conn.may_begin(false));
    }

    #[test]
    fn a_frame_waits_for_those_before_it_and_too_many_are_refused() {
        let mut conn = Conn::open(1, None);
        let fetch = conn.begin(false);
        assert!(!conn.may_begin(true));
        assert!(conn.wait(&[7]));
        assert!(!conn.wait(&vec![0; WAITING_BYTES_MAX]));
        assert_eq!(conn.next_waiting(|_| true), None);
        conn.answer(fetch, Vec::new());
        assert_eq!(conn.next_answer(), Some(Vec::new()));
        assert_eq!(conn.next_waiting(|_| true).as_deref(), Some(&[7][..]));
        assert!(!conn.has_waiting());
    }
}
