//! Builder of clients.

use std::{convert::Infallible, time::Duration};

use millrace_oncrpc::SecurityFlavor;
use millrace_rdma::registration::{Invalidation, Strategy};
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::ProtocolRef;
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};

use crate::{
    Client, Error, Identity, Options, Proto, RetryPolicy, Tls, Url, Version, blocking, handles,
    options::with_setters,
};

impl TryFrom<&str> for Url {
    type Error = Error;

    fn try_from(url: &str) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<&String> for Url {
    type Error = Error;

    fn try_from(url: &String) -> Result<Self, Error> {
        url.parse()
    }
}

impl TryFrom<String> for Url {
    type Error = Error;

    fn try_from(url: String) -> Result<Self, Error> {
        url.parse()
    }
}

impl From<&Self> for Url {
    fn from(url: &Self) -> Self {
        url.clone()
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Builder of a client, from [`Client::builder`]. It has a method for each field of [`Options`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use std::time::Duration;
/// use millrace_client::{Client, Identity};
///
/// // "nfs://server.example/export"
/// let client = Client::builder(url)
///     .nconnect(4)
///     .timeout(Duration::from_secs(10))
///     .credential(Identity { uid: 1000, gid: 1000, ..Identity::default() })
///     .connect()
///     .await?;
/// # drop(client);
/// # Ok(()) }) }
/// ```
#[must_use = "call connect()"]
#[derive(Debug)]
pub struct ClientBuilder {
    url: Result<Url, Error>,
    runtime: Runtime,
    pub(crate) options: Options,
}

/// The runtime of the client's tasks.
enum Runtime {
    /// The Tokio runtime of the caller of `connect`.
    Current,
    /// The argument of [`ClientBuilder::runtime`].
    Given(RuntimeRef),
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Current => "Current",
            Self::Given(_) => "Given",
        })
    }
}

impl ClientBuilder {
    pub(crate) fn new<U>(url: U) -> Self
    where
        U: TryInto<Url>,
        Error: From<U::Error>,
    {
        Self {
            url: url.try_into().map_err(Error::from),
            runtime: Runtime::Current,
            options: Options::default(),
        }
    }

    /// Replaces all options. Parameters of the URL take precedence over them.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Runs the client's tasks on `runtime`; the default is the Tokio runtime in which [`Self::connect`] is
    /// called.
    pub fn runtime(mut self, runtime: RuntimeRef) -> Self {
        self.runtime = Runtime::Given(runtime);
        self
    }

    /// Connects to the server and mounts the longest export that contains the path of the URL.
    ///
    /// # Errors
    /// [`Error::Url`] if the URL is invalid, [`Error::Local`] outside a Tokio runtime (unless
    /// [`Self::runtime`] was called), [`Error::Resolve`], [`Error::Connect`], [`Error::UnknownExport`],
    /// [`Error::Mount`], and the errors of a call.
    pub async fn connect(self) -> Result<Client, Error> {
        let runtime = match self.runtime {
            Runtime::Given(runtime) => runtime,
            Runtime::Current => current_runtime()?,
        };
        Ok(handles::Client::connect(runtime, &self.url?, self.options).await?.into())
    }

    /// Connects a blocking client, whose background thread has its own runtime; otherwise as
    /// [`Self::connect`].
    ///
    /// # Errors
    /// As [`Self::connect`]; [`Error::InvalidInput`] after a call of [`Self::runtime`].
    ///
    /// # Panics
    /// If it is called from asynchronous code.
    pub fn connect_blocking(self) -> Result<blocking::Client, Error> {
        if let Runtime::Given(_) = self.runtime {
            return Err(Error::InvalidInput(
                "a blocking client has its own runtime: remove the call of ClientBuilder::runtime".into(),
            ));
        }
        blocking::Client::new(&self.url?, self.options)
    }
}

/// Defines setters on [`ClientBuilder`].
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        impl ClientBuilder {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: $type) -> Self {
                    self.options.$name = $name;
                    self
                }
            )*
        }
    };
}

with_setters!(setters);

/// Returns the Tokio runtime of the caller.
fn current_runtime() -> Result<RuntimeRef, Error> {
    let handle = tokio::runtime::Handle::try_current();
    let handle = handle.map_err(|e| Error::Local(format!("cannot connect: {e}; call connect from a Tokio runtime, set one with ClientBuilder::runtime, or use millrace_client::blocking")))?;
    Ok(TokioRuntime::from_handle(handle))
}
