//! Listing directories.

use std::path::PathBuf;

use millrace_objects::{Directory, Objects};
use millrace_runtime::sync::Mutex;
use opendal_core::{
    Error, ErrorKind, MetadataBuilder, Result,
    raw::oio::{self, Entry},
};

use crate::{error, metadata};

/// Maximum length of the path of an entry in bytes. OpenDAL panics above 65,535.
const MAX_PATH: usize = 32 << 10;

/// Lists a directory: first the directory itself, then its entries.
#[derive(Debug)]
pub struct Lister {
    objects: Objects,
    directory: PathBuf,
    /// The path of the directory in OpenDAL: it ends with `/`, and is `/` for the root.
    path: String,
    /// Accessed by `&mut self` only: a directory is not `Sync`.
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Start,
    Entries(Directory),
    End,
}

impl Lister {
    pub(crate) fn new(objects: Objects, directory: PathBuf, path: &str) -> Self {
        let path = if path.is_empty() { "/" } else { path }.to_owned();
        Self { objects, directory, path, state: Mutex::new(State::Start) }
    }
}

impl oio::List for Lister {
    async fn next(&mut self) -> Result<Option<Entry>> {
        let state = self.state.get_mut();
        let entry = match state {
            State::Start => {
                let opened = self.objects.read_dir(&self.directory).await.map_err(error::convert)?;
                *state = opened.map_or(State::End, State::Entries);
                let exists = matches!(state, State::Entries(_));
                return Ok(exists.then(|| Entry::new(&self.path, MetadataBuilder::dir().build())));
            }
            State::Entries(directory) => directory.next().await.map_err(error::convert)?,
            State::End => None,
        };
        let Some(entry) = entry else {
            *state = State::End;
            return Ok(None);
        };
        let name = entry.name().to_str().ok_or_else(|| {
            let reason = format!("the name {:?} in {} is not UTF-8", entry.name(), self.path);
            Error::new(ErrorKind::Unexpected, reason)
        })?;
        if self.path.len() + name.len() > MAX_PATH {
            let reason = format!("a path below {} is longer than {MAX_PATH} bytes", self.directory.display());
            return Err(Error::new(ErrorKind::Unexpected, reason));
        }
        let slash = if entry.is_directory() { "/" } else { "" };
        let path = format!("{}{name}{slash}", self.path.trim_start_matches('/'));
        let metadata = match entry.version() {
            Some(version) => metadata::of_version(&version),
            None => metadata::of(entry.attributes()),
        };
        Ok(Some(Entry::new(&path, metadata)))
    }
}
