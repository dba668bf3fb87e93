//! Listeners on Unix sockets.
//!
//! A connection is kept as a `TcpStream`: reads, writes, `sendfile` and `shutdown` are the same system calls for both
//! kinds of sockets, and the event loop needs no distinction.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use mio::net::{TcpStream, UnixStream};
use rustix::net::sockopt;

/// Configuration of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Path of the socket's file.
    pub path: PathBuf,
    /// Permissions of the file: whoever may write it may connect.
    pub mode: u32,
    /// Group of the file, if not that of the process.
    pub group: Option<u32>,
}

/// Suffix of the file that is locked as long as a process has the socket.
const LOCK_SUFFIX: &str = ".lock";

/// A bound Unix socket. Its file is removed with it.
#[derive(Debug)]
pub(crate) struct UnixListener {
    socket: net::UnixListener,
    path: PathBuf,
    /// Held until the socket's file is removed.
    _lock: File,
    send_buffer_bytes: usize,
}

impl UnixListener {
    /// Binds the socket. The file of a process that has ended is replaced.
    ///
    /// # Errors
    /// The file cannot be made, or is in use, or is not a socket.
    pub(crate) fn bind(config: &UnixSocket, send_buffer_bytes: usize) -> io::Result<Self> {
        let UnixSocket { path, mode, group } = config;
        // Between finding out that nobody uses the file and replacing it, another process could do the same.
        let lock = lock(path)?;
        remove_stale(path)?;
        let socket = net::UnixListener::bind(path)?;
        // From here on the file is removed if something fails.
        let listener = Self { socket, path: path.clone(), _lock: lock, send_buffer_bytes };
        if group.is_some() {
            chown(path, None, *group)?;
        }
        fs::set_permissions(path, Permissions::from_mode(*mode))?;
        listener.socket.set_nonblocking(true)?;
        Ok(listener)
    }

    pub(crate) fn accept(&self) -> io::Result<TcpStream> {
        let (socket, _) = self.socket.accept()?;
        socket.set_nonblocking(true)?;
        if self.send_buffer_bytes > 0 {
            sockopt::set_socket_send_buffer_size(&socket, self.send_buffer_bytes)?;
        }
        Ok(TcpStream::from_std(OwnedFd::from(socket).into()))
    }
}

impl AsRawFd for UnixListener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            log::warn!("cannot remove the socket {}: {error}", self.path.display());
        }
    }
}

/// Locks a socket's path for this process.
fn lock(path: &Path) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(LOCK_SUFFIX);
    let file = File::options().create(true).append(true).mode(0o600).open(PathBuf::from(name))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(in_use()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes a socket's file that a process has left behind.
fn remove_stale(path: &Path) -> io::Result<()> {
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists and is not a socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            log::info!("replacing the socket {}, whose process has ended", path.display());
            fs::remove_file(path)
        }
        // `WouldBlock`: its backlog is full.
        Ok(_) => Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(in_use()),
        Err(error) => Err(error),
    }
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another process listens on the socket")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn config(name: &str) -> UnixSocket {
        let name = format!("mainstem-unix-{}-{name}", std::process::id());
        UnixSocket { path: std::env::temp_dir().join(name), mode: 0o660, group: None }
    }

    #[test]
    fn the_file_has_its_mode_and_goes_with_the_listener() {
        let config = config("mode");
        let listener = UnixListener::bind(&config, 4096).unwrap();
        assert_eq!(fs::metadata(&config.path).unwrap().permissions().mode() & 0o777, 0o660);
        let mut peer = net::UnixStream::connect(&config.path).unwrap();
        let mut socket = listener.accept().unwrap();
        peer.write_all(b"abc").unwrap();
        let mut bytes = [0; 9];
        assert_eq!(io::Read::read(&mut socket, &mut bytes).unwrap(), 3);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        assert!(!config.path.exists());
    }

    /// Whoever begins to bind the socket has it, also before its file is there.
    #[test]
    fn one_of_several_that_replace_a_stale_socket_gets_it() {
        let config = config("race");
        let held = lock(&config.path).unwrap();
        assert_eq!(UnixListener::bind(&config, 0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(held);
        for _ in 0..50 {
            drop(net::UnixListener::bind(&config.path).unwrap());
            let bound: Vec<_> = std::thread::scope(|scope| {
                let bind = || scope.spawn(|| UnixListener::bind(&config, 0).ok());
                let all: Vec<_> = (0..4).map(|_| bind()).collect();
                all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(bound.len(), 1);
            assert!(UnixStream::connect(&config.path).is_ok(), "its file is there");
            drop(bound);
            assert!(!config.path.exists());
        }
        fs::remove_file(format!("{}{LOCK_SUFFIX}", config.path.display())).unwrap();
    }

    #[test]
    fn a_file_is_replaced_only_if_it_is_a_socket_that_nobody_uses() {
        let config = config("stale");
        drop(net::UnixListener::bind(&config.path).unwrap());
        assert!(config.path.exists(), "the standard library leaves the file");
        let listener = UnixListener::bind(&config, 0).unwrap();
        assert_eq!(UnixListener::bind(&config, 0).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(config.path.exists());
        drop(listener);
        fs::write(&config.path, b"data").unwrap();
        assert_eq!(UnixListener::bind(&config, 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&config.path).unwrap(), b"data");
        fs::remove_file(&config.path).unwrap();
    }
}
