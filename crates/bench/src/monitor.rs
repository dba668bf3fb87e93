//! Observation of the broker process and of the generator itself.
//!
//! The broker may run elsewhere, so its process is optional and all its figures are absent without it.

use crate::error::BenchError;
use crate::process::{Process, Usage};

/// The observed processes.
#[derive(Debug)]
pub(crate) struct Monitor {
    broker: Option<Process>,
    generator: Process,
    /// Resident memory of the broker at the start, in bytes.
    pub(crate) rss_start: u64,
    /// Maximum resident memory over all samples, in bytes.
    pub(crate) rss_peak: u64,
}

impl Monitor {
    /// Observes this process and, if its pid is known, the broker.
    ///
    /// # Errors
    /// If the process does not exist.
    pub(crate) fn new(broker_pid: Option<u32>) -> Result<Self, BenchError> {
        let broker = broker_pid.map(Process::of).transpose()?;
        let rss_start = broker.as_ref().map(Process::resident_bytes).transpose()?.unwrap_or(0);
        Ok(Self { broker, generator: Process::current()?, rss_start, rss_peak: rss_start })
    }

    /// Current resident memory of the broker, in bytes.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn sample(&mut self) -> Result<Option<u64>, BenchError> {
        let resident = self.broker.as_ref().map(Process::resident_bytes).transpose()?;
        self.rss_peak = self.rss_peak.max(resident.unwrap_or(0));
        Ok(resident)
    }

    /// Usage of the broker and the generator so far.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn usage(&self) -> Result<(Option<Usage>, Usage), BenchError> {
        Ok((self.broker.as_ref().map(Process::usage).transpose()?, self.generator.usage()?))
    }

    /// Peak resident memory since the broker started, in bytes; 0 if it is not observed.
    ///
    /// # Errors
    /// If the broker has ended.
    pub(crate) fn rss_life_peak(&self) -> Result<u64, BenchError> {
        self.broker.as_ref().map_or(Ok(0), Process::resident_bytes_max)
    }
}
