//! Common parts of the cases of this group: a server with one export, and a guest that mounts it.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::HOST,
    program,
    server::{RDMA_PORT, ServerOptions, TCP_PORT},
    tree::Manifest,
};

/// The export of every server of this group.
pub(in crate::cases) const EXPORT: &str = "/export";

/// The backend of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cases) enum Backend {
    Memory,
    Local,
    /// A local backend whose names and attributes are durable before the reply, as by default. Each entry of
    /// a tree waits for the disk several times, so that only a few cases use it.
    Durable,
}

impl Backend {
    pub(in crate::cases) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
            Self::Durable => "durable",
        }
    }

    /// A server with an export of this backend. A local one exports the directory `export` of the case.
    pub(in crate::cases) fn options(self, lab: &Lab) -> Result<ServerOptions> {
        Ok(match self {
            Self::Memory => ServerOptions::default().memory(EXPORT, "256MiB"),
            Self::Local => {
                ServerOptions::default().local(EXPORT, &lab.directory("export")?, "sync_metadata = false")
            }
            Self::Durable => ServerOptions::default().local(EXPORT, &lab.directory("export")?, ""),
        })
    }
}

/// Boots a guest with a siw device.
pub(in crate::cases) fn boot(lab: &mut Lab, options: &GuestOptions) -> Result<Guest> {
    let mut guest = lab.guest(options)?;
    guest.add_siw()?;
    Ok(guest)
}

/// A shell function that mounts with options, and tries again when the source port is not available: the kernel's
/// RDMA connection manager chooses a random port for a siw connection, even one that a TCP connection in TIME_WAIT
/// occupies, and the mount fails with EADDRNOTAVAIL.
pub(in crate::cases) const NFS_MOUNT: &str = "nfs_mount() { local i error; for i in $(seq 10); do error=$(mount -t nfs -o \"$@\" 2>&1) \
                         && return; case $error in *'assign requested address'*) ;; *) break;; esac; done; \
                         echo \"$error\" >&2; return 32; }; ";

/// The command that mounts the export on the new directory `at` with NFSv3. `more` is further options, each after
/// a comma.
pub(in crate::cases) fn mount_command(proto: &str, at: &str, more: &str) -> String {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    format!(
        "{NFS_MOUNT}mkdir -p {at} && nfs_mount vers=3,nolock,proto={proto},port={port},mountproto=tcp,\
         mountport={TCP_PORT}{more} {HOST}:{EXPORT} {at}"
    )
}

/// As [`mount_command`], for NFSv4.2 and any `path` of the server, with no other options than the transport and
/// `more`.
pub(in crate::cases) fn mount_v4_command(proto: &str, path: &str, at: &str, more: &str) -> String {
    format!("{NFS_MOUNT}mkdir -p {at} && nfs_mount vers=4.2,proto={proto}{more} {HOST}:{path} {at}")
}

/// Mounts the export on new directories of the host with `millrace mount`, once with each version of NFS, so that programs
/// see the changes of others at once.
pub(in crate::cases) fn mount_on_host(lab: &Lab, proto: &str, versions: [&str; 2]) -> Result<[PathBuf; 2]> {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    let url = format!("nfs://{HOST}:{port}{EXPORT}?proto={proto}");
    let mount = |name, version| -> Result<PathBuf> {
        let at = lab.directory(name)?;
        let options = format!("vers={version},lookupcache=none,actimeo=0");
        lab::millrace(&["mount", &url, &at.display().to_string(), "--daemon", "-o", &options])?.ok()?;
        Ok(at)
    };
    Ok([mount("one", versions[0])?, mount("two", versions[1])?])
}

/// Unmounts directories of the host.
pub(in crate::cases) fn unmount_on_host(mounts: &[PathBuf]) -> Result<()> {
    mounts.iter().try_for_each(|at| program::must("umount", &[&at.display().to_string()]).map(drop))
}

/// The manifest of a directory of the guest.
pub(in crate::cases) fn manifest(guest: &mut Guest, dir: &str) -> Result<Manifest> {
    let interop = guest.interop()?;
    Manifest::parse(&guest.must(&format!("{interop} tree manifest {dir}"))?)
}

/// Makes the tree of `seed` in the guest's memory and returns its manifest.
pub(in crate::cases) fn make_tree(lab: &Lab, guest: &mut Guest, dir: &str, seed: u64) -> Result<Manifest> {
    let interop = guest.interop()?;
    let quick = if lab.quick { "--quick" } else { "" };
    guest.must(&format!("{interop} tree make {dir} --seed {seed} {quick}"))?;
    manifest(guest, dir)
}

/// Checks that the client has sent each of `operations` of NFSv4 since the mount.
pub(in crate::cases) fn must_have_sent(guest: &mut Guest, operations: &[&str]) -> Result<()> {
    for operation in operations {
        let sent = format!("awk '$1 == \"{operation}:\" {{ print $2 }}' /proc/self/mountstats");
        let count = guest.must(&sent)?;
        ensure!(count.trim().parse::<u32>()? > 0, "the client has not sent {operation}");
    }
    Ok(())
}
