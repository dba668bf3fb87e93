//! How a log gets the file of its next segment, and whether that file has the name of the segment.

use std::io;
use std::path::PathBuf;

use mainstem_log::{Error, Options};

use crate::deferred::Deferred;
use crate::disk::Disk;
use crate::group::Group;
use crate::log_dir::LogDir;
use crate::next_file::{Created, NextFile};
use crate::space::STEP_MIN;

/// The next segment of a log, from the request for its file until that file has its name.
#[derive(Default)]
pub(crate) struct Roller {
    next: NextFile,
    /// Base offset of the newest segment that may not have its name yet.
    unnamed: Option<u64>,
    /// Why it cannot get its name now.
    refusal: Option<Error>,
}

impl Roller {
    /// Requests the file if the newest segment has `bytes` bytes and is nearly full.
    #[inline]
    pub(crate) fn request_early(&mut self, disk: &mut Disk, dir: &LogDir, options: &Options, bytes: u64) {
        let is_nearly_full = bytes >= options.segment_bytes / 4 * 3;
        if is_nearly_full && disk.queue.has_thread() && disk.next_files.has_room() {
            self.request(disk, dir, options);
        }
    }

    fn request(&mut self, disk: &mut Disk, dir: &LogDir, options: &Options) {
        let reserve = STEP_MIN.min(options.segment_bytes);
        disk.group.deferred.files.extend(self.next.request(&disk.next_files, dir, reserve));
    }

    /// Whether the file can be taken without waiting for it. Requests it otherwise.
    pub(crate) fn is_ready(&mut self, disk: &mut Disk, dir: &LogDir, options: &Options) -> bool {
        self.request(disk, dir, options);
        // The inline committer is the caller itself.
        self.next.is_created() || !disk.queue.has_thread()
    }

    /// Takes the file, and waits for it if necessary. The group has to give it the name of the segment.
    pub(crate) fn take(
        &mut self,
        disk: &mut Disk,
        dir: &LogDir,
        options: &Options,
    ) -> io::Result<(PathBuf, Created)> {
        self.request(disk, dir, options);
        if !self.next.is_created() {
            let files = std::mem::take(&mut disk.group.deferred.files);
            let deferred = Deferred { files, ..Deferred::default() };
            disk.queue.submit(Group { deferred, ..Group::default() });
            drop(disk.queue.wait_for(Some(dir.id())));
        }
        self.next.take().unwrap_or_else(|| Err(io::Error::other("no file was created")))
    }

    /// Removes a file that was not used, on a clean shutdown. The committer must be idle.
    pub(crate) fn close(&mut self, disk: &Disk) {
        self.next.discard(&*disk.fs);
    }

    /// The segment with base offset `base` has a file without its name.
    pub(crate) fn start_segment(&mut self, base: u64) {
        self.unnamed = Some(base);
    }

    /// All segments up to the one with base offset `base` have their names.
    pub(crate) fn mark_named(&mut self, base: u64) {
        self.set_unnamed(self.unnamed.filter(|unnamed| *unnamed > base));
    }

    /// The newest segment without its name is this one.
    pub(crate) fn set_unnamed(&mut self, unnamed: Option<u64>) {
        self.unnamed = unnamed;
        self.refusal.take_if(|_| unnamed.is_none());
    }

    /// A segment cannot get its name now. A report about one that was named or removed since does not count.
    pub(crate) fn refuse(&mut self, error: Error) {
        self.refusal = Some(error).filter(|_| self.has_unnamed());
    }

    /// The log is broken: no segment gets its name any more.
    pub(crate) fn stop(&mut self) {
        self.refusal = None;
    }

    /// Why the log accepts no appends until its newest segment has its name.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Base offset of the newest segment that may not have its name yet.
    pub(crate) fn unnamed(&self) -> Option<u64> {
        self.unnamed
    }

    /// Whether a segment may not have its name yet. It is lost with the process.
    pub(crate) fn has_unnamed(&self) -> bool {
        self.unnamed.is_some()
    }
}
