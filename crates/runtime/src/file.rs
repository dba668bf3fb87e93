//! Ranges of files on their way to a connection, which the kernel sends without a copy where it can.

use std::fmt;
use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;

use mio::net::TcpStream;
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Bytes copied at once where the kernel cannot send a file itself.
const COPY_BYTES: usize = 64 * 1024;

/// A file of which an output sends ranges.
pub trait FileBytes: Send + Sync {
    /// The kernel's file, if it is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Reads from byte offset `at` on as much as there is, up to the length of `into`; less at the end only.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl fmt::Debug for dyn FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileBytes")
    }
}

/// What outputs are written to.
pub(crate) trait Sink: Write {
    /// As [`Write::write_vectored`], of bytes that more will follow at once: they need not leave by themselves.
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Takes up to `len` bytes, which is not 0, of `file` from byte offset `at` on, and says how many.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends there; what the file or the sink says.
    fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize>;
}

impl Sink for TcpStream {
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
        Ok(sendmsg(&*self, slices, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
        let Some(fd) = file.as_fd() else { return copy(self, file, at, len) };
        let mut next = at;
        match sendfile(&*self, fd, Some(&mut next), len) {
            Ok(0) => Err(cut_short()),
            Ok(count) => Ok(count),
            // A file system without it.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => copy(self, file, at, len),
            Err(error) => Err(error.into()),
        }
    }
}

impl Sink for Vec<u8> {
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(slices)
    }

    fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
        copy(self, file, at, len)
    }
}

fn copy(sink: &mut impl Write, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
    let mut bytes = vec![0; len.min(COPY_BYTES)];
    match file.read_at(&mut bytes, at)? {
        0 => Err(cut_short()),
        count => sink.write(&bytes[..count]),
    }
}

fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "a file ends before the range that is being sent")
}

/// Notes why a connection's output cannot go on. What peers do is their business; what files do is ours.
pub(crate) fn log_failure(error: &io::Error) {
    if error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO) {
        log::error!("a connection is closed, because what it waits for cannot be read: {error}");
    } else {
        log::debug!("a connection failed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::output::Output;

    /// A file of the system, which the kernel may or may not be let at.
    struct OnDisk {
        file: fs::File,
        by_kernel: bool,
    }

    impl FileBytes for OnDisk {
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            self.by_kernel.then(|| self.file.as_fd())
        }

        fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
            self.file.read_at(into, at)
        }
    }

    /// A file of `bytes` that has no name any more.
    fn on_disk(bytes: &[u8], by_kernel: bool) -> Arc<dyn FileBytes> {
        let name = format!("mainstem-file-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let file =
            fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        fs::remove_file(path).unwrap();
        Arc::new(OnDisk { file, by_kernel })
    }

    fn pair() -> (TcpStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        (TcpStream::from_std(socket), peer)
    }

    #[test]
    fn a_range_leaves_through_a_socket_that_fills_up_on_the_way() {
        let bytes: Vec<u8> = (0..12_000_000_u32).map(|n| (n / 251 + n) as u8).collect();
        for by_kernel in [true, false] {
            let file = on_disk(&bytes, by_kernel);
            let (mut socket, mut peer) = pair();
            let mut output = Output::default();
            output.buffer().extend_from_slice(b"before");
            output.push_file(file, 1_000, 11_000_000);
            output.buffer().extend_from_slice(b"behind");
            let expected = [b"before", &bytes[1_000..11_001_000], b"behind"].concat();

            let mut got = vec![0; expected.len()];
            let mut at = 0;
            let mut blocked = 0;
            while at < got.len() {
                let flushed = output.write_to(&mut socket, &mut 0).unwrap();
                blocked += usize::from(!flushed.yields && !output.is_empty());
                if flushed.yields {
                    continue;
                }
                at += peer.read(&mut got[at..]).unwrap();
            }
            assert!(got == expected);
            assert!(output.is_empty() && blocked > 0);
        }
    }

    #[test]
    fn a_file_that_ends_too_early_fails_the_connection() {
        for by_kernel in [true, false] {
            let (mut socket, _peer) = pair();
            let mut output = Output::default();
            output.push_file(on_disk(&[1; 10], by_kernel), 5, 6);
            let error = output.write_to(&mut socket, &mut 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(output.pending_files(), 1);
        }
    }
}
