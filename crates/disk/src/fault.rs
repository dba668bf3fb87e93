//! A file system in memory that fails as it is told, and knows what would be left if the power went.
//!
//! Of every file and directory it keeps two versions: what programs see (the page cache) and what is on disk,
//! with all changes in between. When it crashes, everything done with it fails, and what is found afterwards is
//! another [`FaultFs`]:
//! - [`FaultFs::killed`]: only the process ended. All that was written is there.
//! - [`FaultFs::survivor`]: the power went. Of the changes that were not synced any may have happened: none, all,
//!   the first few, or for each sector of 512 bytes and each name another choice. Lengths come with or without
//!   the bytes they count.
//!
//! All its choices come from seeds. `calls` is the file system, `content` what is in files, `names` what is in
//! directories, `dice` the choices.

mod calls;
mod content;
mod dice;
mod names;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::io;
use std::path::{Component, Path};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use content::Content;
pub use dice::Dice;
use names::{Change, Names};

/// What is to fail. Calls are counted from 1 on, since the plan was set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// The change (of any kind, syncs included) at which everything ends. It may still happen, or in part.
    pub crash_at: Option<u64>,
    /// The call to [`File::write_at`](crate::fs::File::write_at), [`File::set_len`](crate::fs::File::set_len) or [`File::allocate`](crate::fs::File::allocate) that meets an IO error.
    pub failing_write: Option<u64>,
    /// The call to [`File::sync_data`](crate::fs::File::sync_data) or [`Fs::sync_dir`](crate::fs::Fs::sync_dir) that does. What should have been synced of a file may be
    /// lost, and no later sync cares, as on Linux.
    pub failing_sync: Option<u64>,
    /// The call to [`File::read_at`](crate::fs::File::read_at) that does.
    pub failing_read: Option<u64>,
    /// The call that opens, makes, removes or renames, and does not.
    pub failing_name: Option<u64>,
    /// Bytes that all files may take together.
    pub space_bytes: Option<u64>,
}

/// Calls since the plan was set.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    changes: u64,
    writes: u64,
    syncs: u64,
    reads: u64,
    names: u64,
}

/// What a call does, as far as plans care.
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

/// What becomes of a call.
enum Fate {
    Succeeds,
    /// It fails, and may have happened in part.
    Fails(io::Error),
}

#[derive(Debug)]
struct Disk {
    /// Files and directories, of which the first is the root. What has lost its name keeps its place.
    nodes: Vec<Node>,
    dice: Dice,
    plan: Plan,
    calls: Calls,
    has_crashed: bool,
    trace: Trace,
}

/// Lines that are noted, if any are: those of the first one and of its survivors together.
type Trace = Arc<Mutex<Option<Vec<String>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file system. Clones are the same one.
#[must_use]
#[derive(Clone, Debug)]
pub struct FaultFs {
    disk: Arc<Mutex<Disk>>,
}

impl FaultFs {
    /// An empty one, in which nothing fails yet.
    pub fn new(seed: u64) -> Self {
        let root = Node::Directory(Names::default());
        Self::of(vec![root], seed, Trace::default())
    }

    fn of(nodes: Vec<Node>, seed: u64, trace: Trace) -> Self {
        let disk = Disk {
            nodes,
            dice: Dice::new(seed),
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

    /// Sets what is to fail from now on, in place of what was.
    pub fn set(&self, plan: Plan) {
        let mut disk = self.disk();
        disk.plan = plan;
        disk.calls = Calls::default();
    }

    /// Changes made since the plan was set, failed ones included.
    pub fn changes(&self) -> u64 {
        self.disk().calls.changes
    }

    /// Whether the crash of the plan has come.
    pub fn has_crashed(&self) -> bool {
        self.disk().has_crashed
    }

    /// Notes every call from now on, and those of all survivors.
    pub fn trace(&self) {
        lock(&self.disk().trace).get_or_insert_default();
    }

    /// Puts a line of one's own between the calls that are noted.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let disk = self.disk();
        if let Some(trace) = &mut *lock(&disk.trace) {
            trace.push(line());
        }
    }

    /// Takes the calls that were noted, one a line.
    pub fn take_trace(&self) -> Vec<String> {
        lock(&self.disk().trace).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What is found when the process was killed: everything as it looked. This one is of no use any more.
    pub fn killed(&self, seed: u64) -> Self {
        let mut disk = self.disk();
        disk.has_crashed = true;
        let trace = disk.trace.clone();
        Self::of(disk.nodes.clone(), seed, trace)
    }

    /// What may be found when the power went. This one is of no use any more.
    pub fn survivor(&self, seed: u64) -> Self {
        let mut disk = self.disk();
        disk.has_crashed = true;
        let mut dice = Dice::new(seed);
        let survive = |node: &Node| match node {
            Node::File(content) => Node::File(content.survivor(&mut dice)),
            Node::Directory(names) => Node::Directory(names.survivor(&mut dice)),
        };
        let nodes = disk.nodes.iter().map(survive).collect();
        let trace = disk.trace.clone();
        Self::of(nodes, seed, trace)
    }

    /// Every file, with its length: full paths, in order.
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
    /// If there is no such file.
    pub fn rot(&self, path: &Path, at: u64, bit: u8) -> io::Result<()> {
        let mut disk = self.disk();
        let node = disk.find(path)?;
        disk.content(node)?.flip(at, bit);
        Ok(())
    }
}

impl Disk {
    /// Counts a call, and says whether it is to fail. Nothing succeeds after the crash.
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
                // Writing to a string does not fail.
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

    /// The directory that `path` lies in, and its name there.
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

    /// Bytes by which files may still grow.
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
    io::Error::other("everything ended here")
}
