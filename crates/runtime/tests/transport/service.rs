//! A service that takes commands by line, and what it has been told of.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mainstem_runtime::{ConnId, FileBytes, Io, ProtocolTag, Received, Service};

/// What the service was told of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Accepted { shard: usize, protocol: ProtocolTag },
    Closed { shard: usize },
}

/// Events of all shards.
#[derive(Default)]
pub(crate) struct Events {
    seen: Mutex<Vec<Event>>,
    changed: Condvar,
}

impl Events {
    fn push(&self, event: Event) {
        self.seen.lock().unwrap().push(event);
        self.changed.notify_all();
    }

    pub(crate) fn seen(&self) -> Vec<Event> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until `event` has been seen.
    #[track_caller]
    pub(crate) fn wait_for(&self, event: Event) {
        let seen = self.seen.lock().unwrap();
        let (seen, timeout) = self
            .changed
            .wait_timeout_while(seen, Duration::from_secs(10), |seen| !seen.contains(&event))
            .unwrap();
        assert!(!timeout.timed_out(), "{event:?} is not among {seen:?}");
    }
}

/// Connections of this protocol are handed to shard 1 as soon as the first three bytes have been read from any socket.
pub(crate) const MOVE_EARLY: ProtocolTag = ProtocolTag(7);
/// Connections of this protocol are greeted when they are accepted.
pub(crate) const GREET: ProtocolTag = ProtocolTag(8);

/// A file whose byte at `n` is [`pattern`] of `n`.
struct PatternFile;

pub(crate) fn pattern(at: usize) -> u8 {
    (at / 251 + at) as u8
}

impl FileBytes for PatternFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        for (byte, at) in into.iter_mut().zip(at as usize..) {
            *byte = pattern(at);
        }
        Ok(into.len())
    }
}

/// Runs commands: `echo TEXT`, `peer`, `shared N` and `file N` send bytes, `move N` goes on at shard N, `wait` holds
/// input once, `quit` says goodbye and closes.
pub(crate) struct Commands {
    events: Arc<Events>,
    open: Vec<ConnId>,
    moves_early: Vec<ConnId>,
    /// Held at a `wait`, which counts as done when it is offered again.
    waiting: Option<ConnId>,
    pub(crate) takes_held: bool,
}

impl Commands {
    pub(crate) fn new(events: &Arc<Events>) -> Self {
        let events = Arc::clone(events);
        Self { events, open: Vec::new(), moves_early: Vec::new(), waiting: None, takes_held: true }
    }

    fn forget(&mut self, conn: ConnId) {
        self.open.retain(|known| *known != conn);
        self.moves_early.retain(|known| *known != conn);
    }

    /// Runs one command. False if it is to be offered again, here or elsewhere.
    fn run(&mut self, io: &mut Io<'_, ()>, conn: ConnId, line: &str) -> bool {
        let (command, argument) = line.split_once(' ').unwrap_or((line, ""));
        let number = || argument.parse::<usize>().unwrap();
        let shard = io.shard;
        let peer = io.peer_address(conn).map_or_else(|| "nobody".into(), |peer| peer.to_string());
        let name = io.proxied_client(conn).and_then(|client| client.common_name.clone()).unwrap_or_default();
        let Some(output) = io.output(conn) else { return false };
        match command {
            "echo" => output.buffer().extend_from_slice(format!("{argument}\n").as_bytes()),
            "peer" => output.buffer().extend_from_slice(format!("{peer} {name}\n").as_bytes()),
            "shared" => output.push_shared((0..number()).map(pattern).collect()),
            "file" => output.push_file(Arc::new(PatternFile), 0, number()),
            "move" if number() != shard => {
                io.hand_over(conn, number());
                self.forget(conn);
                return false;
            }
            "move" => output.buffer().extend_from_slice(format!("at {shard}\n").as_bytes()),
            "wait" => {
                let has_waited = self.waiting.take() == Some(conn);
                self.waiting = (!has_waited).then_some(conn);
                return has_waited;
            }
            "quit" => {
                output.buffer().extend_from_slice(b"bye\n");
                io.close(conn);
                self.forget(conn);
            }
            other => panic!("{other:?} is no command"),
        }
        true
    }
}

impl Service for Commands {
    type Mail = ();

    fn accepted(&mut self, io: &mut Io<'_, ()>, conn: ConnId, protocol: ProtocolTag) {
        self.events.push(Event::Accepted { shard: io.shard, protocol });
        self.open.push(conn);
        if protocol == GREET {
            io.output(conn).unwrap().buffer().extend_from_slice(b"greetings\n");
        }
        if protocol == MOVE_EARLY && io.shard == 0 {
            self.moves_early.push(conn);
        }
    }

    fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
        let mut consumed = 0;
        while let Some(len) = bytes[consumed..].iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&bytes[consumed..consumed + len]).unwrap();
            if !self.run(io, conn, line) {
                break;
            }
            consumed += len + 1;
        }
        Received { consumed, hold: self.waiting == Some(conn), ..Received::default() }
    }

    fn closed(&mut self, io: &mut Io<'_, ()>, conn: ConnId) {
        self.events.push(Event::Closed { shard: io.shard });
        self.forget(conn);
    }

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn takes_held(&mut self, _io: &mut Io<'_, ()>) -> bool {
        self.takes_held
    }

    fn turn_ends(&mut self, io: &mut Io<'_, ()>) {
        if io.stats.bytes_read >= 3 {
            for conn in std::mem::take(&mut self.moves_early) {
                io.hand_over(conn, 1);
                self.forget(conn);
            }
        }
    }

    fn drain(&mut self, io: &mut Io<'_, ()>) {
        for conn in std::mem::take(&mut self.open) {
            io.close(conn);
        }
    }
}
