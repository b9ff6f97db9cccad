//! The blocking protocol layer: each call blocks its thread until the server replies.
//!
//! A background thread drives the connections. The functions panic when they are called from `async` code, as
//! [`tokio::runtime::Runtime::block_on`] does.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run_blocking(|url| {
//! // "nfs://server.example/export"
//! let url = url.parse()?;
//! let client = millrace_client::handles::blocking::Client::connect(&url, millrace_client::Options::default())?;
//! for entry in client.readdir(client.root())? {
//!     println!("{}", entry.name_lossy());
//! }
//! # Ok(()) }) }
//! ```

use std::sync::Arc;

use millrace_buffer::{Arena, Buffer, Views};

use super::{Flow, Object, ReadInto, Written};
use crate::{
    Error, Options, Stats, Url,
    blocking::Driver,
    ops::{
        Attributes, CommitOk, CreateHow, DirEntry, DirPage, FileHandle, FsInfo, FsStat, LinkOk, MknodWhat,
        NfsTime, PathConf, RenameOk, SetAttributes, StableHow, Verifier, Wcc,
    },
};

/// A mounted export, as [`super::Client`]. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    // Dropped before the driver, which must run while connections close.
    inner: super::Client,
    driver: Arc<Driver>,
}

/// An open file, as [`super::File`].
#[derive(Clone)]
pub struct File {
    inner: super::File,
    driver: Arc<Driver>,
}

/// Defines methods that block on the asynchronous method of the same name.
macro_rules! mirror {
    ($of:literal: $(fn $name:ident(&self $(, $a:ident: $t:ty)*) -> $r:ty;)*) => {
        $(
            #[doc = concat!("As [`super::", $of, "::", stringify!($name), "`].")]
            ///
            /// # Errors
            #[doc = concat!("As [`super::", $of, "::", stringify!($name), "`].")]
            pub fn $name(&self $(, $a: $t)*) -> Result<$r, Error> {
                self.driver.wait(self.inner.$name($($a),*))
            }
        )*
    };
}

impl Client {
    /// As [`super::Client::connect`].
    ///
    /// # Errors
    /// As [`super::Client::connect`].
    pub fn connect(url: &Url, options: Options) -> Result<Self, Error> {
        let driver = Arc::new(Driver::new()?);
        let inner = driver.wait(super::Client::connect(driver.runtime()?, url, options))?;
        Ok(Self { inner, driver })
    }

    /// The underlying asynchronous client.
    pub fn inner(&self) -> &super::Client {
        &self.inner
    }

    /// As [`super::Client::root`].
    pub fn root(&self) -> FileHandle {
        self.inner.root()
    }

    /// As [`super::Client::path_in_export`].
    pub fn path_in_export(&self) -> &[u8] {
        self.inner.path_in_export()
    }

    /// As [`super::Client::arena`].
    pub fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    /// As [`super::Client::stats`].
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// As [`super::Client::shutdown`].
    pub fn close(&self) {
        self.driver.complete(self.inner.shutdown());
    }

    mirror! { "Client":
        fn resolve(&self, path: impl AsRef<[u8]>) -> (FileHandle, Attributes);
        fn resolve_link(&self, path: impl AsRef<[u8]>) -> (FileHandle, Attributes);
        fn resolve_parent(&self, path: impl AsRef<[u8]>) -> (FileHandle, Vec<u8>);
        fn getattr(&self, object: FileHandle) -> Attributes;
        fn setattr(&self, object: FileHandle, attributes: SetAttributes, guard: Option<NfsTime>) -> Wcc;
        fn lookup(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Object;
        fn access(&self, object: FileHandle, wanted: u32) -> u32;
        fn readlink(&self, symlink: FileHandle) -> Vec<u8>;
        fn read_into(&self, file: FileHandle, offset: u64, buffer: Buffer) -> ReadInto;
        fn read(&self, file: FileHandle, offset: u64, out: &mut [u8]) -> usize;
        fn write_from(&self, file: FileHandle, offset: u64, data: Views, stable: StableHow) -> Written;
        fn write(&self, file: FileHandle, offset: u64, data: &[u8], stable: StableHow) -> Written;
        fn create(&self, dir: FileHandle, name: impl AsRef<[u8]>, how: CreateHow) -> Object;
        fn create_new(&self, dir: FileHandle, name: impl AsRef<[u8]>, mode: u32) -> Object;
        fn mkdir(&self, dir: FileHandle, name: impl AsRef<[u8]>, attributes: SetAttributes) -> Object;
        fn symlink(
            &self, dir: FileHandle, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>, attributes: SetAttributes
        ) -> Object;
        fn mknod(&self, dir: FileHandle, name: impl AsRef<[u8]>, what: MknodWhat) -> Object;
        fn remove(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Wcc;
        fn rmdir(&self, dir: FileHandle, name: impl AsRef<[u8]>) -> Wcc;
        fn rename(
            &self, from_dir: FileHandle, from: impl AsRef<[u8]>, to_dir: FileHandle, to: impl AsRef<[u8]>
        ) -> RenameOk;
        fn link(&self, file: FileHandle, dir: FileHandle, name: impl AsRef<[u8]>) -> LinkOk;
        fn readdir(&self, dir: FileHandle) -> Vec<DirEntry>;
        fn readdir_page(&self, dir: FileHandle, cookie: u64, verifier: Verifier) -> DirPage;
        fn fsstat(&self, root: FileHandle) -> FsStat;
        fn fsinfo(&self, root: FileHandle) -> FsInfo;
        fn pathconf(&self, object: FileHandle) -> PathConf;
        fn commit(&self, file: FileHandle, offset: u64, count: u32) -> CommitOk;
    }

    /// As [`super::Client::open`].
    ///
    /// # Errors
    /// As [`super::Client::open`].
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File, Error> {
        let inner = self.driver.wait(self.inner.open(path))?;
        Ok(File { inner, driver: Arc::clone(&self.driver) })
    }

    /// As [`super::Client::create_file`].
    ///
    /// # Errors
    /// As [`super::Client::create_file`].
    pub fn create_file(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File, Error> {
        let inner = self.driver.wait(self.inner.create_file(path, mode))?;
        Ok(File { inner, driver: Arc::clone(&self.driver) })
    }
}

impl File {
    /// The underlying asynchronous file.
    pub fn inner(&self) -> &super::File {
        &self.inner
    }

    /// As [`super::File::handle`].
    pub fn handle(&self) -> FileHandle {
        self.inner.handle()
    }

    mirror! { "File":
        fn attributes(&self) -> Attributes;
        fn read_into(&self, offset: u64, buffer: Buffer) -> ReadInto;
        fn read(&self, offset: u64, out: &mut [u8]) -> usize;
        fn write_from(&self, offset: u64, data: Views) -> ();
        fn write(&self, offset: u64, data: &[u8]) -> ();
        fn write_stream(
            &self, offset: u64, depth: usize, source: impl FnMut(usize) -> std::io::Result<Option<Views>>
        ) -> u64;
        fn commit(&self) -> ();
    }

    /// As [`super::File::read_stream`].
    ///
    /// # Errors
    /// As [`super::File::read_stream`].
    pub fn read_stream<R: Flow>(
        &self,
        offset: u64,
        len: u64,
        depth: usize,
        each: impl FnMut(u64, Views) -> R,
    ) -> Result<u64, Error> {
        self.driver.wait(self.inner.read_stream(offset, len, depth, each))
    }
}
