//! The configuration of TLS on one listener, and its replacement while the listener runs.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use mainstem_runtime::TransportLayer;
use rustls::ServerConfig;

use crate::expiry::{CertificateEnd, certificate_ends};
use crate::layer::TlsLayer;
use crate::load::{ConfigAndCost, Files, LoadError, server_config};
use crate::settings::Settings;

/// TLS of one listener. Shared by the thread that accepts connections and the one that reloads files.
pub struct Acceptor {
    settings: Settings,
    /// Read once per accepted connection.
    current: RwLock<Arc<Current>>,
    /// What `current` was built of.
    files: Mutex<Files>,
}

/// The configuration of new connections.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// Cost of a handshake with certificates, units.
    handshake_units: u32,
    ends: Vec<CertificateEnd>,
}

impl Current {
    fn build(settings: &Settings, files: &Files) -> Result<Self, LoadError> {
        let ConfigAndCost { config, handshake_units } = server_config(settings, files)?;
        Ok(Self { config: Arc::new(config), handshake_units, ends: certificate_ends(settings, files) })
    }
}

/// Files that were read and are valid, for one acceptor.
#[derive(Debug)]
pub struct Prepared {
    files: Files,
    current: Arc<Current>,
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// New connections use what the files contain now.
    Changed,
    /// The files have not changed.
    Unchanged,
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Reads the files of `settings`.
    ///
    /// # Errors
    /// A file cannot be read or is invalid, or the settings contradict each other.
    pub fn load(settings: Settings) -> Result<Self, LoadError> {
        let files = Files::read(&settings)?;
        let current = RwLock::new(Arc::new(Current::build(&settings, &files)?));
        Ok(Self { settings, current, files: Mutex::new(files) })
    }

    /// Reads the files again. Open connections continue with what they were accepted with.
    ///
    /// # Errors
    /// As for [`load`](Self::load). The current configuration stays in place.
    pub fn reload(&self) -> Result<Reloaded, LoadError> {
        Ok(match self.read_again()? {
            None => Reloaded::Unchanged,
            Some(prepared) => {
                self.replace(prepared);
                Reloaded::Changed
            }
        })
    }

    /// Reads the files again without using them yet. `None` if they have not changed.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn read_again(&self) -> Result<Option<Prepared>, LoadError> {
        let files = Files::read(&self.settings)?;
        if *self.files.lock().unwrap_or_else(PoisonError::into_inner) == files {
            return Ok(None);
        }
        let current = Arc::new(Current::build(&self.settings, &files)?);
        Ok(Some(Prepared { files, current }))
    }

    /// Uses what [`read_again`](Self::read_again) has read for new connections.
    pub fn replace(&self, Prepared { files, current }: Prepared) {
        let mut known = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        *known = files;
    }

    /// The configuration for new connections.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// When the certificates in use end.
    pub fn certificate_ends(&self) -> Vec<CertificateEnd> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).ends.clone()
    }

    /// The layer of a new connection.
    pub fn layer(&self) -> Box<dyn TransportLayer> {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        Box::new(TlsLayer::new(Arc::clone(&current.config), current.handshake_units))
    }
}
