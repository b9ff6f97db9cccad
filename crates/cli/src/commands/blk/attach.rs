//! `millrace blk attach`.

use millrace_block::BlockDevice;
use millrace_cli_common::{
    executor,
    failure::{CommandResult, Failure, Outcome},
};
use millrace_fuse::DiskMount;

use super::open;
use crate::{args::BlkAttachArgs, background, commands::serve::Signals};

pub(super) fn run(args: &BlkAttachArgs) -> CommandResult {
    background::run(args.daemon, || attach(args))
}

/// Attaches the disk, and serves it until a signal or umount(8) ends that.
fn attach(args: &BlkAttachArgs) -> CommandResult {
    let rt = executor::large()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let disk = rt.block_on(open(&args.url, &args.options))?;
    let mount = {
        let _context = rt.enter();
        DiskMount::new(disk.clone(), &args.dir, args.read_only).map_err(|e| Failure::new(e.to_string()))?
    };
    let file = mount.file().display().to_string();
    background::ready(args.daemon, &file, || rt.block_on(serve(&disk, mount, &mut signals)))
}

async fn serve(disk: &BlockDevice, mount: DiskMount, signals: &mut Signals) -> CommandResult {
    let path = mount.path().to_owned();
    tokio::select! {
        name = signals.end() => {
            tracing::info!("{name}: unmounting and flushing the disk; a second signal exits immediately");
        }
        () = mount.ended() => tracing::info!("{} was unmounted", path.display()),
    }
    let end = async {
        let flushed = mount.unmount().await;
        disk.close().await;
        flushed.map(|()| Outcome::Done).map_err(|e| Failure::new(e.to_string()))
    };
    tokio::select! {
        end = end => end,
        name = signals.end() => {
            tracing::warn!("second {name}: exiting without flushing the disk");
            // It may be unmounted already.
            let _ = millrace_fuse::detach(&path);
            std::process::exit(1)
        }
    }
}
