//! Appends without a system call, through a window of the file that is mapped into memory.
//!
//! A store into a shared mapping lands in the page cache, where every reader and sync finds it and where it survives
//! the process. A window is opened by writing zeros to it: the kernel then has the pages in large folios, so that
//! touching them costs a fraction of a page fault each, and IO problems surface as errors. Opening takes as long as
//! fifty appends, so another thread opens the next window while the current one fills. An append that crosses the end
//! of a window is a normal write.
//!
//! A page that the kernel cannot provide ends the process with SIGBUS. Therefore a window never extends beyond the
//! reserved part of the file, is unmapped before the file is truncated, and is opened only on file systems that
//! overwrite in place and need no space to do so.

mod next_window;
mod window;

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::FsWord;

use next_window::NextWindow;
use window::{WINDOW_BYTES, Window};

/// Bytes to keep reserved after the written end of a file, so that the next window can be opened in time.
pub(crate) const MAPPED_AHEAD_BYTES: u64 = 2 * WINDOW_BYTES;
/// Larger appends use a normal write, for which the kernel allocates large folios by itself.
const APPEND_MAX: usize = 64 * 1024;
/// `statfs` types of ext4, XFS and tmpfs.
const IN_PLACE: [FsWord; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

/// Mapping state of a file.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    window: Option<Window>,
    /// The window after it, opened in the background.
    next: NextWindow,
    /// Bytes reserved through this handle.
    reserved: Range<u64>,
    /// End of the last small append. Two consecutive ones open a window.
    written_to: Option<u64>,
    /// Whether windows may be opened; `None` until checked. Requires a file system that overwrites in place. Cleared
    /// when opening a window fails.
    may_open: Option<bool>,
}

impl Mapped {
    /// Records a reserved range.
    pub(crate) fn reserve(&mut self, bytes: Range<u64>) {
        if self.reserved.contains(&bytes.start) || self.reserved.end == bytes.start {
            self.reserved.end = self.reserved.end.max(bytes.end);
        } else {
            self.reserved = bytes;
        }
    }

    /// Maps the whole reserved file as one window, if the file system supports it.
    ///
    /// # Errors
    /// IO errors.
    pub(crate) fn open_whole(&mut self, file: &Arc<fs::File>, len: u64) -> io::Result<()> {
        if is_in_place(file) {
            self.window = Some(Window::open(file, 0..len)?);
        }
        // No further windows are opened.
        self.may_open = Some(false);
        Ok(())
    }

    /// Unmaps what is necessary before a truncation to `len`.
    pub(crate) fn truncate(&mut self, len: u64) {
        self.next.take();
        if self.window.as_ref().is_some_and(|window| window.bytes.end > len) {
            self.window = None;
        }
        self.reserved.end = self.reserved.end.min(len);
    }

    /// Cancels a pending window before a direct write that ends at position `end`.
    pub(crate) fn before_direct_write(&mut self, end: u64) {
        if self.next.overlaps(end) {
            self.next.take();
        }
    }

    /// Writes `bytes` at position `at`, from which on the file contains only zeros.
    ///
    /// # Errors
    /// IO errors. Some of the bytes may be written.
    #[inline]
    pub(crate) fn append(&mut self, file: &Arc<fs::File>, bytes: &[u8], at: u64) -> io::Result<()> {
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
        self.write(file, bytes, at)
    }

    /// Writes bytes outside the window with a system call and moves on to the next window.
    #[cold]
    fn write(&mut self, file: &Arc<fs::File>, bytes: &[u8], at: u64) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        let opened = if self.next.overlaps(end) { self.next.take() } else { None };
        file.write_all_at(bytes, at)?;
        if bytes.len() <= APPEND_MAX {
            if self.written_to == Some(at) {
                self.advance(file, end, opened);
            }
            self.written_to = Some(end);
        }
        Ok(())
    }

    /// Moves to the window that contains position `at` and requests the one after it.
    fn advance(&mut self, file: &Arc<fs::File>, at: u64, opened: Option<io::Result<Window>>) {
        let bytes = self.bytes_from(at);
        let may_open = *self.may_open.get_or_insert_with(|| is_in_place(file));
        if !may_open || bytes.is_empty() || at < self.reserved.start {
            self.window = None;
            return;
        }
        let opened = match opened {
            Some(Ok(window)) if !window.bytes.contains(&at) => None,
            opened => opened,
        };
        let window = opened.unwrap_or_else(|| Window::open(file, bytes));
        // After any error all appends are normal writes, which report the error if it persists.
        self.may_open = Some(window.is_ok());
        // This thread unmaps the previous window. Unmapping it on another thread would require a TLB shootdown
        // interrupt to this CPU, with that thread spinning until it is acknowledged.
        self.window = window.ok();
        let Some(window) = &self.window else { return };
        let next_bytes = self.bytes_from(window.bytes.end);
        if !next_bytes.is_empty() {
            self.next.request(file, next_bytes);
        }
    }

    /// Range of a window that starts at position `at`.
    fn bytes_from(&self, at: u64) -> Range<u64> {
        at..(at + 1).next_multiple_of(WINDOW_BYTES).min(self.reserved.end)
    }
}

