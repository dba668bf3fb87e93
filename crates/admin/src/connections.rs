//! Open connections: how many there may be, and which of them makes room for a new one.
//!
//! A connection without a request under way is *idle*: it has sent nothing yet, or a part of a head, or it is between
//! two requests. An idle connection never keeps a client out: at the limit, the one that has been idle for longest is
//! closed. Only connections with a request under way are safe, so only they can use up the limit.
//!
//! Connections that have not completed a request are closed first when they are more than half of the limit. Silent
//! connections, which cost a client nothing, thus never displace the idle connections of clients that use them.

use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How long a connection may be idle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Until the head of a request is complete, from the start of the connection or the first byte of the head.
    pub(crate) head: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// No request is under way. `since` orders idle connections.
    Idle { since: u64, has_head: bool, deadline: Instant },
    /// A request is under way.
    Busy,
    /// The response is complete, and some of it may still be in the write buffer.
    Responded,
}

struct Entry {
    activity: Activity,
    /// Whether a request of this connection was completed.
    is_proven: bool,
    evicted: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    /// Numbers connections, and the moments at which they became idle.
    clock: u64,
    open: HashMap<u64, Entry>,
    /// Idle connections that have completed no request, by the moment at which they became idle.
    unproven: BTreeMap<u64, u64>,
    /// The other idle connections.
    proven: BTreeMap<u64, u64>,
}

/// The open connections of one kind. See the documentation of this module.
pub(crate) struct ConnectionTable {
    max: usize,
    inner: Mutex<Inner>,
}

/// What [`ConnectionTable::open`] did for a new connection.
pub(crate) enum Admitted {
    /// There was room.
    Open(Connection),
    /// An idle connection was closed to make room.
    Evicting(Connection),
    /// All connections have a request under way.
    Full,
}

