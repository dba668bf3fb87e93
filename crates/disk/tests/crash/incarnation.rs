//! Random incarnations of a store: each runs random steps, ends in a crash or shutdown, and the next one checks what it
//! recovers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use mainstem_disk::fault::{FaultFs, Plan, Rng};
use mainstem_disk::{Settings, verify};
use mainstem_log::contract::batch;
use mainstem_log::{Completion, Durability, Error, LogId, Options, State, Store};

use crate::model::{End, Log};
use crate::notes::NotesModel;

/// Opens the store under test.
pub(crate) type OpenStore = fn(&FaultFs, &Settings) -> Result<Box<dyn Store>, Error>;

/// Names of the logs. The last one has `Durability::Os`.
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "os"];
/// Maximum number of incarnations per run.
const INCARNATIONS_MAX: u64 = 7;
const STEPS_MAX: u64 = 60;
/// Maximum wait for a commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(20);

/// Totals over all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) incarnations: u64,
    /// Incarnations that ended during a change to the file system.
    pub(crate) crashes: u64,
    pub(crate) power_losses: u64,
    /// Incarnations with a failing call or limited space.
    pub(crate) faults: u64,
    /// Completed appends.
    pub(crate) completed: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.incarnations += other.incarnations;
        self.crashes += other.crashes;
        self.power_losses += other.power_losses;
        self.faults += other.faults;
        self.completed += other.completed;
    }
}

/// Fault injected during an incarnation, besides its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// One call fails.
    FailingCall,
    /// Little space is left.
    LowSpace,
}

/// How commits complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitMode {
    /// Before `commit` returns.
    Inline,
    /// Later, by a thread. The seed alone then does not determine the run.
    Threaded,
}

/// The simulated crash happened.
struct Crashed;

struct Run {
    fs: FaultFs,
    open_store: OpenStore,
    commit_mode: CommitMode,
    rng: Rng,
    logs: BTreeMap<&'static str, Log>,
    notes: BTreeMap<&'static str, NotesModel>,
    settings: Settings,
    /// Number of batches built so far.
    salt: u64,
    tally: Tally,
}

/// One incarnation of the store.
struct Incarnation<'a> {
    run: &'a mut Run,
    store: Box<dyn Store>,
    ids: BTreeMap<&'static str, LogId>,
    fault: Fault,
}

/// Runs several incarnations, determined by `seed`. `fs` records their calls if tracing is on.
///
/// # Panics
/// If the store violates a guarantee.
pub(crate) fn run(seed: u64, fs: &FaultFs, open_store: OpenStore, commit_mode: CommitMode) -> Tally {
    let mut rng = Rng::new(seed);
    let settings = settings(&mut rng);
    fs.note(|| format!("seed {seed}: {settings:?}"));
    let fs = fs.clone();
    let (logs, notes, tally) = (BTreeMap::new(), BTreeMap::new(), Tally::default());
    let mut run = Run { fs, open_store, commit_mode, rng, logs, notes, settings, salt: 0, tally };
    for _ in 0..=run.rng.below(INCARNATIONS_MAX) {
        run.run_incarnation();
    }
    // Finally, open without faults and check everything.
    let incarnation = run.open(Fault::None).unwrap_or_else(|_| panic!("no crash is planned"));
    drop(incarnation);
    run.tally
}

pub(crate) fn settings(rng: &mut Rng) -> Settings {
    let one_of = |rng: &mut Rng, sizes: &[u64]| sizes[rng.below(sizes.len() as u64) as usize];
    Settings {
        open_files: one_of(rng, &[2, 4, 100]) as usize,
        cache_bytes: one_of(rng, &[0, 4096, 1 << 20]) as usize,
        tail_bytes: one_of(rng, &[0, 1024, 1 << 20]) as usize,
        journal_bytes: one_of(rng, &[0, 8192, 65536, 1 << 20]),
        checkpoint_bytes: one_of(rng, &[2048, 32768, 1 << 20]),
        indexes: one_of(rng, &[1, 3, 100]) as usize,
        retention_check_ms: 0,
        mapped_writes: true,
        ..Settings::default()
    }
}

