//! Appending to a file without a system call: through a window of it that is mapped into memory.
//!
//! What is stored into a shared mapping is in the page cache, where every reader and every sync finds it, and where
//! the end of the process leaves it. A window is full of zeros when it opens, which are written: the kernel then has the
//! pages, in large pieces, so that touching them costs a fraction of a fault each, and an error is met as an error. That
//! takes as long as fifty appends, so the next window is opened by another thread while this one fills. What reaches
//! over a window's end is written.
//!
//! A page that the kernel cannot provide ends the process (SIGBUS). So a window never reaches behind what was
//! reserved in the file, is gone before the file is cut off, and opens only on file systems that write in place, which
//! need no space for writing again what they have.

mod ahead;
mod window;

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::FsWord;

use ahead::Ahead;
use window::{WINDOW_BYTES, Window};

/// What is to be reserved of a file behind the end of what is written, for windows to open in time, bytes.
pub(crate) const MAPPED_AHEAD_BYTES: u64 = 2 * WINDOW_BYTES;
/// A larger append is written: the kernel gives it large pages by itself.
const APPEND_MAX: usize = 64 * 1024;
/// What `statfs` calls ext4, XFS and tmpfs.
const IN_PLACE: [FsWord; 3] = [0xEF53, 0x5846_5342, 0x0102_1994];

/// The part of a file that is mapped, and what is known of the rest.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    window: Option<Window>,
    /// The one behind it.
    ahead: Ahead,
    /// Bytes that were reserved, through this very file.
    reserved: Range<u64>,
    /// Where the last small append ended. A window is opened where two follow one another.
    written_to: Option<u64>,
    /// Whether windows may be opened, once that is known: on a file system that writes in place, until one fails to open.
    may_open: Option<bool>,
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

    /// Lets all of a file that has been reserved be one window, if there may be one.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn open_whole(&mut self, file: &Arc<fs::File>, len: u64) -> io::Result<()> {
        if is_in_place(file) {
            self.window = Some(Window::open(file, 0..len)?);
        }
        // There is never another.
        self.may_open = Some(false);
        Ok(())
    }

    /// To be called before the file is cut off.
    pub(crate) fn cut(&mut self, len: u64) {
        self.ahead.take();
        if self.window.as_ref().is_some_and(|window| window.bytes.end > len) {
            self.window = None;
        }
        self.reserved.end = self.reserved.end.min(len);
    }

    /// To be called before something is written up to byte offset `end` by another way.
    pub(crate) fn make_way(&mut self, end: u64) {
        if self.ahead.concerns(end) {
            self.ahead.take();
        }
    }

    /// Writes `bytes` at byte offset `at`, behind which there are only zeros.
    ///
    /// # Errors
    /// What the system says. Some of the bytes may be written all the same.
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

    /// Writes what does not lie in the window, and opens the one behind it.
    #[cold]
    fn write(&mut self, file: &Arc<fs::File>, bytes: &[u8], at: u64) -> io::Result<()> {
        let end = at + bytes.len() as u64;
        let opened = if self.ahead.concerns(end) { self.ahead.take() } else { None };
        file.write_all_at(bytes, at)?;
        if bytes.len() <= APPEND_MAX {
            if self.written_to == Some(at) {
                self.go_on(file, end, opened);
            }
            self.written_to = Some(end);
        }
        Ok(())
    }

    /// Lets the window be the one that has byte offset `at` in it, if there may be one, and has the next one opened.
    fn go_on(&mut self, file: &Arc<fs::File>, at: u64, opened: Option<io::Result<Window>>) {
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
        // Whatever the error is: from now on everything is written, and meets it if it lasts.
        self.may_open = Some(window.is_ok());
        // The one before is closed by whoever stored into it: another thread would have to interrupt this one for that, and
        // spin until its CPU answers.
        self.window = window.ok();
        let Some(window) = &self.window else { return };
        let next = self.bytes_from(window.bytes.end);
        if !next.is_empty() {
            self.ahead.order(file, next);
        }
    }

    /// What a window shows that begins at byte offset `at`.
    fn bytes_from(&self, at: u64) -> Range<u64> {
        at..(at + 1).next_multiple_of(WINDOW_BYTES).min(self.reserved.end)
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
        file: Arc<fs::File>,
    }

    impl Temporary {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mainstem-mapped-{name}-{}", std::process::id()));
            let file =
                fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            Self { path, file: Arc::new(file) }
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
    fn the_next_window_is_there_before_it_is_needed() {
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
            mapped.ahead.wait();
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
    fn nothing_is_overwritten_by_a_window_that_was_not_waited_for() {
        let temporary = Temporary::new("race");
        for round in 0..200 {
            let mut mapped = Mapped::default();
            mapped.cut(0);
            temporary.file.set_len(0).unwrap();
            temporary.reserve(&mut mapped, 0..2 * WINDOW_BYTES);
            (0..3).for_each(|number| mapped.append(&temporary.file, &[1; 100], number * 100).unwrap());
            // By way of an append that leaps, by another way, or by a second owner of the file.
            let behind = [2; 100];
            match round % 3 {
                0 => mapped.append(&temporary.file, &behind, WINDOW_BYTES + 50).unwrap(),
                1 => {
                    mapped.make_way(WINDOW_BYTES + 150);
                    temporary.file.write_all_at(&behind, WINDOW_BYTES + 50).unwrap();
                }
                _ => {
                    drop(mapped);
                    temporary.file.write_all_at(&behind, WINDOW_BYTES + 50).unwrap();
                }
            }
            // When one has been opened that was ordered later, that one is over.
            let other = Temporary::new("race-other");
            let mut ahead = Ahead::default();
            ahead.order(&other.file, 0..4096);
            ahead.wait();
            let from = WINDOW_BYTES as usize + 50;
            assert_eq!(temporary.bytes()[from..from + 100], behind, "round {round}");
        }
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
                        mapped.make_way(at + bytes.len() as u64);
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