impl ConnectionTable {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, inner: Mutex::default() })
    }

    /// Whether a new connection needs the place of another one.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().open.len() >= self.max
    }

    /// Adds a connection, which is idle. At the limit, closes an idle one.
    pub(crate) fn open(self: &Arc<Self>, timeouts: Timeouts) -> Admitted {
        let mut inner = self.lock();
        let is_evicting = inner.open.len() >= self.max;
        if is_evicting && !inner.evict(self.max) {
            return Admitted::Full;
        }
        let id = inner.tick();
        let evicted = Arc::new(Notify::new());
        inner
            .open
            .insert(id, Entry { activity: Activity::Busy, is_proven: false, evicted: Arc::clone(&evicted) });
        inner.becomes_idle(id, timeouts.head);
        drop(inner);
        let connection = Connection(Arc::new(Handle { table: Arc::clone(self), id, timeouts, evicted }));
        if is_evicting { Admitted::Evicting(connection) } else { Admitted::Open(connection) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Closes an idle connection. Returns whether there was one.
    fn evict(&mut self, max: usize) -> bool {
        let oldest = |idle: &BTreeMap<u64, u64>| idle.first_key_value().map(|(since, id)| (*since, *id));
        let (unproven, proven) = (oldest(&self.unproven), oldest(&self.proven));
        let victim =
            if self.unproven.len() > max / 2 { unproven } else { unproven.into_iter().chain(proven).min() };
        let Some((_, id)) = victim else { return false };
        if let Some(entry) = self.remove(id) {
            entry.evicted.notify_one();
        }
        true
    }

    /// Takes a connection off the list of idle ones. `None` if it is not open anymore.
    fn not_idle(&mut self, id: u64) -> Option<&mut Entry> {
        let entry = self.open.get_mut(&id)?;
        if let Activity::Idle { since, .. } = entry.activity {
            let idle = if entry.is_proven { &mut self.proven } else { &mut self.unproven };
            idle.remove(&since);
        }
        Some(entry)
    }

    fn becomes_idle(&mut self, id: u64, timeout: Duration) {
        let since = self.tick();
        if let Some(entry) = self.not_idle(id) {
            let deadline = Instant::now() + timeout;
            entry.activity = Activity::Idle { since, has_head: false, deadline };
            let idle = if entry.is_proven { &mut self.proven } else { &mut self.unproven };
            idle.insert(since, id);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Entry> {
        self.not_idle(id)?;
        self.open.remove(&id)
    }
}

/// A connection in the table, shared by its task, its socket and its requests. It leaves the table with the last of
/// them.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Handle>);

struct Handle {
    table: Arc<ConnectionTable>,
    id: u64,
    timeouts: Timeouts,
    evicted: Arc<Notify>,
}

impl Connection {
    /// Bytes have arrived. If no request is under way, they are the begin of a head.
    pub(crate) fn received(&self) {
        let mut inner = self.0.table.lock();
        if let Some(entry) = inner.open.get_mut(&self.0.id)
            && let Activity::Idle { has_head: has_head @ false, deadline, .. } = &mut entry.activity
        {
            *has_head = true;
            *deadline = Instant::now() + self.0.timeouts.head;
        }
    }

    /// The head of a request is complete. The request is under way until the guard is dropped and the response is
    /// [`flushed`](Self::flushed).
    pub(crate) fn begin_request(&self) -> RequestGuard {
        if let Some(entry) = self.0.table.lock().not_idle(self.0.id) {
            entry.activity = Activity::Busy;
        }
        RequestGuard(self.clone())
    }

    /// The kernel has everything that was in the write buffer.
    pub(crate) fn flushed(&self) {
        let mut inner = self.0.table.lock();
        if let Some(entry) = inner.open.get_mut(&self.0.id)
            && entry.activity == Activity::Responded
        {
            entry.is_proven = true;
            inner.becomes_idle(self.0.id, self.0.timeouts.idle);
        }
    }

    /// Waits until the connection must make room for another one.
    pub(crate) async fn evicted(&self) {
        self.0.evicted.notified().await;
    }

    /// Waits until the connection has been idle for too long. Returns whether a part of a head has arrived.
    ///
    /// Each poll looks at the current deadline, so the task of the connection must poll this after the connection.
    pub(crate) async fn expired(&self) -> bool {
        let mut sleep = std::pin::pin!(sleep_until(Instant::now()));
        std::future::poll_fn(|cx| {
            let activity = self.0.table.lock().open.get(&self.0.id).map(|entry| entry.activity);
            let Some(Activity::Idle { has_head, deadline, .. }) = activity else { return Poll::Pending };
            if sleep.deadline() != deadline {
                sleep.as_mut().reset(deadline);
            }
            sleep.as_mut().poll(cx).map(|()| has_head)
        })
        .await
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.table.lock().remove(self.id);
    }
}

/// A request under way. Owned by the request, then by the body of the response.
pub(crate) struct RequestGuard(Connection);

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let handle = &self.0.0;
        if let Some(entry) = handle.table.lock().open.get_mut(&handle.id) {
            entry.activity = Activity::Responded;
        }
    }
}

/// The body of a response, with the guard of its request.
pub(crate) struct GuardedBody {
    pub(crate) body: axum::body::Body,
    pub(crate) _guard: RequestGuard,
}

impl Body for GuardedBody {
    type Data = axum::body::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(30), idle: Duration::from_secs(75) };

    fn open(table: &Arc<ConnectionTable>) -> Option<Connection> {
        match table.open(TIMEOUTS) {
            Admitted::Open(connection) | Admitted::Evicting(connection) => Some(connection),
            Admitted::Full => None,
        }
    }

    fn is_open(connection: &Connection) -> bool {
        connection.0.table.lock().open.contains_key(&connection.0.id)
    }

    /// A connection between two requests.
    fn open_proven(table: &Arc<ConnectionTable>) -> Connection {
        let connection = open(table).unwrap();
        drop(connection.begin_request());
        connection.flushed();
        connection
    }

    #[test]
    fn the_longest_idle_connection_makes_room() {
        let table = ConnectionTable::new(4);
        let [a, b, c, d] = std::array::from_fn(|_| open_proven(&table));
        let _request = a.begin_request();
        drop(c.begin_request());
        c.flushed();
        assert!(matches!(table.open(TIMEOUTS), Admitted::Evicting(_)), "it closes at once");
        assert_eq!([&a, &b, &c, &d].map(is_open), [true, false, true, true]);
        let _e = open_proven(&table);
        let _f = open_proven(&table);
        assert_eq!([&a, &b, &c, &d].map(is_open), [true, false, true, false]);
    }

    #[test]
    fn connections_with_a_request_are_never_closed() {
        let table = ConnectionTable::new(2);
        let (a, b) = (open(&table).unwrap(), open(&table).unwrap());
        let (first, second) = (a.begin_request(), b.begin_request());
        assert!(open(&table).is_none());
        drop(first);
        assert!(open(&table).is_none(), "the response is not sent yet");
        a.flushed();
        let c = open(&table).unwrap();
        assert_eq!([&a, &b, &c].map(is_open), [false, true, true]);
        // The closed connection changes nothing anymore.
        drop(a.begin_request());
        a.flushed();
        drop((a, second));
        assert_eq!(table.lock().open.len(), 2);
    }

    #[test]
    fn silent_connections_do_not_displace_those_in_use() {
        let table = ConnectionTable::new(8);
        let used: Vec<_> = std::iter::repeat_with(|| open_proven(&table)).take(8).collect();
        let silent: Vec<_> = std::iter::repeat_with(|| open(&table).unwrap()).take(100).collect();
        assert_eq!(used.iter().filter(|connection| is_open(connection)).count(), 3);
        assert!(silent[95..].iter().all(is_open));
    }

    #[test]
    fn nothing_stays_of_a_closed_connection() {
        let table = ConnectionTable::new(2);
        for _ in 0..3 {
            let proven = open_proven(&table);
            let unproven = open(&table).unwrap();
            let responded = proven.begin_request();
            drop((proven, responded, unproven));
        }
        let inner = table.lock();
        assert!(inner.open.is_empty() && inner.proven.is_empty() && inner.unproven.is_empty());
    }
}