fn options(name: &str, rng: &mut Rng) -> Options {
    let segment_bytes = [512, 2000, 10_000, 1 << 20][rng.below(4) as usize];
    let segment_ms = rng.chance(30).then_some(1000);
    Options { durability: durability(name), segment_bytes, segment_ms, ..Options::default() }
}

fn durability(name: &str) -> Durability {
    if name == "os" { Durability::Os } else { Durability::Fsync }
}

impl Run {
    /// Starts an incarnation, runs random steps, and ends it.
    fn run_incarnation(&mut self) {
        self.tally.incarnations += 1;
        let fault = match self.rng.below(10) {
            0..=6 => Fault::None,
            7 | 8 => Fault::FailingCall,
            _ => Fault::LowSpace,
        };
        self.tally.faults += u64::from(fault != Fault::None);
        let plan = self.plan(fault);
        let opens_without_faults = self.rng.chance(70);
        if !opens_without_faults {
            self.fs.set(plan);
        }
        let store = match self.open(fault) {
            Ok(mut incarnation) => {
                if opens_without_faults {
                    incarnation.run.fs.set(plan);
                }
                for _ in 0..incarnation.run.rng.below(STEPS_MAX) {
                    if incarnation.step().is_err() {
                        break;
                    }
                }
                Some(incarnation.store)
            }
            Err(Crashed) => None,
        };
        if fault == Fault::FailingCall {
            self.logs.values_mut().for_each(Log::may_lose_unsynced);
        }
        self.end(store);
    }

    fn plan(&mut self, fault: Fault) -> Plan {
        let mut plan = Plan::default();
        if self.rng.chance(75) {
            plan.crash_at = Some(1 + self.rng.below(100));
        }
        let nth = Some(1 + self.rng.below(40));
        match fault {
            Fault::None => {}
            Fault::LowSpace => {
                let used: u64 = self.fs.files().iter().map(|(_, len)| len).sum();
                plan.space_bytes = Some(used + self.rng.below(40_000));
            }
            Fault::FailingCall => match self.rng.below(4) {
                0 => plan.failing_write = nth,
                1 => plan.failing_sync = nth,
                2 => plan.failing_read = nth,
                _ => plan.failing_name = nth,
            },
        }
        plan
    }

    /// Opens the store and all logs, and checks what was recovered.
    fn open(&mut self, fault: Fault) -> Result<Incarnation<'_>, Crashed> {
        let opened = (self.open_store)(&self.fs, &self.settings);
        let store = match opened {
            Ok(store) => store,
            Err(_) if self.fs.has_crashed() => return Err(Crashed),
            Err(error) => {
                assert_ne!(fault, Fault::None, "the store does not open: {error:?}");
                self.fs = self.fs.killed(self.rng.roll());
                self.fs.note(|| "the store did not open; retry".to_owned());
                (self.open_store)(&self.fs, &self.settings).expect("no fault is planned")
            }
        };
        let mut incarnation = Incarnation { run: self, store, ids: BTreeMap::new(), fault };
        let found = incarnation.store.names();
        for name in &found {
            assert!(incarnation.run.logs.contains_key(name.as_str()), "{name} was removed or never created");
        }
        for (name, log) in &incarnation.run.logs {
            let is_there = found.iter().any(|found| found == name);
            assert!(
                is_there || !log.must_be_there(incarnation.run.commit_mode),
                "{name} is missing: {log:?}"
            );
        }
        for name in NAMES {
            if incarnation.run.logs.contains_key(name) {
                incarnation.open(name)?;
            }
        }
        Ok(incarnation)
    }

    /// Ends an incarnation by a kill or a power failure, possibly after a clean shutdown.
    fn end(&mut self, store: Option<Box<dyn Store>>) {
        self.tally.crashes += u64::from(self.fs.has_crashed());
        let how = if self.rng.chance(60) { End::PowerLost } else { End::Killed };
        let is_clean = self.rng.chance(30);
        if is_clean {
            // No fault is injected during a clean shutdown.
            if !self.fs.has_crashed() {
                self.fs.set(Plan::default());
            }
            drop(store);
        }
        let seed = self.rng.roll();
        self.fs.note(|| format!("-- {how:?}, clean: {is_clean}, seed {seed}"));
        self.fs = match how {
            End::Killed => self.fs.killed(seed),
            End::PowerLost => self.fs.survivor(seed),
        };
        // What a crash leaves behind is not damage.
        let report = verify(&self.fs, Path::new("/")).expect("a file system without faults");
        assert!(report.is_sound(), "{:?}", report.findings);
        self.tally.power_losses += u64::from(how == End::PowerLost);
        for log in self.logs.values_mut() {
            log.end_incarnation(how);
        }
        if how == End::PowerLost {
            self.notes.values_mut().for_each(NotesModel::lose_power);
        }
    }
}

