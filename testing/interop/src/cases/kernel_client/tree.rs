//! A tree is written, read back after the kernel has dropped its caches, and is equal on both sides.

use std::fs;

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, EXPORT, boot, make_tree, manifest, mount_command, mount_v4_command},
};
use crate::{
    guest::GuestOptions,
    lab::{self, Lab},
    network::{ETHERNET_MTU, HOST, LARGE_MTU},
    server::{Server, TCP_PORT},
    tree::Manifest,
};

/// One variant of a transfer.
#[derive(Debug, Clone)]
struct Variant {
    proto: &'static str,
    backend: Backend,
    mtu: u32,
    /// Further mount options, each after a comma.
    options: &'static str,
    /// Whether the server requests CRCs.
    crc: bool,
    /// Whether file data is transferred with O_DIRECT.
    direct: bool,
    /// Whether the guest uses NFSv4.2.
    v4: bool,
}

const PLAIN: Variant = Variant {
    proto: "rdma",
    backend: Backend::Memory,
    mtu: LARGE_MTU,
    options: "",
    crc: false,
    direct: false,
    v4: false,
};

pub(super) fn cases() -> Vec<Case> {
    let mut variants = Vec::new();
    for backend in [Backend::Memory, Backend::Local] {
        for (name, options) in [
            ("4k", ",rsize=4096,wsize=4096"),
            ("64k", ",rsize=65536,wsize=65536"),
            ("1m", ",rsize=1048576,wsize=1048576"),
        ] {
            variants.push((format!("size-{name}"), Variant { backend, options, ..PLAIN }));
        }
        variants.push(("mtu-1500".to_owned(), Variant { backend, mtu: ETHERNET_MTU, ..PLAIN }));
        variants.push(("nconnect-4".to_owned(), Variant { backend, options: ",nconnect=4", ..PLAIN }));
        variants.push(("crc".to_owned(), Variant { backend, crc: true, ..PLAIN }));
        for proto in ["rdma", "tcp"] {
            variants.push(("direct".to_owned(), Variant { backend, proto, direct: true, ..PLAIN }));
        }
        variants.push(("tree".to_owned(), Variant { backend, proto: "tcp", ..PLAIN }));
    }
    for proto in ["rdma", "tcp"] {
        variants.push(("tree".to_owned(), Variant { backend: Backend::Durable, proto, ..PLAIN }));
        for backend in [Backend::Memory, Backend::Local] {
            let v4 = Variant { backend, proto, v4: true, ..PLAIN };
            variants.push(("nfs4-tree".to_owned(), v4.clone()));
            variants.push(("nfs4-direct".to_owned(), Variant { direct: true, ..v4 }));
        }
    }
    variants.push(("tree-mtu-1500".to_owned(), Variant { proto: "tcp", mtu: ETHERNET_MTU, ..PLAIN }));
    variants.push(("nconnect-4".to_owned(), Variant { proto: "tcp", options: ",nconnect=4", ..PLAIN }));
    let name = |what: &str, w: &Variant| format!("kernel-client/{}/{}/{what}", w.proto, w.backend.name());
    variants
        .into_iter()
        .map(|(what, variant)| Case::new(name(&what, &variant), move |lab| run(lab, &variant)))
        .collect()
}

fn run(lab: &mut Lab, variant: &Variant) -> Result<()> {
    let mut options = variant.backend.options(lab)?;
    options.config = format!("crc = {}", variant.crc);
    let server = lab.server(&options)?;
    let mut guest = boot(lab, &GuestOptions { mtu: variant.mtu, ..GuestOptions::default() })?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 1)?;
    let mount = match variant.v4 {
        true => mount_v4_command(variant.proto, EXPORT, "/mnt/x", variant.options),
        false => mount_command(variant.proto, "/mnt/x", variant.options),
    };
    guest.must(&format!("{mount} && cp -a /tmp/tree /mnt/x/"))?;
    if variant.direct {
        guest.must(WRITE_DIRECT)?;
    }
    guest.must("umount /mnt/x")?;
    guest.must(&mount)?;
    if variant.direct {
        guest.must(READ_DIRECT)?;
    }
    want.expect_same(&manifest(&mut guest, "/mnt/x/tree")?, "the tree that the guest reads back")?;
    want.expect_same(&server_side(lab, variant.backend)?, "the tree of the server")?;
    check_transport(variant, &server)?;
    lab.finish(vec![guest], &[&server])
}

/// Writes the files whose sizes are at boundaries again, with O_DIRECT, in records that match no boundary.
const WRITE_DIRECT: &str = "
set -e
cd /tmp/tree
for f in big sizes/*; do
  : > /mnt/x/tree/$f
  dd if=$f of=/mnt/x/tree/$f bs=300007 oflag=direct conv=notrunc status=none
  touch -r $f /mnt/x/tree/$f
done
touch -r sizes /mnt/x/tree/sizes";

/// Reads the files with O_DIRECT and compares them.
const READ_DIRECT: &str = "
set -eo pipefail
cd /tmp/tree
for f in big sizes/*; do dd if=/mnt/x/tree/$f bs=200003 iflag=direct status=none | cmp - $f; done";

/// The tree of the server, read without the kernel's client: from the directory itself, or by `millrace get`.
fn server_side(lab: &Lab, backend: Backend) -> Result<Manifest> {
    if backend != Backend::Memory {
        return Manifest::of(&lab.dir.join("export/tree"));
    }
    let copy = lab.directory("copy")?;
    let url = format!("nfs://{HOST}:{TCP_PORT}{EXPORT}/tree?proto=tcp");
    let options = ["get", "--recursive", "--hard-links", "--owner", "--quiet"];
    let to = copy.display().to_string();
    lab::millrace(&[&options[..], &[&url, &to]].concat())?.ok()?;
    Manifest::of(&copy.join("tree"))
}

/// Checks that the data used the transport, and the CRCs, of the variant.
fn check_transport(variant: &Variant, server: &Server) -> Result<()> {
    let moved = server.metrics()?.get("rdma_bytes_total{kind=\"read\"}")?;
    ensure!(
        (moved > 0) == (variant.proto == "rdma"),
        "{moved} bytes were transferred by RDMA Read over {}",
        variant.proto
    );
    let log = fs::read_to_string(server.log_file())?;
    let agreed = format!("crc={}", variant.crc);
    let connections = || log.lines().filter(|l| l.contains("RDMA connection up"));
    ensure!(connections().all(|l| l.contains(&agreed)), "not every connection has {agreed}");
    ensure!(
        connections().next().is_some() == (variant.proto == "rdma"),
        "the log has RDMA connections over TCP, or none over RDMA"
    );
    Ok(())
}
