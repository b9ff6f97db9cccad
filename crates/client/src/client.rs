//! The path-level client of a mounted export.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use millrace_buffer::{Arena, Buffer};
use millrace_runtime::RuntimeRef;

use crate::{ClientBuilder, Error, Identity, Options, Stats, Url, handles};

/// A mounted export. Clones share the connections, which are closed when the last clone is dropped.
///
/// The methods take paths from the root of the export ([`Self::export`]), with or without a leading slash;
/// `..` at the root is the root. Symbolic links are followed inside the export, as in
/// [`handles::Client::resolve`]. Names, semantics and [kinds of errors](Error::kind) are those of `tokio::fs`.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use millrace_client::Client;
/// use futures::TryStreamExt;
///
/// let client = Client::connect(&url).await?;
/// client.create_dir_all("reports/2026").await?;
/// client.write("reports/2026/q1.csv", "city,sales\nBern,7\n").await?;
/// assert_eq!(client.metadata("reports/2026/q1.csv").await?.len(), 18);
///
/// let entries: Vec<_> = client.read_dir("reports/2026").await?.try_collect().await?;
/// assert_eq!(entries[0].file_name(), "q1.csv");
/// client.remove_dir_all("reports").await?;
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    by_handle: handles::Client,
}

/// Returns a path-level client over the connections of a client of the protocol layer.
impl From<handles::Client> for Client {
    fn from(by_handle: handles::Client) -> Self {
        Self { by_handle }
    }
}

impl Client {
    /// Connects to the server of `url` and mounts the longest export that contains its path, with the default
    /// [`Options`] and those of the URL. `url` is a [`Url`] or text such as `nfs://server/export?proto=tcp`.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect<U>(url: U) -> Result<Self, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Self::builder(url).connect().await
    }

    /// Returns a builder for a connection with options. [`ClientBuilder::connect`] reports an invalid `url`.
    pub fn builder<U>(url: U) -> ClientBuilder
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        ClientBuilder::new(url)
    }

    /// Returns the protocol layer: NFSv3 procedures on file handles, over the same connections.
    pub fn by_handle(&self) -> &handles::Client {
        &self.by_handle
    }

    /// Returns a client over the same connections whose calls have the credentials of `who`.
    #[must_use]
    pub fn as_caller(&self, who: &Identity) -> Self {
        self.by_handle.as_caller(who).into()
    }

    /// The name of the export.
    pub fn export(&self) -> &str {
        self.by_handle.export()
    }

    /// The rest of the URL's path below the export, without a leading slash; empty for the export itself.
    pub fn path_in_export(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.by_handle.path_in_export()))
    }

    /// The server's host and port.
    pub fn server(&self) -> &str {
        self.by_handle.server()
    }

    /// The effective options.
    pub fn options(&self) -> &Options {
        self.by_handle.options()
    }

    /// The client's arena, from which buffers for transfers without a copy are allocated.
    pub fn arena(&self) -> &Arena {
        self.by_handle.arena()
    }

    /// Allocates a buffer of `len` bytes (at most 4 MiB) for [`crate::File::read_at_into`] and
    /// [`crate::File::write_at_from`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        self.by_handle.buffer(len)
    }

    /// The runtime on which the client's tasks run.
    pub fn runtime(&self) -> &RuntimeRef {
        self.by_handle.runtime()
    }

    /// Counters of calls, bytes and connections.
    pub fn stats(&self) -> Stats {
        self.by_handle.stats()
    }

    /// Closes the connections of all clones; calls in flight and later ones fail with [`Error::Closed`].
    pub fn close(&self) {
        self.by_handle.close();
    }

    /// As [`Self::close`], and waits for the end of the session of NFSv4, as [`handles::Client::shutdown`].
    pub async fn shutdown(&self) {
        self.by_handle.shutdown().await;
    }
}
