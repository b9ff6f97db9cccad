//! The blocking client: each call blocks its thread until the server replies.
//!
//! [`Client`] works by path in the manner of [`std::fs`]; [`File`] implements [`std::io::Read`],
//! [`std::io::Write`] and [`std::io::Seek`]. A background thread drives the connections. The functions panic
//! when they are called from asynchronous code, as [`tokio::runtime::Runtime::block_on`] does.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run_blocking(|url| {
//! use std::io::{BufRead, BufReader, Write};
//! use millrace_client::blocking::Client;
//!
//! // The URL names the export: "nfs://server.example/export".
//! let client = Client::connect(&url)?;
//! let mut file = client.create("list")?;
//! file.write_all(b"first\nsecond\n")?;
//! file.close()?; // The data is on stable storage.
//!
//! let lines: Vec<String> = BufReader::new(client.open("list")?).lines().collect::<Result<_, _>>()?;
//! assert_eq!(lines, ["first", "second"]);
//! let names: Vec<_> = client.read_dir("/")?.collect::<Result<_, _>>()?;
//! assert_eq!(names[0].file_name(), "list");
//! # Ok(()) }) }
//! ```

mod client;
mod driver;
mod file;

pub use client::{Client, ReadDir};
pub(crate) use driver::Driver;
pub use file::File;

use std::ffi::OsString;

use crate::{Error, Options, Url};

/// As [`crate::exports`].
///
/// # Errors
/// As [`crate::exports`].
pub fn exports(url: &Url, options: &Options) -> Result<Vec<(OsString, Vec<String>)>, Error> {
    let driver = Driver::new()?;
    driver.wait(crate::exports(driver.runtime()?, url, options))
}
