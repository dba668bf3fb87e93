//! Appending to a file without a system call: through a window of it that is mapped into memory.
//!
//! What is stored into a shared mapping is in the page cache, where every reader and every sync finds it, and where
//! the end of the process leaves it. The first append that reaches behind the window is written, and a new window
//! opened behind it, full of zeros that are written too: the kernel then has the pages, in large pieces, so
//! that touching them costs a fraction of a fault each, and an error is met as an error.
//!
//! A page that the kernel cannot provide ends the process (SIGBUS). So a window never reaches behind what was
//! reserved in the file, is gone before the file is cut off, and opens only on file systems that write in place, which
//! need no space for writing again what they have.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::FsWord;

/// A window ends where this many bytes of the file, or a multiple of them, do.
const WINDOW_BYTES: u64 = 256 * 1024;
/// A larger append is written: the kernel gives it large pages by itself.
const APPEND_MAX: usize = 64 * 1024;
const ZEROS: &[u8] = &[0; WINDOW_BYTES as usize];
/// What `statfs` calls ext4, XFS and tmpfs.
const IN_PLACE: [FsWord; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

/// The part of a file that is mapped, and what is known of the rest.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    window: Option<Window>,
    /// Bytes that were reserved, through this very file.
    reserved: Range<u64>,
    /// Where the last small append ended. A window is opened where two follow one another.
    written_to: Option<u64>,
    /// Whether windows may be opened, once that is known: on a file system that writes in place, until one fails to open.
    may_open: Option<bool>,
}

#[derive(Debug)]
struct Window {
    memory: MmapRaw,
    /// The bytes of the file that it shows.
    bytes: Range<u64>,
}

impl Window {
    fn open(file: &fs::File, bytes: Range<u64>) -> io::Result<Self> {
        let len = (bytes.end - bytes.start) as usize;
        file.write_all_at(&ZEROS[..len], bytes.start)?;
        let memory = MmapOptions::new().offset(bytes.start).len(len).map_raw(file)?;
        // All pages at once cost less than a fault each. Kernels before 5.14 do not know how.
        if let Err(error) = memory.advise(Advice::PopulateWrite) {
            log::trace!("a window's pages come one by one: {error}");
        }
        Ok(Self { memory, bytes })
    }

    /// Stores `bytes` at byte offset `at` of the file, from front to back: should the process be killed on the way, a first
    /// part of them is there and zeros behind, as a write leaves it that is cut short.
    #[expect(unsafe_code, reason = "memory that is shared with the kernel is written to")]
    #[expect(clippy::cast_ptr_alignment, reason = "what is not aligned is written before, byte by byte")]
    fn store(&mut self, bytes: &[u8], at: u64) {
        assert!(self.bytes.start <= at && at + bytes.len() as u64 <= self.bytes.end);
        let from = (at - self.bytes.start) as usize;
        // SAFETY: `from` lies within the mapping, as has just been asserted.
        let mut to = unsafe { self.memory.as_mut_ptr().add(from) };
        let (first, rest) = bytes.split_at(to.align_offset(8).min(bytes.len()));
        let (words, last) = rest.as_chunks::<8>();
        // SAFETY: all of `bytes` lies within the mapping, as was asserted, and each word is aligned, since `first` ends
        // where that is so. The mapping lives as long as `self`, which is borrowed alone, and nothing else in the
        // process has a pointer into it. The file is as long as the window ([`Mapped::cut`]), so the
        // pages are there. Volatile writes are not put in another order.
        unsafe {
            for byte in first {
                to.write_volatile(*byte);
                to = to.add(1);
            }
            for word in words {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                to = to.add(8);
            }
            for byte in last {
                to.write_volatile(*byte);
                to = to.add(1);
            }
        }
    }
}

impl Mapped {
    /// Takes note that space was reserved.
    pub(crate) fn reserve(&mut self, bytes: Range<u64>) {
        if self.reserved.contains(&bytes.start) || self.reserved.end == bytes.start {
            self.reserved.end = self.reserved.end.max(bytes.end);
        } else {
            self.reserved = bytes;
        }
    }

    /// To be called before the file is cut off.
    pub(crate) fn cut(&mut self, len: u64) {
        if self.window.as_ref().is_some_and(|window| window.bytes.end > len) {
            self.window = None;
        }
        self.reserved.end = self.reserved.end.min(len);
    }

    /// Writes `bytes` at byte offset `at`, behind which there are only zeros.
    ///
    /// # Errors
    /// What the system says. Some of the bytes may be written all the same.
    #[inline]
    pub(crate) fn append(&mut self, file: &fs::File, bytes: &[u8], at: u64) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        if let Some(window) = &mut self.window
            && bytes.len() <= APPEND_MAX
            && window.bytes.start <= at
            && end <= window.bytes.end
        {
            window.store(bytes, at);
            self.written_to = Some(end);
            return Ok(());
        }
        file.write_all_at(bytes, at)?;
        if bytes.len() <= APPEND_MAX {
            if self.written_to == Some(at) {
                self.window = self.open(file, end);
            }
            self.written_to = Some(end);
        }
        Ok(())
    }

    /// The window that begins at byte offset `at`, if there may be one.
    fn open(&mut self, file: &fs::File, at: u64) -> Option<Window> {
        let bytes = at..(at + 1).next_multiple_of(WINDOW_BYTES).min(self.reserved.end);
        let may_open = *self.may_open.get_or_insert_with(|| is_in_place(file));
        if !may_open || bytes.is_empty() || at < self.reserved.start {
            return None;
        }
        let window = Window::open(file, bytes);
        // Whatever the error is: from now on everything is written, and meets it if it lasts.
        self.may_open = Some(window.is_ok());
        window.ok()
    }
}

