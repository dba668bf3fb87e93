//! Random lives of a store: what is done with it, how it ends, and whether the next one finds what it must.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mainstem_disk::Settings;
use mainstem_disk::fault::{Dice, FaultFs, Plan};
use mainstem_log::contract::batch;
use mainstem_log::{Completion, Durability, Error, LogId, Options, State, Store};

use crate::model::{End, Log};
use crate::notes::Noted;

/// Opens the store that is tested.
pub(crate) type Make = fn(&FaultFs, &Settings) -> Result<Box<dyn Store>, Error>;

/// Logs there are: the last of them asks for no more than the operating system's word.
const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "os"];
/// Most lives of one run.
const LIVES_MAX: u64 = 7;
const STEPS_MAX: u64 = 60;
/// Longest time for a commit.
const PATIENCE: Duration = Duration::from_secs(20);

/// What runs have come to, all together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) lives: u64,
    /// Lives that ended in the middle of a change to the file system.
    pub(crate) crashes: u64,
    pub(crate) power_losses: u64,
    /// Lives in which a call failed or space ran out.
    pub(crate) faults: u64,
    /// Batches whose append completed.
    pub(crate) completed: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.crashes += other.crashes;
        self.power_losses += other.power_losses;
        self.faults += other.faults;
        self.completed += other.completed;
    }
}

/// What is amiss in a life, besides its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// One call fails.
    Failing,
    /// There is little space.
    Narrow,
}

/// When a commit completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commits {
    /// Before it returns.
    AtOnce,
    /// Later, by a thread. What happens is not decided by the seed alone then.
    InTheirTime,
}

/// The store has ended in the middle of something.
struct Crashed;

struct Run {
    fs: FaultFs,
    make: Make,
    commits: Commits,
    dice: Dice,
    logs: BTreeMap<&'static str, Log>,
    notes: BTreeMap<&'static str, Noted>,
    settings: Settings,
    /// Batches made so far.
    salt: u64,
    tally: Tally,
}

/// One life of the store.
struct Life<'a> {
    run: &'a mut Run,
    store: Box<dyn Store>,
    ids: BTreeMap<&'static str, LogId>,
    trouble: Trouble,
}

/// Lives several lives, all decided by `seed`. Their calls are noted by `fs`, if it notes any.
///
/// # Panics
/// If the store breaks a promise.
pub(crate) fn run(seed: u64, fs: &FaultFs, make: Make, commits: Commits) -> Tally {
    let mut dice = Dice::new(seed);
    let settings = settings(&mut dice);
    fs.note(|| format!("seed {seed}: {settings:?}"));
    let fs = fs.clone();
    let (logs, notes, tally) = (BTreeMap::new(), BTreeMap::new(), Tally::default());
    let mut run = Run { fs, make, commits, dice, logs, notes, settings, salt: 0, tally };
    for _ in 0..=run.dice.below(LIVES_MAX) {
        run.live();
    }
    // In the end nothing fails, and everything is looked at.
    let life = run.begin(Trouble::None).unwrap_or_else(|_| panic!("nothing has ended"));
    drop(life);
    run.tally
}

pub(crate) fn settings(dice: &mut Dice) -> Settings {
    let one_of = |dice: &mut Dice, sizes: &[u64]| sizes[dice.below(sizes.len() as u64) as usize];
    Settings {
        open_files: one_of(dice, &[2, 4, 100]) as usize,
        cache_bytes: one_of(dice, &[0, 4096, 1 << 20]) as usize,
        tail_bytes: one_of(dice, &[0, 1024, 1 << 20]) as usize,
        journal_bytes: one_of(dice, &[0, 8192, 65536, 1 << 20]),
        checkpoint_bytes: one_of(dice, &[2048, 32768, 1 << 20]),
        indexes: one_of(dice, &[1, 3, 100]) as usize,
        retention_check_ms: 0,
        mapped_writes: true,
        ..Settings::default()
    }
}

fn options(name: &str, dice: &mut Dice) -> Options {
    let segment_bytes = [512, 2000, 10_000, 1 << 20][dice.below(4) as usize];
    Options { durability: durability(name), segment_bytes, ..Options::default() }
}

fn durability(name: &str) -> Durability {
    if name == "os" { Durability::Os } else { Durability::Fsync }
}

