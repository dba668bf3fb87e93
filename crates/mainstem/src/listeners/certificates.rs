//! The certificates of the listeners with TLS: loaded at start, by a reload, and when their files change.
//!
//! Files are compared by content at an interval, not watched: tools that renew certificates replace files, links and
//! folders in many ways, and each of them ends in other content.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use mainstem_metrics::{Exposition, Metric};
use mainstem_runtime::ListenerTransport;
use mainstem_tls::{Acceptor, CertificateEnd, Prepared, Reloaded};

use super::expiry_warnings::ExpiryWarnings;
use crate::listener_section::ListenerSection;

/// When certificates end.
pub(crate) const EXPIRY: Metric = Metric::gauge(
    "mainstem_tls_certificate_expiry_timestamp_seconds",
    &["listener", "file"],
    "Unix time at which the certificate in use ends, or the first of those in its file, by listener and file.",
);

/// TLS of each listener that has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    listeners: Arc<Vec<(String, Arc<Acceptor>)>>,
}

/// Certificates of a listener that were read again.
pub(crate) struct NewCertificates {
    listener: String,
    acceptor: Arc<Acceptor>,
    prepared: Prepared,
}

impl Certificates {
    /// Loads the certificates of all sections with TLS.
    ///
    /// # Errors
    /// Names the listener and the file.
    pub(crate) fn load(sections: &[ListenerSection]) -> Result<Self, String> {
        let mut listeners = Vec::new();
        for section in sections {
            if let Some(settings) = section.tls_settings() {
                let acceptor = Acceptor::load(settings)
                    .map_err(|error| format!("listener {:?}: {error}", section.name))?;
                listeners.push((section.name.clone(), Arc::new(acceptor)));
            }
        }
        Ok(Self { listeners: Arc::new(listeners) })
    }

    /// The transport of a listener: TLS if it has any.
    pub(crate) fn transport(&self, listener: &str) -> ListenerTransport {
        self.acceptor(listener).map_or(ListenerTransport::Plain, |acceptor| {
            ListenerTransport::Layered(Arc::new(move || acceptor.layer()))
        })
    }

    /// TLS of a listener, if it has any.
    pub(crate) fn acceptor(&self, listener: &str) -> Option<Arc<Acceptor>> {
        let found = self.listeners.iter().find(|(name, _)| name == listener);
        found.map(|(_, acceptor)| Arc::clone(acceptor))
    }

    /// The listeners, and when their certificates end.
    fn ends(&self) -> impl Iterator<Item = (&str, CertificateEnd)> {
        self.listeners.iter().flat_map(|(name, acceptor)| {
            acceptor.certificate_ends().into_iter().map(move |end| (name.as_str(), end))
        })
    }

    /// Writes when the certificates in use end.
    pub(crate) fn write_metrics(&self, text: &mut Exposition) {
        let mut ends = text.begin(&EXPIRY);
        for (listener, CertificateEnd { file, not_after_s }) in self.ends() {
            ends.value(&[listener, &file.display().to_string()], not_after_s);
        }
    }

    /// Starts a thread that loads the certificates again each `interval`. It takes other intervals.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn watch(&self, interval: Duration) -> std::io::Result<Sender<Duration>> {
        let (sender, receiver) = channel();
        if !self.listeners.is_empty() {
            let certificates = self.clone();
            let run = move || certificates.run(&receiver, interval);
            std::thread::Builder::new().name("certificates".into()).spawn(run)?;
        }
        Ok(sender)
    }

    fn run(&self, intervals: &Receiver<Duration>, mut interval: Duration) {
        let mut failures = vec![None; self.listeners.len()];
        let mut warnings = ExpiryWarnings::default();
        warnings.log(self.ends());
        loop {
            match intervals.recv_timeout(interval) {
                Ok(other) => interval = other,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    for ((name, acceptor), failure) in self.listeners.iter().zip(&mut failures) {
                        reload(name, acceptor, failure);
                    }
                }
            }
            warnings.log(self.ends());
        }
    }

    /// Reads the files of all listeners again, without using them yet.
    ///
    /// # Errors
    /// Names the listener and the file.
    pub(crate) fn read_again(&self) -> Result<Vec<NewCertificates>, String> {
        let mut all = Vec::new();
        for (name, acceptor) in self.listeners.iter() {
            let prepared = acceptor.read_again().map_err(|error| format!("listener {name:?}: {error}"))?;
            all.extend(prepared.map(|prepared| NewCertificates {
                listener: name.clone(),
                acceptor: Arc::clone(acceptor),
                prepared,
            }));
        }
        Ok(all)
    }

    /// Uses what [`read_again`](Self::read_again) has read for new connections. Returns whose certificates they are.
    pub(crate) fn replace(all: Vec<NewCertificates>) -> Vec<String> {
        let replace = |NewCertificates { listener, acceptor, prepared }: NewCertificates| {
            acceptor.replace(prepared);
            format!("certificates of listener {listener:?}")
        };
        all.into_iter().map(replace).collect()
    }
}

/// Loads the files of a listener again. A failure is logged once.
fn reload(name: &str, acceptor: &Acceptor, failure: &mut Option<String>) {
    match acceptor.reload() {
        Ok(Reloaded::Unchanged) => *failure = None,
        Ok(Reloaded::Changed) => {
            *failure = None;
            log::info!("listener {name:?}: new connections use the new certificates");
        }
        Err(error) => {
            let error = error.to_string();
            if failure.as_ref() != Some(&error) {
                log::error!("listener {name:?}: the certificates in use stay, because {error}");
            }
            *failure = Some(error);
        }
    }
}
