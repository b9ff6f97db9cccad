//! `millrace blk`: access to iSCSI disks without a mount.
//!
//! `run` executes a subcommand, each of which has a file. What they share is here: URLs, credentials, and
//! opening a `BlockDevice`.

mod attach;
mod bench;
mod copy;
mod list;

use std::{os::unix::ffi::OsStringExt, path::Path, time::Duration};

use millrace_iscsi_initiator::{BlockDevice, Credentials, DigestPolicy, Error, Mutual, Options, Secret, Url};
use millrace_program::failure::{CommandResult, Failure};

use crate::{
    args::{BlkCommand, BlkOptions},
    session,
};

/// Environment variable with the CHAP secret of the initiator.
const CHAP_SECRET: &str = "MILLRACE_CHAP_SECRET";

pub(super) fn run(command: BlkCommand) -> CommandResult {
    match command {
        BlkCommand::Ls(args) => list::ls(&args),
        BlkCommand::Info(args) => list::info(&args),
        BlkCommand::Cp(args) => copy::cp(&args),
        BlkCommand::Bench(args) => bench::run(&args),
        BlkCommand::Attach(args) => attach::run(&args),
    }
}

/// The failure of a command because of `e`.
fn failed(e: &Error) -> Failure {
    match e {
        Error::Url { .. } | Error::InvalidInput(_) => Failure::usage(e.to_string()),
        _ => Failure::new(e.to_string()),
    }
}

/// Parses the URL of a portal, a target or a disk.
pub(super) fn parse(url: &str) -> Result<Url, Failure> {
    url.parse().map_err(|e| failed(&e))
}

async fn open(url: &str, args: &BlkOptions) -> Result<BlockDevice, Failure> {
    let url = parse(url)?;
    BlockDevice::connect(&url, &options(&url, args)?).await.map_err(|e| failed(&e))
}

/// The options of the command line for connections to `url`.
fn options(url: &Url, args: &BlkOptions) -> Result<Options, Failure> {
    let mut options = Options::default();
    if let Some(initiator) = &args.initiator {
        options.initiator = initiator.clone();
    }
    if args.digests {
        options.digests = DigestPolicy::Require;
    }
    options.provider = session::global().provider.unwrap_or_default();
    options.timeout = Duration::from_secs(args.timeout);
    options.chap = chap(url, args)?;
    Ok(options)
}

/// The credentials of the command line; `None` if those of the URL, if any, are to be used.
fn chap(url: &Url, args: &BlkOptions) -> Result<Option<Mutual>, Failure> {
    let own = secret(args.chap_secret_file.as_deref(), CHAP_SECRET)?.or_else(|| url.secret.clone());
    let user = args.chap_user.clone().or_else(|| url.user.clone());
    let initiator = match (user, own) {
        (Some(name), Some(secret)) => Credentials { name, secret },
        (None, None) if args.target_user.is_none() => return Ok(None),
        (Some(name), None) => {
            return Err(Failure::usage(format!(
                "the CHAP user {name} has no secret; add --chap-secret-file"
            )));
        }
        (None, _) => return Err(Failure::usage("CHAP needs a name; add --chap-user")),
    };
    let target = match &args.target_user {
        None => None,
        Some(name) => {
            let secret = secret(args.target_secret_file.as_deref(), "MILLRACE_TARGET_CHAP_SECRET")?;
            let missing = || {
                Failure::usage(format!("the target's user {name} has no secret; add --target-secret-file"))
            };
            Some(Credentials { name: name.clone(), secret: secret.ok_or_else(missing)? })
        }
    };
    Mutual::new(initiator, target).map(Some).map_err(|e| Failure::usage(e.to_string()))
}

/// The secret in `file`, without the end of its line, or in the environment.
fn secret(file: Option<&Path>, variable: &str) -> Result<Option<Secret>, Failure> {
    let (bytes, source) = match file {
        Some(file) => {
            let read = std::fs::read(file);
            let failed = |e| Failure::new(format!("cannot read the CHAP secret in {}: {e}", file.display()));
            (read.map_err(failed)?, file.display().to_string())
        }
        None => match std::env::var_os(variable) {
            Some(value) => (value.into_vec(), variable.to_owned()),
            None => return Ok(None),
        },
    };
    let secret = Secret::new(bytes.trim_ascii_end());
    secret.map(Some).map_err(|e| Failure::usage(format!("{source}: {e}")))
}