impl Run {
    /// Begins a life, does things, and ends it.
    fn live(&mut self) {
        self.tally.lives += 1;
        let trouble = match self.dice.below(10) {
            0..=6 => Trouble::None,
            7 | 8 => Trouble::Failing,
            _ => Trouble::Narrow,
        };
        self.tally.faults += u64::from(trouble != Trouble::None);
        let plan = self.plan(trouble);
        let begins_safely = self.dice.chance(70);
        if !begins_safely {
            self.fs.set(plan);
        }
        let store = match self.begin(trouble) {
            Ok(mut life) => {
                if begins_safely {
                    life.run.fs.set(plan);
                }
                for _ in 0..life.run.dice.below(STEPS_MAX) {
                    if life.step().is_err() {
                        break;
                    }
                }
                Some(life.store)
            }
            Err(Crashed) => None,
        };
        if trouble == Trouble::Failing {
            self.logs.values_mut().for_each(Log::may_lose_unsynced);
        }
        self.end(store);
    }

    fn plan(&mut self, trouble: Trouble) -> Plan {
        let mut plan = Plan::default();
        if self.dice.chance(75) {
            plan.crash_at = Some(1 + self.dice.below(100));
        }
        let nth = Some(1 + self.dice.below(40));
        match trouble {
            Trouble::None => {}
            Trouble::Narrow => {
                let used: u64 = self.fs.files().iter().map(|(_, len)| len).sum();
                plan.space_bytes = Some(used + self.dice.below(40_000));
            }
            Trouble::Failing => match self.dice.below(4) {
                0 => plan.failing_write = nth,
                1 => plan.failing_sync = nth,
                2 => plan.failing_read = nth,
                _ => plan.failing_name = nth,
            },
        }
        plan
    }

    /// Opens the store and every log it must have, and looks at what they hold.
    fn begin(&mut self, trouble: Trouble) -> Result<Life<'_>, Crashed> {
        let opened = (self.make)(&self.fs, &self.settings);
        let store = match opened {
            Ok(store) => store,
            Err(_) if self.fs.has_crashed() => return Err(Crashed),
            Err(error) => {
                assert_ne!(trouble, Trouble::None, "the store does not open: {error:?}");
                self.fs = self.fs.killed(self.dice.roll());
                self.fs.note(|| "the store has not opened, once more".to_owned());
                (self.make)(&self.fs, &self.settings).expect("nothing fails any more")
            }
        };
        let mut life = Life { run: self, store, ids: BTreeMap::new(), trouble };
        let found = life.store.names();
        for name in &found {
            assert!(life.run.logs.contains_key(name.as_str()), "{name} was removed, or never made");
        }
        for (name, log) in &life.run.logs {
            let is_there = found.iter().any(|found| found == name);
            assert!(is_there || !log.must_be_there(), "{name} is gone: {log:?}");
        }
        for name in NAMES {
            if life.run.logs.contains_key(name) {
                life.open(name)?;
            }
        }
        Ok(life)
    }

    /// Ends what is left of a life, one way or the other.
    fn end(&mut self, store: Option<Box<dyn Store>>) {
        self.tally.crashes += u64::from(self.fs.has_crashed());
        let how = if self.dice.chance(60) { End::PowerLost } else { End::Killed };
        let in_order = self.dice.chance(30);
        if in_order {
            // Nothing goes wrong while it closes.
            if !self.fs.has_crashed() {
                self.fs.set(Plan::default());
            }
            drop(store);
        }
        let seed = self.dice.roll();
        self.fs.note(|| format!("-- {how:?}, in order: {in_order}, seed {seed}"));
        self.fs = match how {
            End::Killed => self.fs.killed(seed),
            End::PowerLost => self.fs.survivor(seed),
        };
        self.tally.power_losses += u64::from(how == End::PowerLost);
        for log in self.logs.values_mut() {
            log.hurt(how);
        }
    }
}

