//! `millrace demo`: copies a tree to an embedded server and back over both transports and verifies every
//! byte.
//!
//! The first use of memory costs more than the copy, so a first pass is not shown, and the transports alternate so that
//! neither profits from its place.

mod report;
mod tree;
mod verify;

use std::{path::Path, time::Duration};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_client::{Url, handles::Client};
use millrace_copy::{Item, LocalTree, Options, RemoteTree, TreeCopy};
use millrace_program::{
    cpu, executor,
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Backend, ByteSize, Config, ExportConfig, Running, Server};
use report::{Pass, Passes, Summary, TransferCounts};
use tree::{Limits, Selection, Subset};

use crate::{
    args::DemoArgs, copy_summary::CopySummary, file_error::FileError, interrupt::interrupted,
    scratch::Scratch, session,
};

/// Name of the copies, on the server and in the scratch directory.
const NAME: &str = "tree";
/// The transports of the passes that are shown.
const ORDER: [&str; 4] = ["rdma", "tcp", "tcp", "rdma"];

pub(crate) fn run(args: &DemoArgs) -> CommandResult {
    let limits = Limits { bytes: args.max_bytes.0, files: args.max_files as u64 };
    let selection = tree::choose(args.dir.as_deref(), limits)?;
    let server = start(&selection)?;
    let mut summary = Summary::new(&selection, &server);
    if !args.json {
        output::write(summary.opening().as_bytes())?;
    }
    // Removed when the executor has ended, whose tasks create files in it.
    let scratch =
        Scratch::new().map_err(|e| Failure::new(format!("cannot create a temporary directory: {e}")))?;
    let rt = executor::large()?;
    let passes = rt.block_on(async {
        let all = async {
            let mut passes = Passes::default();
            pass("tcp", &selection, &server, scratch.path()).await?; // Touches the memory.
            for proto in ORDER {
                let pass = pass(proto, &selection, &server, scratch.path()).await?;
                if proto == "rdma" { &mut passes.rdma } else { &mut passes.tcp }.push(pass);
            }
            Ok::<_, Failure>(passes)
        };
        tokio::select! {
            passes = all => passes.map(Some),
            () = interrupted("the copies are removed") => Ok(None),
        }
    })?;
    let Some(passes) = passes else {
        drop(rt);
        return Ok(Outcome::Interrupted);
    };
    rt.shutdown_background();
    summary.passes = Some(passes);
    summary.regions_exposed = server.stats().operations.exposure.regions;
    server.stop_blocking(Duration::from_secs(2));
    if args.json {
        output::line(&summary.json())?;
    } else {
        output::write(summary.closing().as_bytes())?;
    }
    Ok(if summary.all_identical() { Outcome::Done } else { Outcome::Failed })
}

/// Starts a server with one memory export on loopback in this process.
fn start(selection: &Selection) -> Result<Running, Failure> {
    // Small files occupy whole pages, and the copies of both passes may overlap.
    let capacity = selection.bytes + selection.files * 8192 + (64 << 20);
    let backend = Backend::Memory { capacity: ByteSize(capacity) };
    let any_port = "127.0.0.1:0".parse().map_err(|_| Failure::new("no loopback address"))?;
    let config = Config {
        exports: vec![ExportConfig::new("/demo", backend)],
        listen_rdma: vec![any_port],
        listen_tcp: vec![any_port],
        provider: ProviderChoice::Iwarp,
        ..Config::default()
    };
    Server::start(config).map_err(|e| Failure::new(e.to_string()))
}

fn arena() -> Arena {
    Arena::new(ArenaConfig::default())
}

/// Copies the tree to the server, and back to a directory in `scratch`, over one transport.
async fn pass(
    proto: &'static str,
    selection: &Selection,
    server: &Running,
    scratch: &Path,
) -> Result<Pass, Failure> {
    let addr = if proto == "rdma" { server.rdma_addr() } else { server.tcp_addr() };
    let addr = addr.ok_or_else(|| Failure::new("the embedded server has no listening address"))?;
    let url: Url = format!("nfs://{addr}/demo?proto={proto}&provider=iwarp")
        .parse()
        .map_err(|e: millrace_client::Error| Failure::new(e.to_string()))?;
    let client = Client::connect(TokioRuntime::current(), &url, session::options())
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    let back = scratch.join(proto);
    std::fs::create_dir(&back).map_err(|e| Failure::from(FileError::local("create", &back, &e)))?;
    let (before, started) = (TransferCounts::now(server), cpu::own());
    let remote = RemoteTree::new(client.clone());

    let to_server = {
        let source =
            Subset { tree: LocalTree::new(client.arena().clone()), included: selection.included.clone() };
        let item = local_item(&selection.root)?;
        TreeCopy::new(&source, &remote, Options::default()).run(vec![item], client.root()).await
    };
    let from_server = {
        let found = client.lookup(client.root(), NAME).await.map_err(|e| Failure::new(e.to_string()))?;
        let item = Item {
            path: NAME.into(),
            name: NAME.into(),
            node: found.handle,
            meta: (&found.attributes).into(),
        };
        let target = LocalTree::new(arena());
        TreeCopy::new(&remote, &target, Options::default()).run(vec![item], back.clone()).await
    };
    let transferred = TransferCounts::now(server).since(&before).with_client(&client);
    let processor_time = cpu::own() - started;
    let (to_server, from_server) = (CopySummary::from(to_server), CopySummary::from(from_server));
    check(&to_server)?;
    check(&from_server)?;
    let verified = verify::same(&selection.root, &back.join(NAME), &selection.included)
        .map_err(|e| Failure::new(format!("cannot compare the copies: {e}")))?;
    std::fs::remove_dir_all(&back).map_err(|e| Failure::from(FileError::local("remove", &back, &e)))?;
    remove(&client).await?;
    client.shutdown().await;
    Ok(Pass { to_server, from_server, processor_time, transferred, verified })
}

fn local_item(root: &Path) -> Result<Item<std::path::PathBuf>, Failure> {
    Item::local(root, NAME).map_err(|e| Failure::from(FileError::from(&e)))
}

fn check(report: &CopySummary) -> Result<(), Failure> {
    match report.failed.first() {
        None => Ok(()),
        Some(f) => Err(Failure::new(format!(
            "{} files could not be copied; the first is {}: {}",
            report.failed.len(),
            f.path,
            f.error
        ))),
    }
}

/// Removes the tree from the server, before the next pass.
async fn remove(client: &Client) -> Result<(), Failure> {
    let session = session::Session {
        client: client.clone(),
        text: NAME.into(),
        path: NAME.into(),
        wants_dir: false,
        is_contents: false,
    };
    match crate::commands::remove_tree(&session).await? {
        Outcome::Done => Ok(()),
        _ => Err(Failure::new(format!("the tree {NAME} could not be removed from the server"))),
    }
}
