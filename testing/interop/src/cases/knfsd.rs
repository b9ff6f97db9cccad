//! `millrace` on the host uses the Linux kernel's NFS server, over RDMA by siw and over TCP.

mod conformance;
mod delegations;

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Result, anyhow, ensure};

use super::Case;
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::{ETHERNET_MTU, LARGE_MTU},
    tree::{self, Manifest},
};

/// Starts the kernel's server with two exports in the guest's memory.
pub(super) const START: &str = "
set -e
mkdir -p /mnt/export /mnt/secure
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
rpcbind -w || rpcbind
exportfs -i -o rw,async,no_root_squash,insecure,no_subtree_check,fsid=1 '*:/mnt/export'
exportfs -i -o rw,async,no_root_squash,secure,no_subtree_check,fsid=2 '*:/mnt/secure'
rpc.nfsd --no-nfs-version 4 --tcp --rdma=20049 --port 2049 8
rpc.mountd";
/// As [`START`], with NFSv4 too, whose root is the export with fsid 0. The shortest grace period: the client's reads
/// and writes wait for its end.
pub(super) fn start_v4() -> String {
    let start = START.replace("--no-nfs-version 4 ", "").replace("fsid=1", "fsid=0");
    start.replace(
        "rpcbind -w",
        "echo 10 > /proc/fs/nfsd/nfsv4leasetime
echo 10 > /proc/fs/nfsd/nfsv4gracetime
rpcbind -w",
    )
}

/// Starts the kernel's server with NFSv4 only, whose root is the export. The daemon that tracks clients has no records, so
/// that there is no grace period. In the first second after boot, the kernel takes each client for an expired one: the time
/// of its last renewal is 0 seconds, by which `fs/nfsd/nfs4state.c` marks expired clients.
pub(super) const START_V4_ONLY: &str = "
set -e
mkdir -p /mnt/export
mount -t nfsd nfsd /proc/fs/nfsd
mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
rpcbind -w || rpcbind
exportfs -i -o rw,async,no_root_squash,insecure,no_subtree_check,fsid=0 '*:/mnt/export'
mkdir -p /run/nfsdcld
nfsdcld --pipefsdir /run/rpc_pipefs --storagedir /run/nfsdcld
while read -r up _ </proc/uptime && [ \"${up%%.*}\" = 0 ]; do sleep 0.1; done
rpc.nfsd --no-nfs-version 3 --nfs-version 4 --tcp --rdma=20049 --port 2049 8
rpc.mountd";
const START_AGAIN: &str = "rpc.nfsd --no-nfs-version 4 --tcp --rdma=20049 --port 2049 8";

/// One variant of a transfer.
#[derive(Debug, Clone, Copy)]
struct Variant {
    proto: &'static str,
    /// Further URL options, each after a `&`.
    options: &'static str,
    mtu: u32,
}

impl Variant {
    fn is_v4(self) -> bool {
        self.options.contains("vers=4")
    }
}

pub(super) fn cases() -> Vec<Case> {
    let rdma = Variant { proto: "rdma", options: "", mtu: LARGE_MTU };
    let tcp = Variant { proto: "tcp", ..rdma };
    let variants = [
        ("tree", rdma),
        ("tree-mtu-1500", Variant { mtu: ETHERNET_MTU, ..rdma }),
        ("size-4k", Variant { options: "&rsize=4K&wsize=4K", ..rdma }),
        ("size-64k", Variant { options: "&rsize=64K&wsize=64K", ..rdma }),
        ("size-1m", Variant { options: "&rsize=1M&wsize=1M", ..rdma }),
        ("nconnect-4", Variant { options: "&nconnect=4", ..rdma }),
        // More connections than the kernel's listener accepts at once.
        ("nconnect-16", Variant { options: "&nconnect=16", ..rdma }),
        ("tree-v4.2", Variant { options: "&vers=4.2", ..rdma }),
        ("nconnect-4-v4.1", Variant { options: "&vers=4.1&nconnect=4", ..rdma }),
        ("tree-v4.2", Variant { options: "&vers=4.2", ..tcp }),
        ("tree", tcp),
        ("size-64k", Variant { options: "&rsize=64K&wsize=64K", ..tcp }),
        ("nconnect-4", Variant { options: "&nconnect=4", ..tcp }),
    ];
    let mut cases: Vec<Case> = variants
        .into_iter()
        .map(|(what, variant)| {
            Case::new(format!("knfsd/{}/{what}", variant.proto), move |lab| round_trip(lab, variant))
        })
        .collect();
    for variant in [rdma, tcp] {
        cases.push(Case::new(format!("knfsd/{}/restart", variant.proto), move |lab| restart(lab, variant)));
        cases.push(Case::new(format!("knfsd/{}/files", variant.proto), move |lab| files(lab, variant)));
    }
    cases.extend(conformance::cases());
    cases.extend(delegations::cases());
    cases
}

/// Boots a guest that serves the version of NFS of the variant.
fn serve(lab: &mut Lab, variant: Variant) -> Result<Guest> {
    // The NFSv4 part of knfsd runs without the daemon that tracks clients, and logs that.
    lab.expect_log("NFSD: ");
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu: variant.mtu, ..GuestOptions::default() })?;
    guest.add_siw()?;
    guest.must(&if variant.is_v4() { start_v4() } else { START.to_owned() })?;
    Ok(guest)
}

