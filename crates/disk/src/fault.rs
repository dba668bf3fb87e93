//! Fault injector: an in-memory file system with planned failures and simulated power loss.
//!
//! Every file and directory has two versions, the page cache and the disk, and a list of the changes in between. After
//! the planned crash every call fails, and a new [`FaultFs`] represents the state that a restart finds:
//! - [`FaultFs::killed`]: the process ended. All writes are present.
//! - [`FaultFs::survivor`]: the power failed. Any subset of the unsynced changes may be present: none, all, a prefix,
//!   or an independent choice per 512-byte sector and per directory entry. A length may be durable without the bytes
//!   it covers.
//!
//! All choices derive from seeds. `calls` implements the file system, `content` file contents, `names` directories,
//! `rng` the random choices.

mod calls;
mod content;
mod names;
mod rng;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use content::Content;
use names::{Change, Names};
pub use rng::Rng;

/// Failures to inject. Calls are counted from 1 since the plan was set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// The change, of any kind and including syncs, at which the crash happens. It may take effect fully or in part.
    pub crash_at: Option<u64>,
    /// The call to [`File::write_at`](crate::fs::File::write_at), [`File::set_len`](crate::fs::File::set_len) or
    /// [`File::allocate`](crate::fs::File::allocate) that fails with an IO error.
    pub failing_write: Option<u64>,
    /// The call to [`File::sync_data`](crate::fs::File::sync_data) or [`Fs::sync_dir`](crate::fs::Fs::sync_dir) that
    /// fails. Unsynced data of the file may be lost, and a later sync does not retry it, as on Linux.
    pub failing_sync: Option<u64>,
    /// The call to [`File::read_at`](crate::fs::File::read_at) that fails.
    pub failing_read: Option<u64>,
    /// The call that creates, removes or renames an entry and fails.
    pub failing_name: Option<u64>,
    /// How many calls to [`Fs::rename`](crate::fs::Fs::rename) fail for lack of space in the directory, from the first
    /// on.
    pub full_renames: u64,
    /// Maximum total size of all files, bytes.
    pub space_bytes: Option<u64>,
}

/// Number of calls since the plan was set.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    changes: u64,
    writes: u64,
    syncs: u64,
    reads: u64,
    names: u64,
    renames: u64,
}

/// Kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Sync,
    Read,
    Name,
}

#[derive(Clone, Debug)]
enum Node {
    File(Content),
    Directory(Names),
}

/// Planned outcome of a call.
enum Fate {
    Succeeds,
    /// Fails, possibly after taking effect in part.
    Fails(io::Error),
}

#[derive(Debug)]
struct Disk {
    /// Files and directories; index 0 is the root. Removed nodes keep their index.
    nodes: Vec<Node>,
    rng: Rng,
    plan: Plan,
    calls: Calls,
    has_crashed: bool,
    trace: Trace,
}

/// Recorded calls, if tracing is on; shared by a file system and its survivors.
type Trace = Arc<Mutex<Option<Vec<String>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The simulated file system. Clones share their state.
#[must_use]
#[derive(Clone, Debug)]
pub struct FaultFs {
    disk: Arc<Mutex<Disk>>,
}

impl FaultFs {
    /// Creates an empty file system without failures.
    pub fn new(seed: u64) -> Self {
        let root = Node::Directory(Names::default());
        Self::of(vec![root], seed, Trace::default())
    }

    fn of(nodes: Vec<Node>, seed: u64, trace: Trace) -> Self {
        let disk = Disk {
            nodes,
            rng: Rng::new(seed),
            plan: Plan::default(),
            calls: Calls::default(),
            has_crashed: false,
            trace,
        };
        Self { disk: Arc::new(Mutex::new(disk)) }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }

    /// Replaces the plan and resets the call counts.
    pub fn set(&self, plan: Plan) {
        let mut disk = self.disk();
        disk.plan = plan;
        disk.calls = Calls::default();
    }

    /// Number of changes since the plan was set, including failed ones.
    pub fn changes(&self) -> u64 {
        self.disk().calls.changes
    }

    /// Number of renames since the plan was set, including failed ones.
    pub fn renames(&self) -> u64 {
        self.disk().calls.renames
    }

    /// Whether the planned crash has happened.
    pub fn has_crashed(&self) -> bool {
        self.disk().has_crashed
    }

    /// Starts recording calls, including those of all survivors.
    pub fn trace(&self) {
        lock(&self.disk().trace).get_or_insert_default();
    }

