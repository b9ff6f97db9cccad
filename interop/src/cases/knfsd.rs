//! `millrace` on the host uses the Linux kernel's NFS server, over RDMA by siw and over TCP.

use std::{fs, thread, time::Duration};

use anyhow::{Result, anyhow, ensure};

use super::Case;
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::{ETHERNET_MTU, LARGE_MTU},
    tree::{self, Manifest},
};

/// The kernel's server, with two exports in the guest's memory.
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
const START_AGAIN: &str = "rpc.nfsd --no-nfs-version 4 --tcp --rdma=20049 --port 2049 8";

/// One way of moving a tree.
#[derive(Debug, Clone, Copy)]
struct Way {
    proto: &'static str,
    /// Further URL options, each after a `&`.
    options: &'static str,
    mtu: u32,
}

pub(super) fn cases() -> Vec<Case> {
    let rdma = Way { proto: "rdma", options: "", mtu: LARGE_MTU };
    let tcp = Way { proto: "tcp", ..rdma };
    let ways = [
        ("tree", rdma),
        ("tree-mtu-1500", Way { mtu: ETHERNET_MTU, ..rdma }),
        ("size-4k", Way { options: "&rsize=4K&wsize=4K", ..rdma }),
        ("size-64k", Way { options: "&rsize=64K&wsize=64K", ..rdma }),
        ("size-1m", Way { options: "&rsize=1M&wsize=1M", ..rdma }),
        ("nconnect-4", Way { options: "&nconnect=4", ..rdma }),
        // More connections than the kernel's listener takes at once.
        ("nconnect-16", Way { options: "&nconnect=16", ..rdma }),
        ("tree", tcp),
        ("size-64k", Way { options: "&rsize=64K&wsize=64K", ..tcp }),
        ("nconnect-4", Way { options: "&nconnect=4", ..tcp }),
    ];
    let mut cases: Vec<Case> = ways
        .into_iter()
        .map(|(what, way)| {
            Case::new(format!("knfsd/{}/{what}", way.proto), move |lab| there_and_back(lab, way))
        })
        .collect();
    for way in [rdma, tcp] {
        cases.push(Case::new(format!("knfsd/{}/restart", way.proto), move |lab| restart(lab, way)));
        cases.push(Case::new(format!("knfsd/{}/files", way.proto), move |lab| files(lab, way)));
    }
    cases
}

/// Boots a guest that serves.
fn serve(lab: &mut Lab, mtu: u32) -> Result<Guest> {
    // Its NFSv4 part has no daemon that keeps its clients.
    lab.expect_log("NFSD: ");
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu })?;
    guest.add_siw()?;
    guest.must(START)?;
    Ok(guest)
}

fn url(guest: &Guest, way: Way, path: &str) -> String {
    format!("nfs://{}{path}?proto={}{}", guest.address(), way.proto, way.options)
}

/// What is in a directory of the guest, seen without NFS.
fn manifest(guest: &mut Guest, dir: &str) -> Result<Manifest> {
    let interop = guest.interop()?;
    Manifest::parse(&guest.must(&format!("{interop} tree manifest {dir}"))?)
}

const COPY: [&str; 5] = ["--recursive", "--hard-links", "--owner", "--verify", "--quiet"];

/// `put` or `get` of a whole tree, with all that it can keep.
fn copy(command: &str, from: &str, to: &str) -> Result<()> {
    let args = [&[command][..], &COPY, &[from, to]].concat();
    lab::millrace(&args)?.ok().map(drop)
}

/// A tree goes to the kernel's server and comes back.
fn there_and_back(lab: &mut Lab, way: Way) -> Result<()> {
    let mut guest = serve(lab, way.mtu)?;
    let (source, back) = (lab.dir.join("tree"), lab.directory("back")?);
    tree::make(&source, 1, lab.quick)?;
    let want = Manifest::of(&source)?;
    copy("put", &source.display().to_string(), &url(&guest, way, "/mnt/export"))?;
    want.expect_same(&manifest(&mut guest, "/mnt/export/tree")?, "what the kernel's server has")?;
    copy("get", &url(&guest, way, "/mnt/export/tree"), &back.display().to_string())?;
    want.expect_same(&Manifest::of(&back.join("tree"))?, "what came back")?;
    let crowd = fs::read_dir(source.join("crowd"))?.count();
    let listed = lab::millrace(&["ls", &url(&guest, way, "/mnt/export/tree/crowd")])?.ok()?.stdout;
    ensure!(listed.lines().count() == crowd, "{} of {crowd} names are listed", listed.lines().count());
    lab.finish(vec![guest], &[])
}

/// The kernel's server ends and comes back in the middle of a copy.
fn restart(lab: &mut Lab, way: Way) -> Result<()> {
    lab.expect_log("nfsd: last server has exited");
    let mut guest = serve(lab, way.mtu)?;
    let source = lab.dir.join("tree");
    tree::make(&source, 1, lab.quick)?;
    let want = Manifest::of(&source)?;
    let (from, to) = (source.display().to_string(), url(&guest, way, "/mnt/export"));
    let put = thread::spawn(move || copy("put", &from, &to));
    guest.must("while [ $(find /mnt/export | wc -l) -lt 50 ]; do sleep 0.01; done")?;
    guest.must("rpc.nfsd 0")?;
    ensure!(!put.is_finished(), "the copy was done before the server was stopped; nothing was interrupted");
    thread::sleep(Duration::from_millis(300));
    guest.must(START_AGAIN)?;
    put.join().map_err(|_| anyhow!("the copying thread panicked"))??;
    want.expect_same(&manifest(&mut guest, "/mnt/export/tree")?, "what the kernel's server has")?;
    lab.finish(vec![guest], &[])
}

/// Single files, names at the limit, and what the kernel's server refuses.
fn files(lab: &mut Lab, way: Way) -> Result<()> {
    let mut guest = serve(lab, way.mtu)?;
    let at = |path: &str| url(&guest, way, path);
    let (long, short) = (lab.dir.join("long"), lab.dir.join("short"));
    fs::write(&long, vec![b'l'; 3_000_000])?;
    fs::write(&short, "short")?;
    for file in [&long, &short] {
        lab::millrace(&["put", "--verify", &file.display().to_string(), &at("/mnt/export/file")])?.ok()?;
    }
    let read = lab::millrace(&["cat", &at("/mnt/export/file")])?.ok()?.stdout;
    ensure!(read == "short", "a file that was replaced by a shorter one has {} bytes", read.len());
    lab::millrace(&["mkdir", &at(&format!("/mnt/export/{}", "n".repeat(255)))])?.ok()?;
    let refused = |what: &str, args: &[&str], says: &str| -> Result<()> {
        let said = lab::millrace(args)?.failed()?;
        ensure!(said.contains(says), "{what}: {said}");
        Ok(())
    };
    let name = format!("/mnt/export/{}", "n".repeat(256));
    refused("a name of 256 bytes", &["mkdir", &at(&name)], "the name is too long")?;
    // The kernel's server does not tell what it does not have from what it does not give.
    refused("an unknown export", &["ls", &at("/mnt/nothing")], "does not let this client mount it")?;
    lab::millrace(&["ls", &at("/mnt/secure")])?.ok()?;
    let unprivileged = format!("{}&noresvport", at("/mnt/secure"));
    refused("a secure export from any port", &["ls", &unprivileged], "`insecure`")?;
    guest.must("[ $(cat /mnt/export/file) = short ]")?;
    lab.finish(vec![guest], &[])
}
