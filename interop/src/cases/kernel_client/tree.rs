//! A tree goes in, comes back after the kernel has forgotten it, and is the same on both sides.

use std::fs;

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, EXPORT, boot, make_tree, manifest, mount_command},
};
use crate::{
    guest::GuestOptions,
    lab::{self, Lab},
    network::{ETHERNET_MTU, HOST, LARGE_MTU},
    server::{Server, TCP_PORT},
    tree::Manifest,
};

/// One way of moving a tree.
#[derive(Debug, Clone)]
struct Way {
    proto: &'static str,
    backend: Backend,
    mtu: u32,
    /// Further mount options, each after a comma.
    options: &'static str,
    /// Whether the server asks for CRCs.
    crc: bool,
    /// Whether file data moves by O_DIRECT.
    direct: bool,
}

const PLAIN: Way =
    Way { proto: "rdma", backend: Backend::Memory, mtu: LARGE_MTU, options: "", crc: false, direct: false };

pub(super) fn cases() -> Vec<Case> {
    let mut ways = Vec::new();
    for backend in [Backend::Memory, Backend::Local] {
        for (name, options) in [
            ("4k", ",rsize=4096,wsize=4096"),
            ("64k", ",rsize=65536,wsize=65536"),
            ("1m", ",rsize=1048576,wsize=1048576"),
        ] {
            ways.push((format!("size-{name}"), Way { backend, options, ..PLAIN }));
        }
        ways.push(("mtu-1500".to_owned(), Way { backend, mtu: ETHERNET_MTU, ..PLAIN }));
        ways.push(("nconnect-4".to_owned(), Way { backend, options: ",nconnect=4", ..PLAIN }));
        ways.push(("crc".to_owned(), Way { backend, crc: true, ..PLAIN }));
        for proto in ["rdma", "tcp"] {
            ways.push(("direct".to_owned(), Way { backend, proto, direct: true, ..PLAIN }));
        }
        ways.push(("tree".to_owned(), Way { backend, proto: "tcp", ..PLAIN }));
    }
    for proto in ["rdma", "tcp"] {
        ways.push(("tree".to_owned(), Way { backend: Backend::Durable, proto, ..PLAIN }));
    }
    ways.push(("tree-mtu-1500".to_owned(), Way { proto: "tcp", mtu: ETHERNET_MTU, ..PLAIN }));
    ways.push(("nconnect-4".to_owned(), Way { proto: "tcp", options: ",nconnect=4", ..PLAIN }));
    let name = |what: &str, w: &Way| format!("kernel-client/{}/{}/{what}", w.proto, w.backend.name());
    ways.into_iter().map(|(what, way)| Case::new(name(&what, &way), move |lab| run(lab, &way))).collect()
}

fn run(lab: &mut Lab, way: &Way) -> Result<()> {
    let mut options = way.backend.options(lab)?;
    options.config = format!("crc = {}", way.crc);
    let server = lab.server(&options)?;
    let mut guest = boot(lab, &GuestOptions { mtu: way.mtu, ..GuestOptions::default() })?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 1)?;
    let mount = mount_command(way.proto, "/mnt/x", way.options);
    guest.must(&format!("{mount} && cp -a /tmp/tree /mnt/x/"))?;
    if way.direct {
        guest.must(WRITE_DIRECT)?;
    }
    guest.must("umount /mnt/x")?;
    guest.must(&mount)?;
    if way.direct {
        guest.must(READ_DIRECT)?;
    }
    want.expect_same(&manifest(&mut guest, "/mnt/x/tree")?, "what the guest reads back")?;
    want.expect_same(&server_side(lab, way.backend)?, "what the server has")?;
    check_way(way, &server)?;
    lab.finish(vec![guest], &[&server])
}

/// Writes the files with sizes at all the edges again, past the kernel's cache, in records that fit no boundary.
const WRITE_DIRECT: &str = "
set -e
cd /tmp/tree
for f in big sizes/*; do
  : > /mnt/x/tree/$f
  dd if=$f of=/mnt/x/tree/$f bs=300007 oflag=direct conv=notrunc status=none
  touch -r $f /mnt/x/tree/$f
done
touch -r sizes /mnt/x/tree/sizes";

/// Reads them past the cache and compares.
const READ_DIRECT: &str = "
set -eo pipefail
cd /tmp/tree
for f in big sizes/*; do dd if=/mnt/x/tree/$f bs=200003 iflag=direct status=none | cmp - $f; done";

/// What the server has, seen without the kernel's client: the directory itself, or what `millrace get` brings.
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

/// The data took the transport, with the CRCs, that the case is about.
fn check_way(way: &Way, server: &Server) -> Result<()> {
    let moved = server.metrics()?.get("rdma_bytes_total{kind=\"read\"}")?;
    ensure!((moved > 0) == (way.proto == "rdma"), "{moved} bytes were moved by RDMA Read over {}", way.proto);
    let log = fs::read_to_string(server.log_file())?;
    let agreed = format!("crc={}", way.crc);
    let connections = || log.lines().filter(|l| l.contains("RDMA connection up"));
    ensure!(connections().all(|l| l.contains(&agreed)), "not every connection has {agreed}");
    ensure!(connections().next().is_some() == (way.proto == "rdma"), "the log names no RDMA connection");
    Ok(())
}
