//! Both ends in one guest.

use anyhow::{Result, ensure};

use super::{
    super::{Case, knfsd},
    common::{Device, EXPORT, GuestServer, INSIDE, boot, make_tree, manifest, millrace, round_trip},
};
use crate::{
    lab::Lab,
    server::{RDMA_PORT, TCP_PORT},
};

pub(super) fn cases() -> Vec<Case> {
    let per_device = |d: Device| {
        let name = |what| format!("verbs/{}/{what}", d.name());
        [
            Case::new(name("devices"), move |lab| devices(lab, d)),
            Case::new(name("millrace-to-millrace"), move |lab| millrace_only(lab, d)),
            Case::new(name("kernel-to-millrace"), move |lab| kernel_client(lab, d)),
            Case::new(name("millrace-to-kernel"), move |lab| kernel_server(lab, d)),
        ]
    };
    Device::BOTH.into_iter().flat_map(per_device).collect()
}

/// The device is listed, and the provider `auto` chooses it only for the address of the device.
fn devices(lab: &mut Lab, device: Device) -> Result<()> {
    let mut guest = boot(lab, device)?;
    let listing = guest.must(&format!("{} devices", millrace(&guest)?))?;
    ensure!(listing.contains(&format!("device {}0: ", device.name())), "{listing}");
    ensure!(listing.contains("ACTIVE"), "{listing}");
    let provider = |address: &str| {
        let line = listing.lines().find(|l| l.split_whitespace().next() == Some(address))?;
        line.split_whitespace().nth(2)
    };
    ensure!(provider(INSIDE) == Some("verbs"), "{listing}");
    ensure!(
        provider("127.0.0.1") == Some("iwarp") && provider(&guest.address()) == Some("iwarp"),
        "{listing}"
    );
    lab.finish(vec![guest], &[])
}

fn millrace_only(lab: &mut Lab, device: Device) -> Result<()> {
    let mut guest = boot(lab, device)?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 11)?;
    let server = GuestServer::start(&mut guest, INSIDE, "")?;
    round_trip(&mut guest, &want, &format!("nfs://{INSIDE}{EXPORT}"))?;
    server.finish(&mut guest)?;
    lab.finish(vec![guest], &[])
}

fn kernel_client(lab: &mut Lab, device: Device) -> Result<()> {
    let mut guest = boot(lab, device)?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 12)?;
    let server = GuestServer::start(&mut guest, INSIDE, "")?;
    let mount = format!(
        "mkdir -p /mnt/x && mount -t nfs -o vers=3,nolock,proto=rdma,port={RDMA_PORT},mountproto=tcp,\
         mountport={TCP_PORT} {INSIDE}:{EXPORT} /mnt/x"
    );
    guest.must(&format!("{mount} && cp -a /tmp/tree /mnt/x/ && umount /mnt/x"))?;
    guest.must(&mount)?;
    want.expect_same(&manifest(&mut guest, "/mnt/x/tree")?, "the tree that the kernel reads back")?;
    guest.must("umount /mnt/x")?;
    server.finish(&mut guest)?;
    lab.finish(vec![guest], &[])
}

fn kernel_server(lab: &mut Lab, device: Device) -> Result<()> {
    let mut guest = boot(lab, device)?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 13)?;
    // The NFSv4 part of knfsd runs without the daemon that tracks clients, and logs that.
    lab.expect_log("NFSD: ");
    guest.must(knfsd::START)?;
    round_trip(&mut guest, &want, &format!("nfs://{INSIDE}/mnt/export"))?;
    want.expect_same(&manifest(&mut guest, "/mnt/export/tree")?, "the tree of the kernel's server")?;
    lab.finish(vec![guest], &[])
}
