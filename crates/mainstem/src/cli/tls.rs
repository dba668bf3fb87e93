//! TLS flags of the tools that connect to a broker.

use std::path::PathBuf;

use clap::Args;

/// TLS flags. Each of them turns TLS on, and so does a URL that begins with `mqtts://` or `https://`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// Connect with TLS; without --cafile, the authorities that the system trusts are trusted
    #[arg(long, alias = "tls-use-os-certs", global = true)]
    pub(crate) tls: bool,
    /// PEM file with the authorities to trust, instead of those of the system
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) cafile: Option<PathBuf>,
    /// PEM file with the client's certificate chain
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) cert: Option<PathBuf>,
    /// PEM file with the client's private key [default: the file of --cert]
    #[arg(long = "tls-key", id = "tls_key", value_name = "FILE", global = true)]
    pub(crate) key: Option<PathBuf>,
    /// Do not verify the broker's certificate and name: anyone on the way can read and change everything
    #[arg(long, global = true)]
    pub(crate) insecure: bool,
}

impl TlsArgs {
    /// Whether one of the flags is set.
    pub(crate) fn is_set(&self) -> bool {
        self.tls || self.insecure || [&self.cafile, &self.cert, &self.key].into_iter().any(Option::is_some)
    }
}
