//! The native part of the Python package `millrace_nfs`.
//!
//! Each method of `Client` and `File` returns an `Operation`, which the Python classes
//! either wait for (`millrace_nfs.Client`) or await (`millrace_nfs.aio.Client`). The package's Python modules define its API.

mod client;
mod connection;
mod copying;
mod errors;
mod file;
mod memory;
mod metadata;
mod operation;
mod ranges;
mod runtime;
mod tree;

use pyo3::prelude::*;

/// The module `millrace_nfs._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<file::File>()?;
    module.add_class::<operation::Operation>()?;
    module.add_function(wrap_pyfunction!(client::exports, module)?)
}
