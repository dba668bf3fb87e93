//! `mainstem consume`: prints the records of given partitions, or of those assigned by a consumer group.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_log::Record;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::cluster::{Cluster, Partition};
use super::member::{Member, Membership};
use super::output::{Format, Output};
use super::reader::{Isolation, PartitionReader, Until};
use crate::cli::{ConsumeArgs, Position};
use crate::tool::failure::Failure;

/// Interval of offset commits.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// Prints records until `-c`, `-u`, `-e` or `-W` is reached, or a signal arrives.
///
/// # Errors
/// If a broker returns an error, or `-W` expires.
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
        remaining: args.count,
        interrupted,
        deadline: args.timeout.map(|timeout| Instant::now() + timeout),
    };
    let outcome = match &args.group {
        Some(group) => consumer.consume_as_member(group)?,
        None => consumer.consume_partitions()?,
    };
    if outcome == EndReason::TimedOut { Err(Failure::timed_out()) } else { Ok(()) }
}

/// Returns a flag that the first signal sets, so that a member can leave its group. The second signal ends the process.
fn watch_signals() -> std::io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// Everything requested has been printed, or standard output is closed.
    Done,
    TimedOut,
}

struct Consumer<'a> {
    args: &'a ConsumeArgs,
    cluster: Cluster,
    output: Output,
    /// Records left to print, with `-c`.
    remaining: Option<u64>,
    interrupted: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Consumer<'_> {
    /// Reads the given partitions, or all partitions of the topics.
    fn consume_partitions(&mut self) -> Result<EndReason, Failure> {
        let mut partitions: Vec<Partition> = Vec::new();
        for name in &self.args.topic {
            let topic = self.cluster.topic(name)?;
            if let Some(missing) =
                self.args.partition.iter().find(|index| !topic.partitions.contains_key(*index))
            {
                return Err(Failure::new(format!("topic {name} has no partition {missing}")));
            }
            let is_selected =
                |index: &&i32| self.args.partition.is_empty() || self.args.partition.contains(*index);
            partitions
                .extend(topic.partitions.keys().filter(is_selected).map(|index| (name.clone(), *index)));
        }
        let position = self.args.offset.unwrap_or(Position::Beginning);
        if position == Position::Stored {
            return Err(Failure::new("-o stored requires -G: only groups have stored offsets"));
        }
        let next = self.cluster.offsets(&partitions, position)?;
        let until = match self.args.until {
            Some(position) => Until::Offsets(self.cluster.offsets(&partitions, position)?),
            None => self.default_until(),
        };
        let mut reader = PartitionReader::new(self.isolation(), until, next);
        loop {
            if let Some(reason) = self.poll(&mut reader)? {
                return Ok(reason);
            }
        }
    }

    /// Reads the partitions assigned by a group.
    fn consume_as_member(&mut self, group: &str) -> Result<EndReason, Failure> {
        for topic in &self.args.topic {
            self.cluster.topic(topic)?;
        }
        let mut member = Member::new(&mut self.cluster, group, &self.args.topic)?;
        let mut reader = self.join(&mut member)?;
        let mut committed = reader.next().clone();
        let mut commit_due = Instant::now() + COMMIT_INTERVAL;
        let reason = loop {
            if let Some(reason) = self.poll(&mut reader)? {
                break reason;
            }
            let membership = member.heartbeat_if_due(&mut self.cluster)?;
            if membership == Membership::Rejoin || Instant::now() >= commit_due {
                self.commit(&mut member, &reader, &mut committed)?;
                commit_due = Instant::now() + COMMIT_INTERVAL;
            }
            if membership == Membership::Rejoin {
                reader = self.join(&mut member)?;
                committed.clone_from(reader.next());
            }
        };
        self.commit(&mut member, &reader, &mut committed)?;
        member.leave(&mut self.cluster)?;
        Ok(reason)
    }

    /// Joins the group and starts at its committed offsets.
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
        Ok(PartitionReader::new(self.isolation(), self.default_until(), next))
    }

    /// Commits the offsets of records printed since the last commit.
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

    /// Fetches and prints once. Returns `Some` if the consumer is done.
    fn poll(&mut self, reader: &mut PartitionReader) -> Result<Option<EndReason>, Failure> {
        if reader.next().is_empty() {
            // The member has no partitions: wait for a rebalance.
            std::thread::sleep(Duration::from_millis(100));
        }
        let Self { output, remaining, .. } = self;
        let mut sink = |partition: &Partition, record: &Record<'_>| {
            output.print(partition, record)?;
            if let Some(remaining) = remaining {
                *remaining -= 1;
            }
            Ok(if *remaining == Some(0) || output.is_closed() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        };
        let flow = reader.fetch(&mut self.cluster, &mut sink)?;
        self.output.flush()?;
        let is_done = flow.is_break() || self.output.is_closed() || reader.is_finished();
        if is_done || self.interrupted.load(Ordering::Relaxed) {
            return Ok(Some(EndReason::Done));
        }
        let is_expired = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        Ok(is_expired.then_some(EndReason::TimedOut))
    }

    fn isolation(&self) -> Isolation {
        if self.args.uncommitted { Isolation::Uncommitted } else { Isolation::Committed }
    }

    fn default_until(&self) -> Until {
        if self.args.exit { Until::Empty } else { Until::Never }
    }
}
