//! The two processes of a run under observation: the broker, and the generator itself.

use crate::error::BenchError;
use crate::process::{Process, Usage};

/// The processes under observation.
#[derive(Debug)]
pub(crate) struct Monitor {
    broker: Option<Process>,
    generator: Process,
    /// Resident memory of the broker when the observation began, in bytes.
    pub(crate) rss_start: u64,
    /// The most that a sample has shown, in bytes.
    pub(crate) rss_peak: u64,
}

impl Monitor {
    /// Observes this process and the broker's, if there is a way to.
    ///
    /// # Errors
    /// If there is no such process.
    pub(crate) fn new(broker_pid: Option<u32>) -> Result<Self, BenchError> {
        let broker = broker_pid.map(Process::of).transpose()?;
        let rss_start = broker.as_ref().map(Process::resident_bytes).transpose()?.unwrap_or(0);
        Ok(Self { broker, generator: Process::this()?, rss_start, rss_peak: rss_start })
    }

    /// Resident memory of the broker now, in bytes.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn sample(&mut self) -> Result<Option<u64>, BenchError> {
        let resident = self.broker.as_ref().map(Process::resident_bytes).transpose()?;
        self.rss_peak = self.rss_peak.max(resident.unwrap_or(0));
        Ok(resident)
    }

    /// What the broker and the generator have used so far.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn usage(&self) -> Result<(Option<Usage>, Usage), BenchError> {
        Ok((self.broker.as_ref().map(Process::usage).transpose()?, self.generator.usage()?))
    }

    /// The most resident memory in the life of the broker, in bytes; 0 if it is not observed.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn rss_life_peak(&self) -> Result<u64, BenchError> {
        self.broker.as_ref().map_or(Ok(0), Process::resident_bytes_max)
    }
}
