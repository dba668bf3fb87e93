//! `mainstem consume`: partitions by name, or those that a group deals out.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_log::Record;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::cluster::{Cluster, Partition};
use super::member::{Member, Standing};
use super::output::{Format, Output};
use super::reader::{Isolation, PartitionReader, Until};
use crate::cli::{ConsumeArgs, Position};
use crate::tool::failure::Failure;

/// How often a group hears how far this member has read.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// Prints records until count, ends, time or interrupt end it.
///
/// # Errors
/// If a broker refuses, or time runs out.
pub(crate) fn run(args: &ConsumeArgs) -> Result<(), Failure> {
    let format = match &args.format {
        Some(text) => Format::parse(text)?,
        None if args.json => Format::Json,
        None => Format::value(),
    };
    let interrupted = watch_signals().map_err(|error| Failure::new(format!("signals: {error}")))?;
    let cluster = Cluster::connect(&args.kafka)?;
    let mut consumer = Consumer {
        args,
        cluster,
        output: Output::new(format),
        left: args.count,
        interrupted,
        deadline: args.timeout.map(|timeout| Instant::now() + timeout),
    };
    let outcome = match &args.group {
        Some(group) => consumer.as_member(group)?,
        None => consumer.by_name()?,
    };
    if outcome == Over::TimedOut { Err(Failure::timed_out()) } else { Ok(()) }
}

/// What the first signal sets, so that a member can take its leave. The second ends the process at once.
fn watch_signals() -> std::io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Why it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// All that was asked for has been printed, or nobody wants more.
    Done,
    TimedOut,
}

struct Consumer<'a> {
    args: &'a ConsumeArgs,
    cluster: Cluster,
    output: Output,
    /// Records still to print.
    left: Option<u64>,
    interrupted: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Consumer<'_> {
    /// Reads the partitions that were named, or all of the topics.
    fn by_name(&mut self) -> Result<Over, Failure> {
        let mut partitions: Vec<Partition> = Vec::new();
        for name in &self.args.topic {
            let topic = self.cluster.topic(name)?;
            if let Some(missing) =
                self.args.partition.iter().find(|index| !topic.partitions.contains_key(*index))
            {
                return Err(Failure::new(format!("topic {name} has no partition {missing}")));
            }
            let is_wanted =
                |index: &&i32| self.args.partition.is_empty() || self.args.partition.contains(*index);
            partitions.extend(topic.partitions.keys().filter(is_wanted).map(|index| (name.clone(), *index)));
        }
        let position = self.args.offset.unwrap_or(Position::Beginning);
        if position == Position::Stored {
            return Err(Failure::new("only a group has stored offsets: -G names one"));
        }
        let next = self.cluster.offsets(&partitions, position)?;
        let until = match self.args.until {
            Some(position) => Until::Offsets(self.cluster.offsets(&partitions, position)?),
            None => self.until_empty(),
        };
        let mut reader = PartitionReader::new(self.isolation(), until, next);
        loop {
            if let Some(over) = self.round(&mut reader)? {
                return Ok(over);
            }
        }
    }

    /// Reads what a group deals out.
    fn as_member(&mut self, group: &str) -> Result<Over, Failure> {
        for topic in &self.args.topic {
            self.cluster.topic(topic)?;
        }
        let mut member = Member::new(&mut self.cluster, group, &self.args.topic)?;
        let mut reader = self.join(&mut member)?;
        let mut committed = reader.next().clone();
        let mut commit_due = Instant::now() + COMMIT_INTERVAL;
        let over = loop {
            if let Some(over) = self.round(&mut reader)? {
                break over;
            }
            let standing = member.keep_alive(&mut self.cluster)?;
            if standing == Standing::Rejoin || Instant::now() >= commit_due {
                self.commit(&mut member, &reader, &mut committed)?;
                commit_due = Instant::now() + COMMIT_INTERVAL;
            }
            if standing == Standing::Rejoin {
                reader = self.join(&mut member)?;
                committed.clone_from(reader.next());
            }
        };
        self.commit(&mut member, &reader, &mut committed)?;
        member.leave(&mut self.cluster)?;
        Ok(over)
    }

    /// Joins and begins where the group left off.
    fn join(&mut self, member: &mut Member) -> Result<PartitionReader, Failure> {
        let partitions = member.join(&mut self.cluster)?;
        let mut next = BTreeMap::new();
        if !partitions.is_empty() {
            for topic in &self.args.topic {
                self.cluster.topic(topic)?;
            }
            let position = self.args.offset.unwrap_or(Position::Stored);
            next = self.cluster.offsets(&partitions, position)?;
            next.extend(member.stored(&mut self.cluster, &partitions)?);
        }
        Ok(PartitionReader::new(self.isolation(), self.until_empty(), next))
    }

    /// Commits what has been printed since the last time.
    fn commit(
        &mut self,
        member: &mut Member,
        reader: &PartitionReader,
        committed: &mut BTreeMap<Partition, i64>,
    ) -> Result<(), Failure> {
        let is_new = |(partition, offset): &(&Partition, &i64)| committed.get(*partition) != Some(*offset);
        let new: BTreeMap<Partition, i64> = reader
            .next()
            .iter()
            .filter(is_new)
            .map(|(partition, offset)| (partition.clone(), *offset))
            .collect();
        member.commit(&mut self.cluster, &new)?;
        committed.extend(new);
        Ok(())
    }

    /// One fetch. `Some` if that was the last.
    fn round(&mut self, reader: &mut PartitionReader) -> Result<Option<Over>, Failure> {
        if reader.next().is_empty() {
            // A member that has nothing to do yet: it waits for its turn.
            std::thread::sleep(Duration::from_millis(100));
        }
        let Self { output, left, .. } = self;
        let mut sink = |partition: &Partition, record: &Record<'_>| {
            output.print(partition, record)?;
            if let Some(left) = left {
                *left -= 1;
            }
            Ok(if *left == Some(0) || output.is_gone() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        };
        let flow = reader.fetch(&mut self.cluster, &mut sink)?;
        self.output.flush()?;
        let is_done = flow.is_break() || self.output.is_gone() || reader.is_over();
        if is_done || self.interrupted.load(Ordering::Relaxed) {
            return Ok(Some(Over::Done));
        }
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        Ok(is_late.then_some(Over::TimedOut))
    }

    fn isolation(&self) -> Isolation {
        if self.args.uncommitted { Isolation::Uncommitted } else { Isolation::Committed }
    }

    fn until_empty(&self) -> Until {
        if self.args.exit { Until::Empty } else { Until::Never }
    }
}
