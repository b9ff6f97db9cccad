//! Access to a server's files by URL.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::OnceLock,
    time::{Duration, Instant},
};

use millrace_client::{
    Options, RetryPolicy, Url,
    handles::Client,
    ops::{Attributes, FileHandle, FileType},
};
use millrace_program::failure::Failure;
use millrace_runtime::tokio_rt::TokioRuntime;

use crate::{args::Global, describe::printable, file_error::FileError};

/// Time limit of retries when a connected server stops answering and, with [`Session::open_again`], when a
/// server cannot be reached.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

/// A mounted export, and the path in it that a URL names.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The URL, as on the command line.
    pub(crate) text: String,
    /// The path in the export.
    pub(crate) path: Vec<u8>,
    /// Whether the URL ends with a slash, so that it must name a directory.
    pub(crate) wants_dir: bool,
    /// Whether the URL ends with `.` or `..`, and a copy has the contents of the directory.
    pub(crate) is_contents: bool,
}

/// Whether `text` has the form of a URL.
pub(crate) fn is_url(text: &OsStr) -> bool {
    text.as_bytes().windows(3).any(|part| part == b"://")
}

/// The last component of `path`; `None` if it has none.
pub(crate) fn last_component(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|b| *b == b'/').find(|name| !name.is_empty())
}

/// The path of the entry `name` of the directory `path`.
pub(crate) fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Whether the last component of `path` is `.` or `..`, so that the name is not that of the copies.
pub(crate) fn is_contents(path: &[u8]) -> bool {
    matches!(last_component(path), Some(b"." | b".."))
}

pub(crate) use millrace_program::args::parse_url as parse;

/// Global options of the command line.
static GLOBAL: OnceLock<Global> = OnceLock::new();

/// Sets the global options, once.
pub(crate) fn set_global(global: &Global) {
    GLOBAL.get_or_init(|| global.clone());
}

/// Returns the global options.
pub(crate) fn global() -> &'static Global {
    GLOBAL.get_or_init(Global::default)
}

/// Options of this command's clients.
pub(crate) fn options() -> Options {
    let (global, default) = (global(), Options::default());
    Options::default()
        .retry(RetryPolicy { max_elapsed: RETRY_LIMIT, ..RetryPolicy::default() })
        .proto(global.proto)
        .provider(global.provider.unwrap_or_default())
        .registration(global.registration.unwrap_or(default.registration))
}

impl Session {
    /// Opens the URL, and closes the client when `work` has ended.
    pub(crate) async fn with<T>(
        text: &str,
        work: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        Self::open(text).await?.closed_after(work).await
    }

    /// Closes the client when `work` has ended, so that no session of NFSv4 remains at the server after the command.
    pub(crate) async fn closed_after<T>(
        self,
        work: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let result = work(&self).await;
        self.client.shutdown().await;
        result
    }

    /// Connects to the server of a URL and mounts the export that contains its path.
    async fn open(text: &str) -> Result<Self, Failure> {
        let url = parse(text)?;
        let client = Client::connect(TokioRuntime::current(), &url, options()).await;
        Self::of(text, &url, client)
    }