    /// Adds a line to the recorded calls, if tracing is on.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let disk = self.disk();
        if let Some(trace) = &mut *lock(&disk.trace) {
            trace.push(line());
        }
    }

    /// Takes the recorded calls, one per line.
    pub fn take_trace(&self) -> Vec<String> {
        lock(&self.disk().trace).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the state after a kill of the process: all writes are present. Every later call on `self` fails.
    pub fn killed(&self, seed: u64) -> Self {
        let mut disk = self.disk();
        disk.has_crashed = true;
        let trace = disk.trace.clone();
        Self::of(disk.nodes.clone(), seed, trace)
    }

    /// Returns a possible state after a power failure, chosen by `seed`. Every later call on `self` fails.
    pub fn survivor(&self, seed: u64) -> Self {
        let mut disk = self.disk();
        disk.has_crashed = true;
        let mut rng = Rng::new(seed);
        let survive = |node: &Node| match node {
            Node::File(content) => Node::File(content.survivor(&mut rng)),
            Node::Directory(names) => Node::Directory(names.survivor(&mut rng)),
        };
        let nodes = disk.nodes.iter().map(survive).collect();
        let trace = disk.trace.clone();
        Self::of(nodes, seed, trace)
    }

    /// Full path and length of every file, sorted.
    pub fn files(&self) -> Vec<(String, u64)> {
        let disk = self.disk();
        let mut files = Vec::new();
        let mut left = vec![(0, String::new())];
        while let Some((node, path)) = left.pop() {
            match &disk.nodes[node] {
                Node::File(content) => files.push((path, content.len())),
                Node::Directory(names) => {
                    left.extend(names.iter().map(|(name, node)| (node, format!("{path}/{name}"))));
                }
            }
        }
        files.sort();
        files
    }

    /// Flips one bit of a file, on disk and in memory alike.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn flip_bit(&self, path: &Path, at: u64, bit: u8) -> io::Result<()> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        disk.content(node)?.flip(at, bit);
        Ok(())
    }
}

impl Disk {
    /// Counts a call and decides its outcome. Every call fails after the crash.
    fn fate(&mut self, kind: Kind, what: &dyn Fn() -> String) -> io::Result<Fate> {
        if self.has_crashed {
            return Err(crashed());
        }
        let Self { calls, plan, .. } = self;
        let (count, failing) = match kind {
            Kind::Write => (&mut calls.writes, plan.failing_write),
            Kind::Sync => (&mut calls.syncs, plan.failing_sync),
            Kind::Read => (&mut calls.reads, plan.failing_read),
            Kind::Name => (&mut calls.names, plan.failing_name),
        };
        *count += 1;
        let mut fate = if failing == Some(*count) { Fate::Fails(Errno::IO.into()) } else { Fate::Succeeds };
        if kind != Kind::Read {
            calls.changes += 1;
            if plan.crash_at == Some(calls.changes) {
                self.has_crashed = true;
                fate = Fate::Fails(crashed());
            }
        }
        if let Some(trace) = &mut *lock(&self.trace) {
            let mut line = what();
            if let Fate::Fails(error) = &fate {
                // Writing to a `String` cannot fail.
                write!(line, ": {error}").unwrap_or_default();
            }
            trace.push(line);
        }
        Ok(fate)
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut node = 0;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            node = self.names(node)?.get(&name.to_string_lossy()).ok_or(Errno::NOENT)?;
        }
        Ok(node)
    }

    /// Parent directory of `path`, and the file name.
    fn find_parent(&self, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_string_lossy().into_owned();
        Ok((self.find(path.parent().ok_or(Errno::INVAL)?)?, name))
    }

    fn names(&self, node: usize) -> io::Result<&Names> {
        match &self.nodes[node] {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn names_mut(&mut self, node: usize) -> io::Result<&mut Names> {
        match &mut self.nodes[node] {
            Node::Directory(names) => Ok(names),
            Node::File(_) => Err(Errno::NOTDIR.into()),
        }
    }

    fn content(&mut self, node: usize) -> io::Result<&mut Content> {
        match &mut self.nodes[node] {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Errno::ISDIR.into()),
        }
    }

    fn make(&mut self, path: &Path, node: Node) -> io::Result<usize> {
        if self.space_left() == 0 {
            return Err(Errno::NOSPC.into());
        }
        let (parent, name) = self.find_parent(path)?;
        let made = self.nodes.len();
        self.nodes.push(node);
        self.names_mut(parent)?.change(Change::Set { name, node: made });
        Ok(made)
    }

    /// Space left for files to grow, bytes.
    fn space_left(&self) -> u64 {
        let Some(space) = self.plan.space_bytes else { return u64::MAX };
        let mut left = vec![0];
        let mut used = 0;
        while let Some(node) = left.pop() {
            match &self.nodes[node] {
                Node::File(content) => used += content.len(),
                Node::Directory(names) => left.extend(names.iter().map(|(_, node)| node)),
            }
        }
        space.saturating_sub(used)
    }
}

fn crashed() -> io::Error {
    io::Error::other("simulated crash")
}