/// Whether the file system overwrites in place.
fn is_in_place(file: &fs::File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| IN_PLACE.contains(&system.f_type))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    /// A file that is removed on drop.
    struct Temporary {
        path: PathBuf,
        file: Arc<fs::File>,
    }

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mainstem-mapped-{name}-{}", std::process::id()));
            let file =
                fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            Self { path, file: Arc::new(file) }
        }

        /// Contents as another process would read them.
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
    fn stored_bytes_are_visible_to_reads() {
        let temporary = Temporary::new("read");
        let may_open = is_in_place(&temporary.file);
        let mut mapped = Mapped::default();
        temporary.reserve(&mut mapped, 0..65536);
        for number in 0..4 {
            mapped.append(&temporary.file, b"stem!", number * 5).unwrap();
            assert_eq!(mapped.window.is_some(), may_open && number > 0, "the second append opens a window");
        }
        temporary.file.sync_data().unwrap();
        let bytes = temporary.bytes();
        assert_eq!(&bytes[..22], b"stem!stem!stem!stem!\0\0");
        assert_eq!(bytes.len(), 65536);
    }

    #[test]
    fn window_stays_within_the_reservation() {
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
        mapped.truncate(9999);
        temporary.file.set_len(9999).unwrap();
        assert!(mapped.window.is_none());
        append(&mut mapped, 9999);
        append(&mut mapped, 10_999);
        assert!(mapped.window.is_none());
        assert_eq!(temporary.bytes(), [7; 11_999]);
    }

    #[test]
    fn next_window_opens_in_time() {
        let temporary = Temporary::new("next");
        let mut mapped = Mapped::default();
        temporary.reserve(&mut mapped, 0..4 * WINDOW_BYTES);
        let mut at = 0;
        let mut append = |mapped: &mut Mapped| {
            mapped.append(&temporary.file, &[at as u8 | 1; 1000], at).unwrap();
            at += 1000;
            at
        };
        append(&mut mapped);
        append(&mut mapped);
        for number in 1..3 {
            while append(&mut mapped) <= number * WINDOW_BYTES - 1000 {}
            if !is_in_place(&temporary.file) {
                continue;
            }
            mapped.next.wait();
            append(&mut mapped);
            let window = mapped.window.as_ref().unwrap();
            assert_eq!(window.bytes, number * WINDOW_BYTES..(number + 1) * WINDOW_BYTES);
        }
        let bytes = temporary.bytes();
        assert!(
            bytes[..at as usize]
                .chunks(1000)
                .zip(0_u64..)
                .all(|(chunk, number)| { chunk.iter().all(|byte| *byte == (number * 1000) as u8 | 1) })
        );
        assert!(bytes[at as usize..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn pending_window_never_overwrites_later_writes() {
        let temporary = Temporary::new("race");
        for round in 0..200 {
            let mut mapped = Mapped::default();
            mapped.truncate(0);
            temporary.file.set_len(0).unwrap();
            temporary.reserve(&mut mapped, 0..2 * WINDOW_BYTES);
            (0..3).for_each(|number| mapped.append(&temporary.file, &[1; 100], number * 100).unwrap());
            // By an append with a gap, by a direct write, or through a second handle.
            let later = [2; 100];
            match round % 3 {
                0 => mapped.append(&temporary.file, &later, WINDOW_BYTES + 50).unwrap(),
                1 => {
                    mapped.before_direct_write(WINDOW_BYTES + 150);
                    temporary.file.write_all_at(&later, WINDOW_BYTES + 50).unwrap();
                }
                _ => {
                    drop(mapped);
                    temporary.file.write_all_at(&later, WINDOW_BYTES + 50).unwrap();
                }
            }
            // Requests run in order: once this one is open, the earlier one is done.
            let other = Temporary::new("race-other");
            let mut next = NextWindow::default();
            next.request(&other.file, 0..4096);
            next.wait();
            let from = WINDOW_BYTES as usize + 50;
            assert_eq!(temporary.bytes()[from..from + 100], later, "round {round}");
        }
    }

    #[test]
    fn large_appends_open_no_window() {
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
        Truncate(u64),
        /// A direct write.
        Write(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => (0_usize..700).prop_map(Step::Append),
            4 => (0_usize..40_000).prop_map(Step::Append),
            4 => (1_u64..200_000).prop_map(Step::Reserve),
            1 => (0_u64..20_000).prop_map(Step::Truncate),
            1 => (0_usize..9000).prop_map(Step::Write),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        #[test]
        fn matches_plain_writes(steps in prop::collection::vec(step(), 0..200)) {
            let temporary = Temporary::new("expected");
            let mut mapped = Mapped::default();
            let (mut expected, mut len) = (Vec::new(), 0);
            for (number, step) in steps.into_iter().enumerate() {
                let at = expected.len() as u64;
                match step {
                    Step::Append(bytes) => {
                        let bytes = vec![number as u8 | 1; bytes];
                        mapped.append(&temporary.file, &bytes, at).unwrap();
                        expected.extend(bytes);
                    }
                    Step::Write(bytes) => {
                        let bytes = vec![number as u8 | 1; bytes];
                        mapped.before_direct_write(at + bytes.len() as u64);
                        temporary.file.write_all_at(&bytes, at).unwrap();
                        expected.extend(bytes);
                    }
                    Step::Reserve(bytes) => {
                        let from = at.max(len);
                        temporary.reserve(&mut mapped, from..from + bytes);
                        len = from + bytes;
                    }
                    Step::Truncate(bytes) => {
                        expected.truncate(expected.len().saturating_sub(bytes as usize));
                        len = expected.len() as u64;
                        mapped.truncate(len);
                        temporary.file.set_len(len).unwrap();
                    }
                }
                len = len.max(expected.len() as u64);
            }
            expected.resize(len as usize, 0);
            prop_assert!(temporary.bytes() == expected);
        }
    }
}