    /// As [`Self::open`], with retries for [`RETRY_LIMIT`] if the server cannot be reached, so that a command
    /// continues after a restart of the server.
    pub(crate) async fn open_again(text: &str) -> Result<Self, Failure> {
        let url = parse(text)?;
        let RetryPolicy { max_elapsed, first_delay, max_delay } = options().retry;
        let (start, mut delay) = (Instant::now(), first_delay);
        loop {
            let error = match Client::connect(TokioRuntime::current(), &url, options()).await {
                Err(e) if e.is_unreachable() && start.elapsed() + delay < max_elapsed => e,
                other => return Self::of(text, &url, other),
            };
            if delay == first_delay {
                eprintln!("millrace: {error}; retrying for {} s", max_elapsed.as_secs());
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(max_delay);
        }
    }

    fn of(text: &str, url: &Url, client: Result<Client, millrace_client::Error>) -> Result<Self, Failure> {
        let client = client.map_err(|e| Failure::from(FileError::from(e)))?;
        let path = client.path_in_export().to_vec();
        let is_contents = is_contents(url.path.as_bytes());
        let wants_dir = is_contents || url.path.as_bytes().ends_with(b"/");
        Ok(Self { client, text: text.to_owned(), path, wants_dir, is_contents })
    }

    /// Looks up the object that the URL names, and follows symbolic links.
    pub(crate) async fn resolve(&self) -> Result<(FileHandle, Attributes), Failure> {
        let found = self.client.resolve(&self.path).await.map_err(|e| self.failed("find", e))?;
        self.check_dir(found)
    }

    /// Looks up the object that the URL names, without following a symbolic link in the last component.
    pub(crate) async fn resolve_link(&self) -> Result<(FileHandle, Attributes), Failure> {
        let found = self.client.resolve_link(&self.path).await.map_err(|e| self.failed("find", e))?;
        self.check_dir(found)
    }

    fn check_dir(&self, found: (FileHandle, Attributes)) -> Result<(FileHandle, Attributes), Failure> {
        if self.wants_dir && found.1.file_type != FileType::Directory {
            return Err(Failure::new(format!("{} is not a directory; omit the trailing /", self.text)));
        }
        Ok(found)
    }

    /// Returns the parent directory of the URL's path, and the last component.
    pub(crate) async fn parent(&self) -> Result<(FileHandle, Vec<u8>), Failure> {
        self.resolve_parent().await.map_err(|e| match e {
            Some(e) => self.failed("find the directory of", e),
            None => self.is_root(),
        })
    }

    /// As [`parent`](Self::parent), with the client's error; `None` if the path is the root of the export.
    pub(crate) async fn resolve_parent(
        &self,
    ) -> Result<(FileHandle, Vec<u8>), Option<millrace_client::Error>> {
        if self.path.iter().all(|b| *b == b'/') {
            return Err(None);
        }
        // The client's path has no `.` at its end, which names no entry of a directory.
        let path = if self.is_contents { [&self.path[..], b"/."].concat() } else { self.path.clone() };
        self.client.resolve_parent(path).await.map_err(Some)
    }

    /// Whether the client of either can be used for the files of both: the export is one, and the URLs have the same options.
    pub(crate) fn is_same_mount(&self, other: &Self) -> bool {
        let mount = |session: &Self| parse(&session.text).map(|url| Url { path: OsString::new(), ..url });
        self.shares_export_with(other)
            && matches!((mount(self), mount(other)), (Ok(one), Ok(another)) if one == another)
    }

    /// The error of an operation that the root of an export does not support.
    pub(crate) fn is_root(&self) -> Failure {
        Failure::new(format!(
            "{} is the root of an export, which cannot be changed; name a path in it",
            self.text
        ))
    }

    /// Looks up the object that the URL names; `None` if it does not exist.
    pub(crate) async fn resolve_optional(&self) -> Result<Option<(FileHandle, Attributes)>, Failure> {
        match self.client.resolve(&self.path).await {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(self.failed("find", e)),
        }
    }

    /// The last component of the URL: the name of the file, or of the export.
    pub(crate) fn name(&self) -> Vec<u8> {
        let name = last_component(&self.path).or_else(|| last_component(self.client.export().as_bytes()));
        name.unwrap_or(b"export").to_vec()
    }

    /// Whether both are paths in one export of one server.
    pub(crate) fn shares_export_with(&self, other: &Self) -> bool {
        self.client.server() == other.client.server() && self.client.export() == other.client.export()
    }

    /// The error of the operation `what` ("list") on the URL.
    pub(crate) fn failed(&self, what: &str, e: millrace_client::Error) -> Failure {
        Failure::new(format!("cannot {what} {}: {}", self.text, FileError::from(e)))
    }

    /// Names an entry `path` in the directory of the URL on which the operation `what` is refused for its name.
    pub(crate) fn refused_name(&self, what: &str, path: &[u8]) {
        let (path, text) = (printable(path), &self.text);
        eprintln!("millrace: cannot {what} {path} in {text}: the name is invalid; do not trust this server");
    }

    /// Names the object `path` in the directory of the URL, or this directory, on which the operation `what` failed, on standard error. Returns
    /// the error if other calls would fail too, because the server does not answer.
    pub(crate) fn failed_below(
        &self,
        what: &str,
        path: &[u8],
        e: millrace_client::Error,
    ) -> Result<(), millrace_client::Error> {
        if e.status().is_none() {
            return Err(e);
        }
        let object = match path {
            b"" => self.text.clone(),
            path => format!("{} in {}", printable(path), self.text),
        };
        eprintln!("millrace: cannot {what} {object}: {}", FileError::from(e));
        Ok(())
    }
}