/// Whether the file system keeps what is written again where it was.
fn is_in_place(file: &fs::File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| IN_PLACE.contains(&system.f_type))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    /// A file that is removed when it is done with.
    struct Temporary {
        path: PathBuf,
        file: fs::File,
    }

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mainstem-mapped-{name}-{}", std::process::id()));
            let file =
                fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            Self { path, file }
        }

        /// As another process would read it.
        fn bytes(&self) -> Vec<u8> {
            fs::read(&self.path).unwrap()
        }

        fn reserve(&self, mapped: &mut Mapped, bytes: Range<u64>) {
            let len = bytes.end - bytes.start;
            rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), bytes.start, len).unwrap();
            mapped.reserve(bytes);
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            fs::remove_file(&self.path).unwrap();
        }
    }

    #[test]
    fn what_is_stored_is_read_and_synced() {
        let temporary = Temporary::new("read");
        let may_open = is_in_place(&temporary.file);
        let mut mapped = Mapped::default();
        temporary.reserve(&mut mapped, 0..65536);
        for number in 0..4 {
            mapped.append(&temporary.file, b"stem!", number * 5).unwrap();
            assert_eq!(mapped.window.is_some(), may_open && number > 0, "the second one opens it");
        }
        temporary.file.sync_data().unwrap();
        let bytes = temporary.bytes();
        assert_eq!(&bytes[..22], b"stem!stem!stem!stem!\0\0");
        assert_eq!(bytes.len(), 65536);
    }

    #[test]
    fn a_window_stays_within_what_is_reserved() {
        let temporary = Temporary::new("within");
        let mut mapped = Mapped::default();
        let append = |mapped: &mut Mapped, at| mapped.append(&temporary.file, &[7; 1000], at).unwrap();
        (0..3).for_each(|number| append(&mut mapped, number * 1000));
        assert!(mapped.window.is_none(), "nothing is reserved");
        temporary.reserve(&mut mapped, 3000..10_000);
        append(&mut mapped, 3000);
        if is_in_place(&temporary.file) {
            assert_eq!(mapped.window.as_ref().unwrap().bytes, 4000..10_000);
        }
        (4..10).for_each(|number| append(&mut mapped, number * 1000));
        append(&mut mapped, 10_000);
        mapped.cut(9999);
        temporary.file.set_len(9999).unwrap();
        assert!(mapped.window.is_none());
        append(&mut mapped, 9999);
        append(&mut mapped, 10_999);
        assert!(mapped.window.is_none());
        assert_eq!(temporary.bytes(), [7; 11_999]);
    }

    #[test]
    fn large_appends_open_none() {
        let temporary = Temporary::new("large");
        let mut mapped = Mapped::default();
        temporary.reserve(&mut mapped, 0..1 << 20);
        let mut at = 0;
        for _ in 0..5 {
            for bytes in [10, APPEND_MAX + 1] {
                mapped.append(&temporary.file, &vec![1; bytes], at).unwrap();
                at += bytes as u64;
            }
        }
        assert!(mapped.window.is_none());
        assert_eq!(temporary.bytes()[..at as usize], vec![1; at as usize]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Append(usize),
        Reserve(u64),
        Cut(u64),
        /// By another way: nothing forbids it.
        Write(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0_usize..700).prop_map(Step::Append),
            4 => (0_usize..40_000).prop_map(Step::Append),
            4 => (1_u64..200_000).prop_map(Step::Reserve),
            1 => (0_u64..20_000).prop_map(Step::Cut),
            1 => (0_usize..9000).prop_map(Step::Write),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn a_file_is_what_plain_writes_make_of_it(steps in prop::collection::vec(step(), 0..200)) {
            let temporary = Temporary::new("plain");
            let mut mapped = Mapped::default();
            let (mut plain, mut len) = (Vec::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                let at = plain.len() as u64;
                match step {
                    Step::Append(bytes) => {
                        let bytes = vec![number as u8 | 1; bytes];
                        mapped.append(&temporary.file, &bytes, at).unwrap();
                        plain.extend(bytes);
                    }
                    Step::Write(bytes) => {
                        let bytes = vec![number as u8 | 1; bytes];
                        temporary.file.write_all_at(&bytes, at).unwrap();
                        plain.extend(bytes);
                    }
                    Step::Reserve(bytes) => {
                        let from = at.max(len);
                        temporary.reserve(&mut mapped, from..from + bytes);
                        len = from + bytes;
                    }
                    Step::Cut(bytes) => {
                        plain.truncate(plain.len().saturating_sub(bytes as usize));
                        len = plain.len() as u64;
                        mapped.cut(len);
                        temporary.file.set_len(len).unwrap();
                    }
                }
                len = len.max(plain.len() as u64);
            }
            plain.resize(len as usize, 0);
            prop_assert!(temporary.bytes() == plain);
        }
    }
}