impl Incarnation<'_> {
    /// Ends the incarnation if the file system has crashed.
    fn check_crash(&self) -> Result<(), Crashed> {
        if self.run.fs.has_crashed() { Err(Crashed) } else { Ok(()) }
    }

    /// Whether the injected fault explains an error.
    fn is_expected(&self, error: &Error) -> bool {
        match self.fault {
            Fault::None => false,
            Fault::FailingCall => true,
            Fault::LowSpace => *error == Error::Full,
        }
    }

    fn step(&mut self) -> Result<(), Crashed> {
        let name = NAMES[self.run.rng.below(NAMES.len() as u64) as usize];
        let Some(log) = self.ids.get(name).copied() else { return self.open(name) };
        self.check_failed(name, log);
        match self.run.rng.below(100) {
            0..40 => self.append(name, log)?,
            40..45 => self.append_synced(name, log)?,
            45..60 => self.commit()?,
            60..65 => self.note(name, log)?,
            65..72 => self.read(name, log)?,
            72..76 => self.find_time(name, log)?,
            76..82 => self.truncate_prefix(name, log)?,
            82..88 => self.truncate_suffix(name, log)?,
            88..90 => self.remove(name, log)?,
            90..93 => self.open(name)?,
            93..97 => {
                // The time may go back. At most times, some segments are old enough to be closed.
                let unix_ms = self.run.rng.below(1 << 44);
                let next = self.store.maintain(unix_ms).due_ms;
                self.run.fs.note(|| format!("maintain, due at {next:?}"));
                self.complete();
                self.check_crash()?;
            }
            _ => self.free_space()?,
        }
        self.compare(name);
        Ok(())
    }

    fn open(&mut self, name: &'static str) -> Result<(), Crashed> {
        let options = options(name, &mut self.run.rng);
        self.run.logs.entry(name).or_insert_with(|| Log::new(durability(name)));
        let outcome = self.store.open(name, &options);
        self.run.fs.note(|| format!("open {name}: {outcome:?}"));
        self.check_crash()?;
        match outcome {
            Ok(log) => match self.ids.insert(name, log) {
                Some(before) => assert_eq!(before, log, "reopening returns the same log"),
                None => self.check_recovered(name, log)?,
            },
            Err(error) => assert!(self.is_expected(&error), "{name} does not open: {error:?}"),
        }
        Ok(())
    }

    /// Compares a freshly recovered log with the model.
    fn check_recovered(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let status = self.store.status(log);
        let known = self.run.logs.get_mut(name).expect("an open log is in the model");
        if known.is_removal_pending() {
            assert_eq!((status.start, status.end), (0, 0), "{name} was removed: {known:?}");
            *known = Log::new(known.durability);
        }
        let mut found = Vec::new();
        if let Err(error) = read_all(&mut *self.store, log, &mut found) {
            self.check_crash()?;
            assert!(
                self.is_expected_read_error(&error),
                "{name} cannot be read: {error:?} {:?}",
                self.run.logs[name]
            );
            // Retry: the planned failure happens once.
            found.clear();
            let again = read_all(&mut *self.store, log, &mut found);
            self.check_crash()?;
            again.expect("the failure happens once");
        }
        let known = self.run.logs.get_mut(name).expect("an open log is in the model");
        let was_killed = known.was_killed();
        known.recovered(status, &found);
        known.opened();
        self.check_notes(name, log, status.end, was_killed)
    }

    fn check_notes(
        &mut self,
        name: &'static str,
        log: LogId,
        end: u64,
        was_killed: bool,
    ) -> Result<(), Crashed> {
        let found = self.store.notes(log);
        self.run.fs.note(|| format!("notes of {name}: {found:?}"));
        self.check_crash()?;
        let known = self.run.notes.entry(name).or_default();
        match found {
            Ok(found) => known.found(&found, end, was_killed && self.fault == Fault::None),
            Err(error) => {
                known.set_uncertain();
                assert!(self.is_expected(&error), "{name}: {error:?}");
            }
        }
        Ok(())
    }

    fn note(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        for _ in 0..=self.run.rng.below(5) {
            self.run.salt += 1;
            let len = 8 + self.run.rng.below(60) as usize;
            let mut note = self.run.salt.to_be_bytes().to_vec();
            note.resize(len, 7);
            let is_stored = self.store.note(log, &note);
            let run = &mut *self.run;
            run.fs.note(|| format!("note beside {name}, {len} bytes: {is_stored}"));
            let end = self.store.status(log).end;
            run.notes.entry(name).or_default().note(end, note, is_stored && !run.fs.has_crashed());
            self.check_crash()?;
        }
        Ok(())
    }

    fn append(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        for _ in 0..=self.run.rng.below(4) {
            let run = &mut *self.run;
            run.salt += 1;
            let value_bytes = match run.rng.below(20) {
                0 => run.rng.below(40_000),
                1..=5 => run.rng.below(3000),
                _ => run.rng.below(200),
            };
            let records = 1 + run.rng.below(4) as u32;
            let time = (run.salt * 10 + run.rng.below(50)).cast_signed();
            let bytes = batch(run.salt, records, value_bytes as usize, time);
            let outcome = self.store.append(log, &bytes);
            run.fs.note(|| format!("append to {name} {} bytes: {outcome:?}", bytes.len()));
            let known = run.logs.get_mut(name).expect("an open log is in the model");
            known.append(&bytes, outcome.as_ref().ok().copied());
            self.check_crash()?;
            if let Err(error) = outcome {
                assert!(self.is_expected(&error), "{name}: {error:?}");
                self.complete();
                self.check_failed(name, log);
                break;
            }
        }
        Ok(())
    }

    /// Appends and forces a sync of the next commit.
    fn append_synced(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        self.append(name, log)?;
        self.store.force_sync(log);
        self.run.fs.note(|| format!("sync {name} next"));
        self.run.logs.get_mut(name).expect("an open log is in the model").force_sync();
        self.commit()
    }

    fn commit(&mut self) -> Result<(), Crashed> {
        self.store.commit();
        self.run.fs.note(|| "commit".to_owned());
        self.complete();
        if self.run.commit_mode == CommitMode::Inline || self.run.rng.chance(50) {
            self.settle()?;
            self.check_removals();
        }
        self.check_crash()
    }

    /// Removed segments of which the store says so must not reappear.
    fn check_removals(&mut self) {
        for (name, log) in &self.ids {
            let status = self.store.status(*log);
            let known = self.run.logs.get_mut(name).expect("an open log is in the model");
            if status.state == State::Ready && !known.is_uncertain() && !self.run.fs.has_crashed() {
                known.set_start_after_crash(status.start_after_crash);
            }
        }
    }

    /// Waits until every committed append is completed.
    fn settle(&mut self) -> Result<(), Crashed> {
        let since = Instant::now();
        loop {
            self.complete();
            self.check_crash()?;
            let due = self.run.logs.iter().find(|(_, log)| log.has_pending());
            let Some((name, log)) = due else { return Ok(()) };
            let may_wait = self.run.commit_mode == CommitMode::Threaded && since.elapsed() < COMMIT_TIMEOUT;
            assert!(may_wait, "{name}: a commit completes everything: {log:?}");
            std::thread::yield_now();
        }
    }

    /// Drains completions, also after a crash: acknowledgments from before it are binding.
    fn complete(&mut self) {
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        self.run.fs.note(|| format!("{completions:?}"));
        for completion in &completions {
            let Completion { log, outcome, .. } = completion;
            let name = self.ids.iter().find(|(_, known)| *known == log).map(|(name, _)| *name);
            let Some(name) = name else { continue };
            if let Err(error) = outcome
                && !self.run.fs.has_crashed()
            {
                assert!(self.is_expected(error), "{name}: {error:?}");
            }
            let known = self.run.logs.get_mut(name).expect("an open log is in the model");
            known.complete(completion);
            self.run.tally.completed += u64::from(outcome.is_ok());
        }
    }

    fn read(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let reference = self.run.logs[name].reference();
        let start = reference.start + self.run.rng.below(reference.end - reference.start + 1);
        let end = start + self.run.rng.below(40);
        let max_bytes = self.run.rng.below(20_000) as usize;
        let mut read = Vec::new();
        let outcome = self.store.read(log, start..end, max_bytes, &mut read);
        self.check_crash()?;
        if self.run.logs[name].is_uncertain() {
            return Ok(());
        }
        match outcome {
            Ok(()) => {
                let expected = reference.read(start..end, max_bytes).expect("in range");
                // Batches before a read error are returned.
                let is_prefix =
                    self.fault == Fault::FailingCall && !read.is_empty() && expected.starts_with(&read);
                assert!(read == expected || is_prefix, "{name}: {start}..{end}, {max_bytes} bytes");
            }
            Err(error) => assert!(self.is_expected_read_error(&error), "{name}: {start}..{end}: {error:?}"),
        }
        Ok(())
    }

    fn is_expected_read_error(&self, error: &Error) -> bool {
        self.fault == Fault::FailingCall && matches!(error, Error::Corrupt { .. })
    }

    fn find_time(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let time = self.run.rng.below(self.run.salt * 10 + 100).cast_signed();
        let found = self.store.find_time(log, time);
        self.check_crash()?;
        let known = &self.run.logs[name];
        match found {
            _ if known.is_uncertain() => {}
            Ok(found) => assert_eq!(found, known.reference().find_time(time), "{name} at {time}"),
            Err(error) => assert!(self.is_expected_read_error(&error), "{name} at {time}: {error:?}"),
        }
        Ok(())
    }

    fn truncate_prefix(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let run = &mut *self.run;
        let known = run.logs.get_mut(name).expect("an open log is in the model");
        let offset = known.start() + run.rng.below(known.end() - known.start() + 2);
        let outcome = self.store.truncate_prefix(log, offset);
        run.fs.note(|| format!("truncate_prefix of {name} to {offset}: {outcome:?}"));
        // The log starts there even on an error.
        let before = known.start();
        known.truncate_prefix(offset);
        self.complete();
        self.check_crash()?;
        let status = self.store.status(log);
        let known = self.run.logs.get_mut(name).expect("an open log is in the model");
        if status.state != State::Ready {
            known.failed(before, status);
        } else if outcome.is_ok() {
            known.set_start_after_crash(status.start_after_crash);
        }
        if let Err(error) = outcome {
            assert_ne!(self.fault, Fault::None, "{name}: {error:?}");
        }
        Ok(())
    }

    fn truncate_suffix(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let run = &mut *self.run;
        let known = run.logs.get_mut(name).expect("an open log is in the model");
        let bounds: Vec<u64> = known.reference().bounds().collect();
        let offset = match bounds.len() {
            0 => known.end(),
            // Mostly close to the end.
            len if run.rng.chance(80) => bounds[len - 1 - run.rng.below(len.min(4) as u64) as usize],
            len => bounds[run.rng.below(len as u64) as usize] + run.rng.below(2),
        };
        let is_allowed = known.can_end_at(offset);
        let outcome = self.store.truncate_suffix(log, offset);
        run.fs.note(|| format!("truncate_suffix of {name} to {offset}: {outcome:?}"));
        // Completions drained here precede the truncation.
        self.complete();
        let known = self.run.logs.get_mut(name).expect("an open log is in the model");
        if outcome.is_err() && is_allowed {
            self.run.notes.entry(name).or_default().set_uncertain();
        }
        match &outcome {
            Ok(()) => {
                if offset < known.end() {
                    self.run.notes.entry(name).or_default().end_at(offset);
                }
                known.truncate_suffix(offset);
            }
            Err(Error::OutOfRange) if !is_allowed => return Ok(()),
            Err(_) => known.truncation_failed(offset),
        }
        assert!(
            outcome.is_err() || is_allowed || known.is_uncertain(),
            "{name} cannot end at {offset}: {known:?}"
        );
        self.check_crash()?;
        if let Err(error) = outcome {
            // Without space, the store may have dropped appends of this turn that the model still has.
            let is_shorter = self.fault == Fault::LowSpace && error == Error::OutOfRange;
            assert!(is_shorter || self.is_expected(&error), "{name}: {error:?}");
        }
        Ok(())
    }

    fn remove(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let outcome = self.store.remove(log);
        self.run.fs.note(|| format!("remove {name}: {outcome:?}"));
        self.ids.remove(name);
        self.run.notes.entry(name).or_default().remove();
        if let Some(known) = self.run.logs.get_mut(name) {
            known.mark_removed();
        }
        self.check_crash()?;
        assert_eq!(outcome, Ok(()), "{name}");
        // The log is gone until the next restart, whatever the outcome.
        assert!(!self.store.names().contains(&name.to_owned()));
        if self.run.rng.chance(50) {
            self.commit()?;
            if self.run.commit_mode == CommitMode::Inline && self.fault == Fault::None {
                self.run.logs.remove(name);
            }
        }
        Ok(())
    }

    /// Ends the low-space fault: logs that were only full must accept appends.
    fn free_space(&mut self) -> Result<(), Crashed> {
        if self.fault != Fault::LowSpace {
            return Ok(());
        }
        self.store.commit();
        self.settle()?;
        self.run.fs.set(Plan::default());
        self.run.fs.note(|| "space is available again".to_owned());
        for (name, log) in self.ids.clone() {
            if self.run.logs[name].is_uncertain() {
                continue;
            }
            let bytes = batch(0, 1, 10, 7);
            let appended = self.store.append(log, &bytes).expect("there is space");
            let known = self.run.logs.get_mut(name).expect("an open log is in the model");
            known.append(&bytes, Some(appended));
        }
        self.store.commit();
        self.settle()?;
        for (name, log) in &self.ids {
            if !self.run.logs[name].is_uncertain() {
                assert_eq!(self.store.status(*log).state, State::Ready, "{name}");
            }
        }
        if !self.ids.keys().any(|name| self.run.logs[name].is_uncertain()) {
            self.fault = Fault::None;
        }
        Ok(())
    }

    /// Updates the model if a log has failed, which any sync may cause.
    fn check_failed(&mut self, name: &'static str, log: LogId) {
        self.complete();
        let status = self.store.status(log);
        if self.run.fs.has_crashed() {
            return;
        }
        if status.state != State::Ready {
            assert_ne!(self.fault, Fault::None, "{name}: {status:?}");
            let known = self.run.logs.get_mut(name).expect("an open log is in the model");
            if !known.is_uncertain() {
                known.roll_back(status);
            }
        }
    }

    fn compare(&mut self, name: &'static str) {
        let Some(log) = self.ids.get(name).copied() else { return };
        self.check_failed(name, log);
        let status = self.store.status(log);
        if self.run.fs.has_crashed() {
            return;
        }
        let known = &self.run.logs[name];
        if !known.is_uncertain() {
            assert_eq!((status.start, status.end), (known.start(), known.end()), "{name}: {known:?}");
            assert!(status.committed <= status.end && status.committed >= status.start, "{name}: {status:?}");
        }
    }
}

fn read_all(store: &mut dyn Store, log: LogId, into: &mut Vec<u8>) -> Result<(), Error> {
    let mut at = store.status(log).start;
    let end = store.status(log).end;
    while at < end {
        let before = into.len();
        store.read(log, at..end, 5000, into)?;
        let last = mainstem_log::batches(&into[before..]).last();
        at = last.expect("there is a batch below the end").header.end_offset();
    }
    Ok(())
}
