//! A server's files by URL.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use millrace_cli_common::failure::Failure;
use millrace_client::{Options, RetryPolicy, Url, nfs3::Client};
use millrace_nfs::v3::{Fattr, FileHandle, FileType};
use millrace_runtime::tokio_rt::TokioRuntime;

use crate::{args::Global, problem::Problem};

/// How long a command tries again when the server does not answer that it reached before, or with [`Session::open_again`] also
/// when it has not reached it yet.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mounted export, and the path in it that a URL names.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// As it was written.
    pub(crate) text: String,
    /// The path in the export.
    pub(crate) path: Vec<u8>,
    /// The URL ended with a slash: only a directory will do.
    pub(crate) wants_dir: bool,
}

/// Whether `text` is meant to be a URL.
pub(crate) fn is_url(text: &str) -> bool {
    text.contains("://")
}

pub(crate) use millrace_cli_common::args::parse_url as parse;

/// What the command line says of everything that this process does.
static STATED: OnceLock<Global> = OnceLock::new();

/// Takes note of it, once.
pub(crate) fn state(global: &Global) {
    STATED.get_or_init(|| global.clone());
}

/// What the command line says of everything.
pub(crate) fn stated() -> &'static Global {
    STATED.get_or_init(Global::default)
}

/// How this command's clients behave.
pub(crate) fn options() -> Options {
    let (stated, default) = (stated(), Options::default());
    Options::default()
        .retry(RetryPolicy { max_elapsed: PATIENCE, ..RetryPolicy::default() })
        .provider(stated.provider.unwrap_or_default())
        .registration(stated.registration.unwrap_or(default.registration))
}

/// The URL of something in an export.
fn parse_in_export(text: &str) -> Result<Url, Failure> {
    let url = parse(text)?;
    if url.path == "/" {
        return Err(Failure::usage(format!(
            "{text} names no export; `millrace exports {text}` shows which there are"
        )));
    }
    Ok(url)
}

impl Session {
    /// Connects to the server of a URL and mounts the export that its path lies in.
    pub(crate) async fn open(text: &str) -> Result<Self, Failure> {
        let url = parse_in_export(text)?;
        let client = Client::connect(TokioRuntime::current(), &url, options()).await;
        Self::of(text, &url, client)
    }

    /// As [`Self::open`], for work that continues after a restart of the server: tries again while the server cannot be
    /// reached, for as long as later calls are tried again.
    pub(crate) async fn open_again(text: &str) -> Result<Self, Failure> {
        let url = parse_in_export(text)?;
        let RetryPolicy { max_elapsed, first_delay, max_delay } = options().retry;
        let (begun, mut delay) = (Instant::now(), first_delay);
        loop {
            let error = match Client::connect(TokioRuntime::current(), &url, options()).await {
                Err(e) if e.is_unreachable() && begun.elapsed() + delay < max_elapsed => e,
                other => return Self::of(text, &url, other),
            };
            if delay == first_delay {
                eprintln!("millrace: {error}; trying again for {} s", max_elapsed.as_secs());
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(max_delay);
        }
    }

    fn of(text: &str, url: &Url, client: Result<Client, millrace_client::Error>) -> Result<Self, Failure> {
        let client = client.map_err(|e| Failure::from(Problem::from(e)))?;
        let path = client.path_in_export().as_bytes().to_vec();
        Ok(Self { client, text: text.to_owned(), path, wants_dir: url.path.ends_with('/') })
    }

    /// The object that the URL names, symbolic links followed.
    pub(crate) async fn resolve(&self) -> Result<(FileHandle, Fattr), Failure> {
        let found = self.client.resolve(&self.path).await.map_err(|e| self.failed("find", e))?;
        self.check_dir(found)
    }

    /// The object that the URL names, or a symbolic link itself.
    pub(crate) async fn resolve_link(&self) -> Result<(FileHandle, Fattr), Failure> {
        let found = self.client.resolve_link(&self.path).await.map_err(|e| self.failed("find", e))?;
        self.check_dir(found)
    }

    fn check_dir(&self, found: (FileHandle, Fattr)) -> Result<(FileHandle, Fattr), Failure> {
        if self.wants_dir && found.1.file_type != FileType::Directory {
            return Err(Failure::new(format!("{} is not a directory; leave the last / out", self.text)));
        }
        Ok(found)
    }

    /// The directory that the URL's last name is in, and that name.
    pub(crate) async fn parent(&self) -> Result<(FileHandle, Vec<u8>), Failure> {
        self.resolve_parent().await.map_err(|e| match e {
            Some(e) => self.failed("find the directory of", e),
            None => self.is_root(),
        })
    }

    /// As [`parent`](Self::parent), for those who tell the errors apart; `None`: there is none.
    pub(crate) async fn resolve_parent(
        &self,
    ) -> Result<(FileHandle, Vec<u8>), Option<millrace_client::Error>> {
        if self.path.iter().all(|b| *b == b'/') {
            return Err(None);
        }
        self.client.resolve_parent(&self.path).await.map_err(Some)
    }

    /// The failure of what cannot be done to the root of an export.
    pub(crate) fn is_root(&self) -> Failure {
        Failure::new(format!(
            "{} is the root of an export, which stays as it is; name something in it",
            self.text
        ))
    }

    /// The object that the URL names, if there is one.
    pub(crate) async fn resolve_optional(&self) -> Result<Option<(FileHandle, Fattr)>, Failure> {
        match self.client.resolve(&self.path).await {
            Ok(found) => Ok(Some(found)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(self.failed("find", e)),
        }
    }

    /// The last name of the URL: that of the file, or of the export.
    pub(crate) fn name(&self) -> Vec<u8> {
        let of = |path: &[u8]| path.rsplit(|b| *b == b'/').find(|n| !n.is_empty()).map(<[u8]>::to_vec);
        of(&self.path).or_else(|| of(self.client.export().as_bytes())).unwrap_or_else(|| b"export".to_vec())
    }

    /// Whether both are paths in one export of one server.
    pub(crate) fn shares_export_with(&self, other: &Self) -> bool {
        self.client.server() == other.client.server() && self.client.export() == other.client.export()
    }

    /// The failure of `what` ("list") on the URL.
    pub(crate) fn failed(&self, what: &str, e: millrace_client::Error) -> Failure {
        Failure::new(format!("cannot {what} {}: {}", self.text, Problem::from(e)))
    }
}
