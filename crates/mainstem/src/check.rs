//! `mainstem verify` and `mainstem repair`: offline check and repair of a data directory.
//!
//! Both lock the directory like the broker does, so that neither runs beside it. Checks may run beside each other.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use mainstem_disk::{Finding, Fs, RealFs, Report, Severity, repair, verify};
use serde_json::{Value, json};

use crate::cli::{RepairArgs, VerifyArgs};
use crate::security;

/// Exit status if there is damage.
const DAMAGED: u8 = 1;
/// Exit status if the directory cannot be checked or repaired.
const FAILED: u8 = 2;
/// Log of all topics. Without some of its records, the broker takes the logs of their topics for left over.
const CATALOGUE: &str = "kafka-catalogue";
/// Directory for damaged files, in the data directory.
const DAMAGED_DIR: &str = "damaged";

/// `mainstem verify`.
pub(crate) fn run_verify(args: &VerifyArgs) -> ExitCode {
    conclude("verify", || {
        let _lock = lock(&args.data, LockMode::Shared)?;
        let reports = check(&args.data)?;
        let text = if args.json { to_json(&reports) } else { to_text(&reports) };
        print(&text)?;
        Ok(reports.iter().all(|(_, report)| report.is_sound()))
    })
}

/// `mainstem repair`.
pub(crate) fn run_repair(args: &RepairArgs) -> ExitCode {
    conclude("repair", || {
        let _lock = lock(&args.data, LockMode::Exclusive)?;
        let reports = check(&args.data)?;
        print(&to_text(&reports))?;
        let affected: Vec<&PathBuf> =
            reports.iter().filter(|(_, report)| report.needs_repair()).map(|(store, _)| store).collect();
        if affected.is_empty() {
            print("nothing to repair\n")?;
            return Ok(true);
        }
        let lost = reports.iter().flat_map(|(_, report)| &report.findings);
        if lost.into_iter().any(|finding| finding.severity == Severity::Damage && finding.log == CATALOGUE) {
            print(&format!(
                "nothing was changed: log {CATALOGUE} is damaged, and the next start would remove the logs of topics \
                 that are missing in it; restore a copy of the whole directory\n"
            ))?;
            return Ok(false);
        }
        if args.dry_run {
            print("nothing was changed\n")?;
            return Ok(false);
        }
        let fs: Arc<dyn Fs> = Arc::new(RealFs);
        for store in affected {
            let saved = args.data.join(DAMAGED_DIR).join(store.strip_prefix(&args.data).unwrap_or(store));
            // A closed output does not end a repair halfway.
            let mut log = |step: String| drop(print(&format!("repair: {step}\n")));
            repair(&fs, store, &saved, &mut log).map_err(|error| explain(store, &error))?;
        }
        Ok(check(&args.data)?.iter().all(|(_, report)| !report.needs_repair()))
    })
}

fn conclude(command: &str, run: impl FnOnce() -> Result<bool, String>) -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(DAMAGED),
        Err(error) => {
            eprintln!("mainstem {command}: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn explain(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Who else may use a directory that is locked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LockMode {
    /// Other checks.
    Shared,
    /// Nobody.
    Exclusive,
}

/// Locks a data directory that nobody may use meanwhile.
///
/// # Errors
/// A message for the user: there is no data directory, or a process uses it.
pub(crate) fn lock_exclusively(dir: &Path) -> Result<Option<File>, String> {
    lock(dir, LockMode::Exclusive)
}

/// Locks the directory, as its owner does. `None` if it was never locked and is only read.
fn lock(dir: &Path, mode: LockMode) -> Result<Option<File>, String> {
    if !dir.join("log").is_dir() {
        return Err(format!("{}: not a data directory, there is no `log` in it", dir.display()));
    }
    security::refuse_incomplete(dir)?;
    let path = dir.join("lock");
    let lock = match (File::open(&path), mode) {
        (Err(error), LockMode::Shared) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        (Err(error), LockMode::Exclusive) if error.kind() == io::ErrorKind::NotFound => File::create(&path),
        (opened, _) => opened,
    };
    let lock = lock.map_err(|error| explain(&path, &error))?;
    let locked = match mode {
        LockMode::Shared => lock.try_lock_shared(),
        LockMode::Exclusive => lock.try_lock(),
    };
    match locked {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => {
            Err(format!("{}: a process is using it; stop the broker first", dir.display()))
        }
        Err(TryLockError::Error(error)) => Err(explain(&path, &error)),
    }
}

/// Checks every store of a data directory.
fn check(dir: &Path) -> Result<Vec<(PathBuf, Report)>, String> {
    let stores = stores(dir).map_err(|error| explain(dir, &error))?;
    if stores.is_empty() {
        return Err(format!("{}: no logs below it", dir.display()));
    }
    let check = |store: PathBuf| {
        let report = verify(&RealFs, &store).map_err(|error| explain(&store, &error))?;
        Ok((store, report))
    };
    stores.into_iter().map(check).collect()
}

/// Directories of stores: `log/<number>` and `security` of a broker, or `log` of embedded queues.
fn stores(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let root = dir.join("log");
    let mut numbers = Vec::new();
    for name in RealFs.list(&root)? {
        numbers.extend(name.parse::<u16>().ok());
    }
    numbers.sort_unstable();
    if numbers.is_empty() && root.join("checkpoint").exists() {
        return Ok(vec![root]);
    }
    let stores = numbers.into_iter().map(|number| root.join(number.to_string()));
    let security = Some(dir.join(security::STORE)).filter(|store| store.is_dir());
    Ok(stores.chain(security).collect())
}

fn print(text: &str) -> Result<(), String> {
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("stdout: {error}"))
}

