//! `millrace blk attach`.

use std::pin::pin;

use millrace_disk_mount::DiskMount;
use millrace_iscsi_initiator::BlockDevice;
use millrace_nbd::Server;
use millrace_program::{
    executor,
    failure::{CommandResult, Failure, Outcome},
};
use tokio::sync::oneshot;

use super::{CHAP_SECRET, failed, options, parse};
use crate::{args::BlkAttachArgs, background, commands::serve::Signals};

/// Memory for the data of requests in bytes: that of FUSE, and as much for NBD.
const MEMORY: usize = 512 << 20;

/// The mount and the NBD server that use the disk.
struct Users {
    mount: Option<DiskMount>,
    server: Option<Server>,
}

pub(super) fn run(args: &BlkAttachArgs) -> CommandResult {
    hide_secret(&args.url)?;
    background::run(args.daemon, || attach(args))
}

/// Moves the CHAP secret of the URL, if it has one, from the arguments of this process to its environment.
fn hide_secret(url: &str) -> Result<(), Failure> {
    let parsed = parse(url)?;
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let secret = authority.and_then(|a| Some(a.rsplit_once('@')?.0.split_once('%')?.1));
    let (Some(_), Some(secret)) = (&parsed.secret, secret) else { return Ok(()) };
    // The variable takes precedence over the URL.
    let secret = std::env::var_os(CHAP_SECRET).unwrap_or_else(|| secret.into());
    let e = background::execute_without(url, &parsed.to_string(), (CHAP_SECRET, &secret));
    Err(Failure::new(format!(
        "cannot hide the CHAP secret of the URL from other users: {e}; use --chap-secret-file or {CHAP_SECRET} instead"
    )))
}

/// Attaches the disk, and serves it until a signal or umount(8) ends that.
fn attach(args: &BlkAttachArgs) -> CommandResult {
    let rt = executor::large()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let url = parse(&args.url)?;
    let mut options = options(&url, &args.options)?;
    options.memory = MEMORY;
    let disk = rt.block_on(BlockDevice::connect(&url, &options)).map_err(|e| failed(&e))?;
    let users = {
        let _context = rt.enter();
        Users::new(&disk, args)?
    };
    let names = users.names();
    background::ready(args.daemon, &names, || rt.block_on(serve(&disk, users, &mut signals)))
}

impl Users {
    fn new(disk: &BlockDevice, args: &BlkAttachArgs) -> Result<Self, Failure> {
        let mut options = millrace_nbd::Options::default();
        options.read_only = args.read_only;
        let server = args.nbd.as_ref().map(|socket| Server::bind(socket, disk.clone(), options));
        let server = server.transpose().map_err(|e| Failure::new(e.to_string()))?;
        let mount = args.dir.as_ref().map(|dir| DiskMount::new(disk.clone(), dir, args.read_only));
        let mount = mount.transpose().map_err(|e| Failure::new(e.to_string()))?;
        Ok(Self { mount, server })
    }

    /// The file and the URI.
    fn names(&self) -> String {
        let file = self.mount.iter().map(|mount| mount.file().display().to_string());
        file.chain(self.server.iter().map(Server::uri)).collect::<Vec<_>>().join(" ")
    }
}

/// Serves the disk until a signal, umount(8), or a failure of the server. Then it is flushed and closed.
async fn serve(disk: &BlockDevice, users: Users, signals: &mut Signals) -> CommandResult {
    let Users { mount, server } = users;
    let path = mount.as_ref().map(|mount| mount.path().to_owned());
    let (stop, stopped) = oneshot::channel::<()>();
    let mut clients = pin!(async {
        // The sender is dropped, never used.
        let stopped = async { drop(stopped.await) };
        match server {
            Some(server) => server.serve(stopped).await.map_err(|e| Failure::new(e.to_string())),
            None => {
                stopped.await;
                Ok(())
            }
        }
    });
    let ended = tokio::select! {
        name = signals.end() => {
            tracing::info!("{name}: ending and flushing the disk; a second signal exits immediately");
            None
        }
        () = unmounted(mount.as_ref()) => None,
        ended = &mut clients => Some(ended),
    };
    let end = async {
        drop(stop);
        let served = match ended {
            Some(ended) => ended,
            None => clients.await,
        };
        let unmounted = match mount {
            Some(mount) => {
                let at = mount.path().display().to_string();
                let flushed = mount.unmount().await;
                flushed.map_err(|e| Failure::new(format!("{at} was unmounted, but {e}")))
            }
            None => Ok(()),
        };
        disk.close().await;
        served.and(unmounted).map(|()| Outcome::Done)
    };
    tokio::select! {
        end = end => end,
        name = signals.end() => {
            tracing::warn!("second {name}: exiting without flushing the disk");
            if let Some(path) = path {
                // The disk may be unmounted already.
                let _ = millrace_fuse::detach(&path);
            }
            std::process::exit(1)
        }
    }
}

/// Waits until the disk was unmounted; forever if there is no mount.
async fn unmounted(mount: Option<&DiskMount>) {
    let Some(mount) = mount else { return std::future::pending().await };
    mount.ended().await;
    tracing::info!("{} was unmounted", mount.path().display());
}