/// The URL of a path of the guest. The export is the root with NFSv4.
fn url(guest: &Guest, variant: Variant, path: &str) -> String {
    let path = match path.strip_prefix("/mnt/export") {
        Some(rest) if variant.is_v4() => format!("/{}", rest.trim_start_matches('/')),
        _ => path.to_owned(),
    };
    format!("nfs://{}{path}?proto={}{}", guest.address(), variant.proto, variant.options)
}

/// The manifest of a directory of the guest, read without NFS.
fn manifest(guest: &mut Guest, dir: &str) -> Result<Manifest> {
    let interop = guest.interop()?;
    Manifest::parse(&guest.must(&format!("{interop} tree manifest {dir}"))?)
}

const COPY: [&str; 5] = ["--recursive", "--hard-links", "--owner", "--verify", "--quiet"];

/// `put` or `get` of a whole tree, with all attributes that it can preserve.
fn copy(command: &str, from: &str, to: &str) -> Result<()> {
    let args = [&[command][..], &COPY, &[from, to]].concat();
    lab::millrace(&args)?.ok().map(drop)
}

/// Copies a tree to the kernel's server and back.
fn round_trip(lab: &mut Lab, variant: Variant) -> Result<()> {
    let mut guest = serve(lab, variant)?;
    let (source, back) = (lab.dir.join("tree"), lab.directory("back")?);
    tree::make(&source, 1, lab.quick)?;
    let want = Manifest::of(&source)?;
    copy("put", &source.display().to_string(), &url(&guest, variant, "/mnt/export"))?;
    want.expect_same(&manifest(&mut guest, "/mnt/export/tree")?, "the tree of the kernel's server")?;
    if variant.options.contains("vers=4.2") {
        copy_within(&mut guest, variant, &want)?;
    }
    copy("get", &url(&guest, variant, "/mnt/export/tree"), &back.display().to_string())?;
    want.expect_same(&Manifest::of(&back.join("tree"))?, "the tree that was copied back")?;
    let crowd = fs::read_dir(source.join("crowd"))?.count();
    let listed = lab::millrace(&["ls", &url(&guest, variant, "/mnt/export/tree/crowd")])?.ok()?.stdout;
    ensure!(listed.lines().count() == crowd, "{} of {crowd} names are listed", listed.lines().count());
    lab.finish(vec![guest], &[])
}