impl Life<'_> {
    /// Ends the life if the file system has.
    fn going_on(&self) -> Result<(), Crashed> {
        if self.run.fs.has_crashed() { Err(Crashed) } else { Ok(()) }
    }

    /// Whether something may fail, and for good reason.
    fn may_fail(&self, error: &Error) -> bool {
        match self.trouble {
            Trouble::None => false,
            Trouble::Failing => true,
            Trouble::Narrow => *error == Error::Full,
        }
    }

    fn step(&mut self) -> Result<(), Crashed> {
        let name = NAMES[self.run.dice.below(NAMES.len() as u64) as usize];
        let Some(log) = self.ids.get(name).copied() else { return self.open(name) };
        self.notice(name, log);
        match self.run.dice.below(100) {
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
                let next = self.store.tend(self.run.salt);
                self.run.fs.note(|| format!("tend, again at {next:?}"));
                self.complete();
                self.going_on()?;
            }
            _ => self.relieve()?,
        }
        self.compare(name);
        Ok(())
    }

    fn open(&mut self, name: &'static str) -> Result<(), Crashed> {
        let options = options(name, &mut self.run.dice);
        self.run.logs.entry(name).or_insert_with(|| Log::new(durability(name)));
        let outcome = self.store.open(name, &options);
        self.run.fs.note(|| format!("open {name}: {outcome:?}"));
        self.going_on()?;
        match outcome {
            Ok(log) => match self.ids.insert(name, log) {
                Some(before) => assert_eq!(before, log, "opened twice is opened once"),
                None => self.look(name, log)?,
            },
            Err(error) => assert!(self.may_fail(&error), "{name} does not open: {error:?}"),
        }
        Ok(())
    }

    /// Compares all of a log that has just been recovered.
    fn look(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let status = self.store.status(log);
        let known = self.run.logs.get_mut(name).expect("what is open is known");
        if known.is_half_removed() {
            assert_eq!((status.start, status.end), (0, 0), "{name} was removed: {known:?}");
            *known = Log::new(known.durability);
        }
        let mut found = Vec::new();
        if let Err(error) = read_all(&mut *self.store, log, &mut found) {
            self.going_on()?;
            assert!(self.may_not_read(&error), "{name} cannot be read: {error:?} {:?}", self.run.logs[name]);
            // Another look, now that nothing fails.
            found.clear();
            let again = read_all(&mut *self.store, log, &mut found);
            self.going_on()?;
            again.expect("it fails once");
        }
        let known = self.run.logs.get_mut(name).expect("what is open is known");
        let was_killed = known.was_killed();
        known.recovered(status, &found);
        known.opened();
        self.look_at_notes(name, log, status.end, was_killed)
    }

    fn look_at_notes(
        &mut self,
        name: &'static str,
        log: LogId,
        end: u64,
        was_killed: bool,
    ) -> Result<(), Crashed> {
        let found = self.store.notes(log);
        self.run.fs.note(|| format!("notes of {name}: {found:?}"));
        self.going_on()?;
        let known = self.run.notes.entry(name).or_default();
        match found {
            Ok(found) => known.found(&found, end, was_killed && self.trouble == Trouble::None),
            Err(error) => {
                known.give_up();
                assert!(self.may_fail(&error), "{name}: {error:?}");
            }
        }
        Ok(())
    }

    fn note(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        for _ in 0..=self.run.dice.below(5) {
            self.run.salt += 1;
            let len = 8 + self.run.dice.below(60) as usize;
            let mut note = self.run.salt.to_be_bytes().to_vec();
            note.resize(len, 7);
            let is_kept = self.store.note(log, &note);
            let run = &mut *self.run;
            run.fs.note(|| format!("note beside {name}, {len} bytes: {is_kept}"));
            let end = self.store.status(log).end;
            run.notes.entry(name).or_default().note(end, note, is_kept && !run.fs.has_crashed());
            self.going_on()?;
        }
        Ok(())
    }

    fn append(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        for _ in 0..=self.run.dice.below(4) {
            let run = &mut *self.run;
            run.salt += 1;
            let value_bytes = match run.dice.below(20) {
                0 => run.dice.below(40_000),
                1..=5 => run.dice.below(3000),
                _ => run.dice.below(200),
            };
            let records = 1 + run.dice.below(4) as u32;
            let time = (run.salt * 10 + run.dice.below(50)).cast_signed();
            let bytes = batch(run.salt, records, value_bytes as usize, time);
            let outcome = self.store.append(log, &bytes);
            run.fs.note(|| format!("append to {name} {} bytes: {outcome:?}", bytes.len()));
            let known = run.logs.get_mut(name).expect("what is open is known");
            known.append(&bytes, outcome.as_ref().ok().copied());
            self.going_on()?;
            if let Err(error) = outcome {
                assert!(self.may_fail(&error), "{name}: {error:?}");
                self.complete();
                self.notice(name, log);
                break;
            }
        }
        Ok(())
    }

    /// Appends, and has what the log does not sync by itself synced for once.
    fn append_synced(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        self.append(name, log)?;
        self.store.sync_next(log);
        self.run.fs.note(|| format!("sync {name} next"));
        self.run.logs.get_mut(name).expect("what is open is known").sync_next();
        self.commit()
    }

    fn commit(&mut self) -> Result<(), Crashed> {
        self.store.commit();
        self.run.fs.note(|| "commit".to_owned());
        self.complete();
        if self.run.commits == Commits::AtOnce || self.run.dice.chance(50) {
            self.settle()?;
        }
        self.going_on()
    }

    /// Waits until everything committed is completed.
    fn settle(&mut self) -> Result<(), Crashed> {
        let since = Instant::now();
        loop {
            self.complete();
            self.going_on()?;
            let due = self.run.logs.iter().find(|(_, log)| log.is_due());
            let Some((name, log)) = due else { return Ok(()) };
            let may_wait = self.run.commits == Commits::InTheirTime && since.elapsed() < PATIENCE;
            assert!(may_wait, "{name}: a commit completes everything: {log:?}");
            std::thread::yield_now();
        }
    }

    /// Takes completions: also after a crash, since what was said before it holds.
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
                assert!(self.may_fail(error), "{name}: {error:?}");
            }
            let known = self.run.logs.get_mut(name).expect("what is open is known");
            known.complete(completion);
            self.run.tally.completed += u64::from(outcome.is_ok());
        }
    }

    fn read(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let plain = self.run.logs[name].plain();
        let start = plain.start + self.run.dice.below(plain.end - plain.start + 1);
        let end = start + self.run.dice.below(40);
        let max_bytes = self.run.dice.below(20_000) as usize;
        let mut read = Vec::new();
        let outcome = self.store.read(log, start..end, max_bytes, &mut read);
        self.going_on()?;
        if self.run.logs[name].is_unsure() {
            return Ok(());
        }
        match outcome {
            Ok(()) => {
                let expected = plain.read(start..end, max_bytes).expect("it is in range");
                // What comes before a read error is given.
                let is_part =
                    self.trouble == Trouble::Failing && !read.is_empty() && expected.starts_with(&read);
                assert!(read == expected || is_part, "{name}: {start}..{end}, {max_bytes} bytes");
            }
            Err(error) => assert!(self.may_not_read(&error), "{name}: {start}..{end}: {error:?}"),
        }
        Ok(())
    }

    fn may_not_read(&self, error: &Error) -> bool {
        self.trouble == Trouble::Failing && matches!(error, Error::Corrupt { .. })
    }

    fn find_time(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let time = self.run.dice.below(self.run.salt * 10 + 100).cast_signed();
        let found = self.store.find_time(log, time);
        self.going_on()?;
        let known = &self.run.logs[name];
        match found {
            _ if known.is_unsure() => {}
            Ok(found) => assert_eq!(found, known.plain().find_time(time), "{name} at {time}"),
            Err(error) => assert!(self.may_not_read(&error), "{name} at {time}: {error:?}"),
        }
        Ok(())
    }

    fn truncate_prefix(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let run = &mut *self.run;
        let known = run.logs.get_mut(name).expect("what is open is known");
        let offset = known.start() + run.dice.below(known.end() - known.start() + 2);
        let outcome = self.store.truncate_prefix(log, offset);
        run.fs.note(|| format!("truncate_prefix of {name} to {offset}: {outcome:?}"));
        // It starts there, whatever the store says.
        let before = known.start();
        known.truncate_prefix(offset);
        self.complete();
        self.going_on()?;
        let status = self.store.status(log);
        let known = self.run.logs.get_mut(name).expect("what is open is known");
        if status.state != State::Ready {
            known.failed(before, status);
        } else if outcome.is_ok() {
            known.starts_again_from(status.start_after_crash);
        }
        if let Err(error) = outcome {
            assert_ne!(self.trouble, Trouble::None, "{name}: {error:?}");
        }
        Ok(())
    }

    fn truncate_suffix(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let run = &mut *self.run;
        let known = run.logs.get_mut(name).expect("what is open is known");
        let bounds: Vec<u64> = known.plain().bounds().collect();
        let offset = match bounds.len() {
            0 => known.end(),
            // Rarely much.
            len if run.dice.chance(80) => bounds[len - 1 - run.dice.below(len.min(4) as u64) as usize],
            len => bounds[run.dice.below(len as u64) as usize] + run.dice.below(2),
        };
        let can_be = known.can_end_at(offset);
        let outcome = self.store.truncate_suffix(log, offset);
        run.fs.note(|| format!("truncate_suffix of {name} to {offset}: {outcome:?}"));
        // What has completed did so before.
        self.complete();
        let known = self.run.logs.get_mut(name).expect("what is open is known");
        if outcome.is_err() && can_be {
            self.run.notes.entry(name).or_default().give_up();
        }
        match &outcome {
            Ok(()) => {
                if offset < known.end() {
                    self.run.notes.entry(name).or_default().end_at(offset);
                }
                known.truncate_suffix(offset);
            }
            Err(Error::OutOfRange) if !can_be => return Ok(()),
            Err(_) => known.half_truncated(offset),
        }
        assert!(outcome.is_err() || can_be || known.is_unsure(), "{name} cannot end at {offset}: {known:?}");
        self.going_on()?;
        if let Err(error) = outcome {
            assert_ne!(self.trouble, Trouble::None, "{name}: {error:?}");
        }
        Ok(())
    }

    fn remove(&mut self, name: &'static str, log: LogId) -> Result<(), Crashed> {
        let outcome = self.store.remove(log);
        self.run.fs.note(|| format!("remove {name}: {outcome:?}"));
        self.ids.remove(name);
        self.run.notes.entry(name).or_default().remove();
        if let Some(known) = self.run.logs.get_mut(name) {
            known.half_removed();
        }
        self.going_on()?;
        assert_eq!(outcome, Ok(()), "{name}");
        // The log is gone in any case, until the store begins anew.
        assert!(!self.store.names().contains(&name.to_owned()));
        if self.run.dice.chance(50) {
            self.commit()?;
            if self.run.commits == Commits::AtOnce && self.trouble == Trouble::None {
                self.run.logs.remove(name);
            }
        }
        Ok(())
    }

    /// There is space again, and no call fails: a log that was only full takes appends.
    fn relieve(&mut self) -> Result<(), Crashed> {
        if self.trouble != Trouble::Narrow {
            return Ok(());
        }
        self.store.commit();
        self.settle()?;
        self.run.fs.set(Plan::default());
        self.run.fs.note(|| "there is space again".to_owned());
        for (name, log) in self.ids.clone() {
            if self.run.logs[name].is_unsure() {
                continue;
            }
            let bytes = batch(0, 1, 10, 7);
            let appended = self.store.append(log, &bytes).expect("there is space");
            let known = self.run.logs.get_mut(name).expect("what is open is known");
            known.append(&bytes, Some(appended));
        }
        self.store.commit();
        self.settle()?;
        for (name, log) in &self.ids {
            if !self.run.logs[name].is_unsure() {
                assert_eq!(self.store.status(*log).state, State::Ready, "{name}");
            }
        }
        if !self.ids.keys().any(|name| self.run.logs[name].is_unsure()) {
            self.trouble = Trouble::None;
        }
        Ok(())
    }

    /// Takes note that a log has failed, which it may with whatever is synced.
    fn notice(&mut self, name: &'static str, log: LogId) {
        self.complete();
        let status = self.store.status(log);
        if self.run.fs.has_crashed() {
            return;
        }
        if status.state != State::Ready {
            assert_ne!(self.trouble, Trouble::None, "{name}: {status:?}");
            let known = self.run.logs.get_mut(name).expect("what is open is known");
            if !known.is_unsure() {
                known.take_back(status);
            }
        }
    }

    fn compare(&mut self, name: &'static str) {
        let Some(log) = self.ids.get(name).copied() else { return };
        self.notice(name, log);
        let status = self.store.status(log);
        if self.run.fs.has_crashed() {
            return;
        }
        let known = &self.run.logs[name];
        if !known.is_unsure() {
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
        at = last.expect("below the end there is something").header.end_offset();
    }
    Ok(())
}
