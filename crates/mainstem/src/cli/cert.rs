//! Flags of `mainstem cert`.

use std::path::PathBuf;

use clap::Args;

const AFTER_HELP: &str = "\
Files in the directory:
  ca.crt, ca.key          the authority; made by the first call, used by later ones
  server.crt, server.key  the certificate of the broker, for all --host names together
  NAME.crt, NAME.key      one certificate for each --client, with NAME as its common name

Examples:
  mainstem cert certs --host broker.example.com --host 10.0.0.7
  mainstem cert certs --client press-7 --client press-8

Clients trust the broker by ca.crt. Keep ca.key away from the broker: it is needed only to make
further certificates. For public names, prefer certificates of a public authority.";

/// Make certificates: an authority, certificates of the broker and of clients.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CertArgs {
    /// Directory of the files; created if it does not exist
    pub(crate) directory: PathBuf,
    /// DNS name or IP address of the broker; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    /// Name of a client; may be repeated
    #[arg(long = "client", value_name = "NAME", required_unless_present = "hosts")]
    pub(crate) clients: Vec<String>,
    /// Validity of the certificates of the broker and of clients, days; the authority is valid for ten years
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
    /// Replace certificates that exist; the authority is never replaced
    #[arg(long)]
    pub(crate) force: bool,
}
