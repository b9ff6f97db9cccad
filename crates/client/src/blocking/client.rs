//! The blocking client.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_buffer::Buffer;

use super::{Driver, File};
use crate::{DirEntry, Error, FileTimes, Metadata, Options, Stats, Url, handles};

/// A mounted export, as [`crate::Client`]. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    // Dropped before the driver, which must run while connections close.
    inner: crate::Client,
    pub(super) driver: Arc<Driver>,
}

/// Defines methods that block on the asynchronous method of the same name.
macro_rules! mirror {
    ($(fn $name:ident(&self $(, $a:ident: $t:ty)*) -> $r:ty;)*) => {
        $(
            #[doc = concat!("As [`crate::Client::", stringify!($name), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`crate::Client::", stringify!($name), "`].")]
            pub fn $name(&self $(, $a: $t)*) -> Result<$r, Error> {
                self.driver.wait(self.inner.$name($($a),*))
            }
        )*
    };
}

impl Client {
    /// As [`crate::Client::connect`]; to set options, use [`crate::ClientBuilder::connect_blocking`].
    ///
    /// # Errors
    /// As [`crate::Client::connect`].
    pub fn connect<U>(url: U) -> Result<Self, Error>
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        crate::Client::builder(url).connect_blocking()
    }

    pub(crate) fn new(url: &Url, options: Options) -> Result<Self, Error> {
        let driver = Arc::new(Driver::new()?);
        let inner = driver.wait(handles::Client::connect(driver.runtime()?, url, options))?;
        Ok(Self { inner: inner.into(), driver })
    }

    /// The underlying asynchronous client.
    pub fn inner(&self) -> &crate::Client {
        &self.inner
    }

    /// As [`crate::Client::path_in_export`].
    pub fn path_in_export(&self) -> &Path {
        self.inner.path_in_export()
    }

    /// As [`crate::Client::stats`].
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// As [`crate::Client::shutdown`].
    pub fn close(&self) {
        self.driver.complete(self.inner.shutdown());
    }

    /// As [`crate::Client::buffer`].
    ///
    /// # Errors
    /// As [`crate::Client::buffer`].
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        self.inner.buffer(len)
    }

    /// As [`crate::Client::open`].
    ///
    /// # Errors
    /// As [`crate::Client::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        crate::OpenOptions::new().read(true).open_blocking(self, path)
    }

    /// As [`crate::Client::create`].
    ///
    /// # Errors
    /// As [`crate::Client::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File, Error> {
        crate::OpenOptions::new().write(true).create(true).truncate(true).open_blocking(self, path)
    }

    /// As [`crate::Client::read_dir`]: an iterator over the entries.
    ///
    /// # Errors
    /// As [`crate::Client::read_dir`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir, Error> {
        let inner = self.driver.wait(self.inner.read_dir(path))?;
        Ok(ReadDir { inner, driver: Arc::clone(&self.driver) })
    }

    mirror! {
        fn metadata(&self, path: impl AsRef<Path>) -> Metadata;
        fn symlink_metadata(&self, path: impl AsRef<Path>) -> Metadata;
        fn try_exists(&self, path: impl AsRef<Path>) -> bool;
        fn read(&self, path: impl AsRef<Path>) -> Vec<u8>;
        fn read_to_string(&self, path: impl AsRef<Path>) -> String;
        fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> ();
        fn create_dir(&self, path: impl AsRef<Path>) -> ();
        fn create_dir_all(&self, path: impl AsRef<Path>) -> ();
        fn remove_file(&self, path: impl AsRef<Path>) -> ();
        fn remove_dir(&self, path: impl AsRef<Path>) -> ();
        fn remove_dir_all(&self, path: impl AsRef<Path>) -> ();
        fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> ();
        fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
        fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> ();
        fn read_link(&self, path: impl AsRef<Path>) -> PathBuf;
        fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> ();
        fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> ();
        fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Option<Vec<u8>>;
        fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> ();
        fn list_xattrs(&self, path: impl AsRef<Path>) -> Vec<Vec<u8>>;
        fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> ();
        fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> u64;
    }
}

/// The entries of a directory, as [`crate::ReadDir`].
#[derive(Debug)]
pub struct ReadDir {
    inner: crate::ReadDir,
    driver: Arc<Driver>,
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.driver.wait(self.inner.next_entry()).transpose()
    }
}
