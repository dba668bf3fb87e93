//! Snapshots of a running broker, over HTTP, for `mainstem backup`.

use std::path::PathBuf;

use serde_json::Value;
use ureq::http::Method;

use super::http::{Http, escape};
use crate::cli::HttpArgs;
use crate::tool::failure::Failure;

/// Takes and removes snapshots.
pub(crate) struct SnapshotClient(Http);

impl SnapshotClient {
    /// Connects with the first request.
    ///
    /// # Errors
    /// A file of the TLS flags cannot be used.
    pub(crate) fn new(args: &HttpArgs) -> Result<Self, Failure> {
        Ok(Self(Http::new(args)?))
    }

    /// Takes a snapshot. Returns its identifier and its directory, on the broker's machine.
    ///
    /// # Errors
    /// If the broker does not answer, or cannot take one.
    pub(crate) fn take(&self) -> Result<(String, PathBuf), Failure> {
        let snapshot = self.0.request("no snapshot", Method::POST, "/v1/snapshots", None)?;
        let field = |name: &str| snapshot[name].as_str().map(str::to_owned).unwrap_or_default();
        Ok((field("id"), field("directory").into()))
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// If the broker does not answer, or cannot remove it.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Failure> {
        let path = format!("/v1/snapshots/{}", escape(id));
        self.0.request("the snapshot was not removed", Method::DELETE, &path, None).map(|_: Value| ())
    }
}
