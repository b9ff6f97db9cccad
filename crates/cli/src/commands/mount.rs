//! `millrace mount` and `umount`.

use std::time::Duration;

use millrace_client::Url;
use millrace_fuse::{Mount, MountError, MountOptions};
use millrace_program::failure::{CommandResult, Failure, Outcome};
use tokio::runtime::Runtime;

use super::serve::Signals;
use crate::{
    args::{MountArgs, UmountArgs},
    background, session,
};

pub(super) fn run(args: &MountArgs) -> CommandResult {
    let url = session::parse(&args.url)?;
    if millrace_fuse::is_remount(&args.options) {
        return millrace_fuse::remount(&args.dir, &args.options)
            .map(|()| Outcome::Done)
            .map_err(|e| failure(&e));
    }
    let mut options = MountOptions::default();
    for list in &args.options {
        options.read(list, args.sloppy).map_err(|e| failure(&e))?;
    }
    if args.fake {
        return Ok(Outcome::Done);
    }
    background::run(args.daemon, || serve(&url, &options, args))
}

pub(super) fn umount(args: &UmountArgs) -> CommandResult {
    millrace_fuse::umount(&args.dir).map(|()| Outcome::Done).map_err(|e| Failure::new(e.to_string()))
}

/// Mounts the export, and serves the mount until it ends.
fn serve(url: &Url, options: &MountOptions, args: &MountArgs) -> CommandResult {
    // An executor for signals only: the mount starts its own threads.
    let rt = millrace_program::executor::small()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let mount = Mount::new(url, &args.dir, options, session::options()).map_err(|e| failure(&e))?;
    let path = mount.path().display().to_string();
    background::ready(args.daemon, &path, || serve_until_unmounted(mount, &rt, &mut signals, args))
}

/// Waits until a signal or umount(8) ends the mount, and unmounts it.
fn serve_until_unmounted(
    mount: Mount,
    rt: &Runtime,
    signals: &mut Signals,
    args: &MountArgs,
) -> CommandResult {
    let path = mount.path().to_owned();
    let mut has_signal = rt.block_on(async {
        tokio::select! {
            name = signals.end() => { log_first_signal(name); true }
            () = mount.ended() => { tracing::info!("{} was unmounted", path.display()); false }
        }
    });
    let (sender, mut done) = tokio::sync::oneshot::channel();
    let grace = Duration::from_secs(args.grace);
    std::thread::spawn(move || sender.send(mount.unmount(grace)));
    rt.block_on(async {
        loop {
            tokio::select! {
                done = &mut done => return match done {
                    Ok(done) => done.map(|()| Outcome::Done).map_err(|e| failure(&e)),
                    Err(_) => Err(Failure::new("the thread that unmounts has panicked")),
                },
                name = signals.end() => {
                    if has_signal {
                        tracing::warn!("second {name}: exiting without writing back cached data");
                        let _ = millrace_fuse::detach(&path);
                        std::process::exit(1)
                    }
                    log_first_signal(name);
                    has_signal = true;
                }
            }
        }
    })
}

fn log_first_signal(signal: &str) {
    tracing::info!("{signal}: writing back cached data, then unmounting; a second signal exits immediately");
}

fn failure(e: &MountError) -> Failure {
    match e {
        MountError::Option { .. } => Failure::usage(e.to_string()),
        _ => Failure::new(e.to_string()),
    }
}
