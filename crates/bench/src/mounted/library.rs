//! The client library without FUSE.

use std::time::Instant;

use futures::{StreamExt, TryStreamExt, stream};
use millrace_client::{
    Options, Url,
    handles::Client,
    ops::{CreateHow, FileHandle, SetAttributes},
};
use millrace_runtime::tokio_rt::TokioRuntime;

use super::{Case, ENTRIES, FILES, JOBS, MountBench, RECORD, SMALL, calls::Measured, name};
use crate::{
    BenchError, Figure, VERSION,
    embedded::EmbeddedServer,
    iozone::{self, Iozone, Session, Test},
};

/// Number of calls in flight for the creation of files and for bulk data.
const DEPTH: usize = 8;

/// A client for metadata operations, and a separate connection for data, as in the iozone benchmark.
pub(super) struct Library {
    rt: tokio::runtime::Runtime,
    client: Client,
    data: Session,
}

fn failed(e: millrace_client::Error) -> BenchError {
    BenchError::Client(e.to_string())
}

impl Library {
    /// Connects to the server at `url`.
    pub(super) fn open(url: &str, config: &MountBench) -> Result<Self, BenchError> {
        let url: Url = url.parse().map_err(failed)?;
        let options = Options::default().vers(Some(VERSION)).provider(config.at.provider);
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(BenchError::io("create a runtime"))?;
        let handle = TokioRuntime::from_handle(rt.handle().clone());
        let client = rt.block_on(Client::connect(handle, &url, options.clone())).map_err(failed)?;
        let data = Session::open(Iozone { url, options, threads: 1, size: config.size })?;
        data.prepare()?;
        Ok(Self { rt, client, data })
    }

    /// Creates the directories of small files.
    pub(super) fn fill(&self, config: &MountBench) -> Result<(), BenchError> {
        self.rt
            .block_on(async {
                for (sub, n) in [(FILES, config.files), (ENTRIES, config.entries)] {
                    let how = || SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
                    let dir = self.client.mkdir(self.client.root(), sub, how()).await?.handle;
                    let made = (0..n).map(|i| self.client.create(dir, name(i), CreateHow::Unchecked(how())));
                    stream::iter(made).buffer_unordered(DEPTH).try_for_each(|_| async { Ok(()) }).await?;
                }
                Ok(())
            })
            .map_err(failed)
    }

    pub(super) fn measure(
        &self,
        case: Case,
        config: &MountBench,
        server: &EmbeddedServer,
    ) -> Result<Figure, BenchError> {
        let run = |test, record, outstanding| {
            let run = iozone::Run { test, record, outstanding, passes: 1, random_ops: config.random_ops };
            self.data.run(&run, Some(server))
        };
        let measured = match case {
            Case::Write => return run(Test::Write, RECORD, DEPTH),
            Case::Read => return run(Test::Read, RECORD, DEPTH),
            Case::RandomRead => return run(Test::RandomRead, SMALL, JOBS),
            Case::Stat => self.rt.block_on(self.look_up(config.files)),
            // One READDIRPLUS returns names and attributes.
            Case::List | Case::ListAttributes => self.rt.block_on(self.list()),
        }
        .map_err(failed)?;
        let rate = measured.operations as f64 / measured.took.as_secs_f64().max(1e-9);
        Ok(Figure { ops_per_s: Some(rate), ..Figure::default() })
    }

    async fn dir(&self, name: &str) -> Result<FileHandle, millrace_client::Error> {
        Ok(self.client.lookup(self.client.root(), name).await?.handle)
    }

    async fn look_up(&self, files: u32) -> Result<Measured, millrace_client::Error> {
        let dir = self.dir(FILES).await?;
        let start = Instant::now();
        for n in 0..files {
            self.client.lookup(dir, name(n)).await?;
        }
        Ok(Measured { bytes: 0, operations: files.into(), took: start.elapsed() })
    }

    async fn list(&self) -> Result<Measured, millrace_client::Error> {
        let dir = self.dir(ENTRIES).await?;
        let start = Instant::now();
        let entries = self.client.readdir(dir).await?;
        let operations = entries.iter().filter(|e| !e.is_dot()).count() as u64;
        Ok(Measured { bytes: 0, operations, took: start.elapsed() })
    }
}