fn to_text(reports: &[(PathBuf, Report)]) -> String {
    let mut lines = Vec::new();
    for (store, report) in reports {
        lines.extend(report.findings.iter().map(line));
        lines.push(format!(
            "{}: {} logs, {} segments, {} batches, {} bytes: {}\n",
            store.display(),
            report.logs,
            report.segments,
            report.batches,
            report.bytes,
            if report.is_sound() { "sound" } else { "damaged" }
        ));
    }
    lines.concat()
}

fn line(finding: &Finding) -> String {
    let position = finding.position.map(|position| format!(" at byte {position}")).unwrap_or_default();
    let offsets = finding.offsets.as_ref();
    let offsets = offsets.map(|offsets| format!(", offsets {}..{}", offsets.start, offsets.end));
    format!(
        "{}: {}: {}{position}{}: {} (repair: {})\n",
        finding.severity.name(),
        finding.kind.name(),
        finding.file.display(),
        offsets.unwrap_or_default(),
        finding.problem,
        finding.repair
    )
}

fn to_json(reports: &[(PathBuf, Report)]) -> String {
    let finding = |finding: &Finding| {
        json!({
            "severity": finding.severity.name(),
            "kind": finding.kind.name(),
            "log": finding.log,
            "file": finding.file.display().to_string(),
            "position": finding.position,
            "first_offset": finding.offsets.as_ref().map(|offsets| offsets.start),
            "next_offset": finding.offsets.as_ref().map(|offsets| offsets.end),
            "problem": finding.problem,
            "repair": finding.repair,
        })
    };
    let store = |(store, report): &(PathBuf, Report)| {
        json!({
            "store": store.display().to_string(),
            "sound": report.is_sound(),
            "logs": report.logs,
            "segments": report.segments,
            "batches": report.batches,
            "bytes": report.bytes,
            "findings": report.findings.iter().map(finding).collect::<Vec<Value>>(),
        })
    };
    let is_sound = reports.iter().all(|(_, report)| report.is_sound());
    let all = json!({ "sound": is_sound, "stores": reports.iter().map(store).collect::<Vec<Value>>() });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use mainstem_disk::{Committer, SegmentStore, Settings};
    use mainstem_log::{BatchBuilder, LogAdmin, LogReader, LogWriter, Options, Store, batches};

    use super::*;

    /// A data directory that is removed on drop.
    struct Data(PathBuf);

    impl Data {
        fn new(name: &str) -> Self {
            Self::with_log(name, "orders")
        }

        /// With one store and one log of three segments.
        fn with_log(name: &str, log: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("mainstem-check-{name}-{}", std::process::id()));
            let store = dir.join("log/0");
            let open = SegmentStore::open(Arc::new(RealFs), store, Settings::default(), Committer::Inline);
            let mut store = open.unwrap();
            let log = store.open(log, &Options { segment_bytes: 300, ..Options::default() }).unwrap();
            for _ in 0..9 {
                let mut builder = BatchBuilder::default();
                builder.push(1, None, Some(&[7; 60]));
                store.append(log, builder.finish()).unwrap();
                store.commit();
            }
            Self(dir)
        }

        fn verify(&self, json: bool) -> ExitCode {
            run_verify(&VerifyArgs { data: self.0.clone(), json })
        }

        fn repair(&self, dry_run: bool) -> ExitCode {
            run_repair(&RepairArgs { data: self.0.clone(), dry_run })
        }

        fn second_segment(&self) -> PathBuf {
            let mut logs = RealFs.list(&self.0.join("log/0")).unwrap();
            logs.retain(|name| Path::new(name).extension().is_some_and(|ending| ending == "log"));
            let log = self.0.join("log/0").join(&logs[0]);
            let mut segments: Vec<String> = RealFs.list(&log).unwrap();
            segments.retain(|file| file.ends_with(".segment"));
            segments.sort();
            assert!(segments.len() >= 3, "{segments:?}");
            log.join(&segments[1])
        }
    }

    impl Drop for Data {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn status(code: u8) -> String {
        format!("{:?}", ExitCode::from(code))
    }

    #[test]
    fn finds_and_repairs_damage() {
        let data = Data::new("damage");
        assert_eq!(format!("{:?}", data.verify(false)), status(0));
        assert_eq!(format!("{:?}", data.repair(false)), status(0));
        let path = data.second_segment();
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, &before[..before.len() - 10]).unwrap();
        assert_eq!(format!("{:?}", data.verify(true)), status(DAMAGED));
        assert_eq!(format!("{:?}", data.repair(true)), status(DAMAGED));
        assert_eq!(std::fs::read(&path).unwrap(), before[..before.len() - 10], "nothing was changed");
        assert_eq!(format!("{:?}", data.repair(false)), status(0));
        assert_eq!(format!("{:?}", data.verify(false)), status(0));
        let saved = data.0.join("damaged/log/0/orders.log").join(path.file_name().unwrap());
        assert_eq!(std::fs::read(saved).unwrap(), before[..before.len() - 10]);
        let reports = check(&data.0).unwrap();
        assert_eq!(reports[0].1.batches, 9, "one batch is lost, and another takes its offset");
        let store = SegmentStore::open(
            Arc::new(RealFs),
            data.0.join("log/0"),
            Settings::default(),
            Committer::Inline,
        );
        let mut store = store.unwrap();
        let log = store.open("orders", &Options::default()).unwrap();
        let (mut read, end) = (Vec::new(), store.status(log).end);
        store.read(log, 0..end, usize::MAX, &mut read).unwrap();
        let records: u32 = batches(&read).map(|batch| batch.header.records).sum();
        assert_eq!((records, end), (8, 9));
    }

    /// The broker would remove the logs of topics whose records are missing.
    #[test]
    fn does_not_accept_a_loss_in_the_catalogue() {
        let data = Data::with_log("catalogue", CATALOGUE);
        let path = data.second_segment();
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, &before[..before.len() - 10]).unwrap();
        assert_eq!(format!("{:?}", data.repair(false)), status(DAMAGED));
        assert_eq!(std::fs::read(&path).unwrap(), before[..before.len() - 10]);
        assert!(!data.0.join(DAMAGED_DIR).exists());
    }

    #[test]
    fn rebuilds_a_damaged_index() {
        let data = Data::new("index");
        let path = data.second_segment().with_extension("index");
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(format!("{:?}", data.verify(false)), status(0), "no record is missing");
        assert_eq!(format!("{:?}", data.repair(true)), status(DAMAGED));
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
        assert_eq!(format!("{:?}", data.repair(false)), status(0));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        let saved = data.0.join("damaged/log/0/orders.log").join(path.file_name().unwrap());
        assert_eq!(std::fs::read(saved).unwrap(), [7; 100]);
    }

    #[test]
    fn refuses_a_directory_in_use_and_one_without_logs() {
        let data = Data::new("locked");
        let owner = File::create(data.0.join("lock")).unwrap();
        owner.try_lock().unwrap();
        assert_eq!(format!("{:?}", data.verify(false)), status(FAILED));
        assert_eq!(format!("{:?}", data.repair(false)), status(FAILED));
        drop(owner);
        let other_check = File::open(data.0.join("lock")).unwrap();
        other_check.try_lock_shared().unwrap();
        assert_eq!(format!("{:?}", data.verify(false)), status(0));
        assert_eq!(format!("{:?}", data.repair(false)), status(FAILED));
        let args = VerifyArgs { data: data.0.join("log/0/orders.log"), json: false };
        assert_eq!(format!("{:?}", run_verify(&args)), status(FAILED));
    }
}
