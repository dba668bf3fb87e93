//! File ranges in an output, sent with `sendfile` where the kernel supports it and copied otherwise.

use std::fmt;
use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;

use mio::net::TcpStream;
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Bytes copied at a time if `sendfile` is not available.
const COPY_BYTES: usize = 64 * 1024;

/// A file whose ranges can be appended to an [`Output`](crate::Output).
pub trait FileBytes: Send + Sync {
    /// File descriptor, if the file has one; required for `sendfile`.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Reads from position `at` until `into` is full or the file ends. Returns the number of bytes read.
    ///
    /// # Errors
    /// IO errors of the file.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl fmt::Debug for dyn FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileBytes")
    }
}

/// Destination of an output.
pub(crate) trait Sink: Write {
    /// Like [`Write::write_vectored`], with a hint that more bytes follow immediately (`MSG_MORE`).
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Sends up to `len` bytes of `file` from position `at` and returns the number sent. `len` must not be 0.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends at `at`; errors of the file or the sink.
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
            Ok(0) => Err(truncated()),
            Ok(count) => Ok(count),
            // The file system does not support `sendfile`.
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

pub(crate) fn copy(sink: &mut impl Write, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
    let mut bytes = vec![0; len.min(COPY_BYTES)];
    match file.read_at(&mut bytes, at)? {
        0 => Err(truncated()),
        count => sink.write(&bytes[..count]),
    }
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before the range to send")
}

/// Logs why a flush failed: file errors as errors, since they are the server's fault; peer errors for debugging.
pub(crate) fn log_failure(error: &io::Error) {
    if error.kind() == io::ErrorKind::UnexpectedEof || Errno::from_io_error(error) == Some(Errno::IO) {
        log::error!("connection closed: cannot read the file to send: {error}");
    } else {
        log::debug!("connection failed: {error}");
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

    /// A real file, with or without `sendfile`.
    struct OnDisk {
        file: fs::File,
        use_sendfile: bool,
    }

    impl FileBytes for OnDisk {
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            self.use_sendfile.then(|| self.file.as_fd())
        }

        fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
            self.file.read_at(into, at)
        }
    }

    /// An unlinked file with contents `bytes`.
    fn on_disk(bytes: &[u8], use_sendfile: bool) -> Arc<dyn FileBytes> {
        let name = format!("mainstem-file-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let file =
            fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        fs::remove_file(path).unwrap();
        Arc::new(OnDisk { file, use_sendfile })
    }

    fn pair() -> (TcpStream, std::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        (TcpStream::from_std(socket), peer)
    }

    #[test]
    fn sends_a_range_through_a_full_socket() {
        let bytes: Vec<u8> = (0..12_000_000_u32).map(|n| (n / 251 + n) as u8).collect();
        for use_sendfile in [true, false] {
            let file = on_disk(&bytes, use_sendfile);
            let (mut socket, mut peer) = pair();
            let mut output = Output::default();
            output.buffer().extend_from_slice(b"before");
            output.push_file(file, 1_000, 11_000_000);
            output.buffer().extend_from_slice(b"after");
            let expected = [b"before", &bytes[1_000..11_001_000], b"after"].concat();

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
    fn truncated_file_fails_the_connection() {
        for use_sendfile in [true, false] {
            let (mut socket, _peer) = pair();
            let mut output = Output::default();
            output.push_file(on_disk(&[1; 10], use_sendfile), 5, 6);
            let error = output.write_to(&mut socket, &mut 0).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(output.pending_files(), 1);
        }
    }
}