/// Copies the tree within the kernel's server, which copies the large files itself (COPY).
fn copy_within(guest: &mut Guest, variant: Variant, want: &Manifest) -> Result<()> {
    let at = |path: &str| url(guest, variant, path);
    let args = ["cp", "--recursive", "--hard-links", "--owner", "--quiet"];
    let paths = [at("/mnt/export/tree"), at("/mnt/export/again")];
    lab::millrace(&[&args[..], &paths.each_ref().map(String::as_str)].concat())?.ok()?;
    want.expect_same(&manifest(guest, "/mnt/export/again")?, "the copy within the kernel's server")?;
    // `proc4ops`, the number of operations, and a counter for each; COPY is operation 60.
    let copies = guest.must("awk '$1 == \"proc4ops\" { print $(60 + 3) }' /proc/net/rpc/nfsd")?;
    ensure!(copies.trim().parse::<u32>()? > 0, "the server has not executed COPY");
    guest.must("rm -r /mnt/export/again").map(drop)
}

/// The kernel's server is stopped and restarted during a copy.
fn restart(lab: &mut Lab, variant: Variant) -> Result<()> {
    lab.expect_log("nfsd: last server has exited");
    let mut guest = serve(lab, variant)?;
    let source = lab.dir.join("tree");
    tree::make(&source, 1, lab.quick)?;
    let want = Manifest::of(&source)?;
    let mut attempts = 0;
    while !interrupted_copy(&mut guest, variant, &source)? {
        attempts += 1;
        ensure!(attempts < 8, "no copy was interrupted: each ended before the server was stopped");
        guest.must("rm -r /mnt/export/tree")?;
    }
    want.expect_same(&manifest(&mut guest, "/mnt/export/tree")?, "the tree of the kernel's server")?;
    lab.finish(vec![guest], &[])
}

/// Stops the kernel's server during a copy and restarts it; whether the copy was still in progress.
fn interrupted_copy(guest: &mut Guest, variant: Variant, source: &Path) -> Result<bool> {
    let (from, to) = (source.display().to_string(), url(guest, variant, "/mnt/export"));
    let put = thread::spawn(move || copy("put", &from, &to));
    guest.must("while [ $(find /mnt/export | wc -l) -lt 50 ]; do sleep 0.01; done")?;
    guest.must("rpc.nfsd 0")?;
    let interrupted = !put.is_finished();
    thread::sleep(Duration::from_millis(300));
    guest.must(START_AGAIN)?;
    put.join().map_err(|_| anyhow!("the copying thread panicked"))??;
    Ok(interrupted)
}

/// Single files, names of the maximum length, and requests that the kernel's server refuses.
fn files(lab: &mut Lab, variant: Variant) -> Result<()> {
    let mut guest = serve(lab, variant)?;
    let at = |path: &str| url(&guest, variant, path);
    let (long, short) = (lab.dir.join("long"), lab.dir.join("short"));
    fs::write(&long, vec![b'l'; 3_000_000])?;
    fs::write(&short, "short")?;
    for file in [&long, &short] {
        lab::millrace(&["put", "--verify", &file.display().to_string(), &at("/mnt/export/file")])?.ok()?;
    }
    let read = lab::millrace(&["cat", &at("/mnt/export/file")])?.ok()?.stdout;
    ensure!(read == "short", "a file that was replaced by a shorter one has {} bytes", read.len());
    lab::millrace(&["mkdir", &at(&format!("/mnt/export/{}", "n".repeat(255)))])?.ok()?;
    let refused = |what: &str, args: &[&str], text: &str| -> Result<()> {
        let stderr = lab::millrace(args)?.failed()?;
        ensure!(stderr.contains(text), "{what}: {stderr}");
        Ok(())
    };
    let name = format!("/mnt/export/{}", "n".repeat(256));
    refused("a name of 256 bytes", &["mkdir", &at(&name)], "the name is too long")?;
    // The kernel's server gives the same answer for an export that does not exist and one that the client may
    // not mount.
    refused("an unknown export", &["ls", &at("/mnt/nothing")], "does not let this client mount it")?;
    lab::millrace(&["ls", &at("/mnt/secure")])?.ok()?;
    let unprivileged = format!("{}&noresvport", at("/mnt/secure"));
    refused("a secure export from any port", &["ls", &unprivileged], "`insecure`")?;
    guest.must("[ $(cat /mnt/export/file) = short ]")?;
    lab.finish(vec![guest], &[])
}
