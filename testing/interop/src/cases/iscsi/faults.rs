//! The server restarts, or the guest is disconnected, while the initiator writes.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::{
    super::{Case, kernel_client::mount},
    initiator::{Backend, Setup, Transport, boot, log_in, log_in_again, log_out},
};
use crate::{
    guest::{Guest, Job},
    lab::Lab,
    network,
    server::Server,
    tree::Manifest,
};

/// Time limit of an interrupted copy.
const LIMIT: Duration = Duration::from_secs(180);
/// Bytes of a part of the tree.
const PART: u64 = 4 << 20;
/// Time for which the guest is disconnected: longer than the initiator's pings tolerate.
const DOWN: Duration = Duration::from_secs(5);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in [Transport::Tcp, Transport::Iser] {
        let local = Setup::of(transport, Backend::Local);
        let memory = Setup::of(transport, Backend::Memory);
        cases.push(Case::new(local.case("restart-term"), move |lab| restart(lab, local, "TERM")));
        cases.push(Case::new(local.case("restart-kill"), move |lab| restart(lab, local, "KILL")));
        cases.push(Case::new(memory.case("disconnected"), move |lab| disconnected(lab, memory)));
    }
    cases
}

/// The server restarts several times. The data is in the page cache of its host, which survives.
fn restart(lab: &mut Lab, setup: Setup, signal: &str) -> Result<()> {
    let mut server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    let (want, copy) = start(lab, &mut guest, setup)?;
    for _ in 0..3 {
        written(&server, PART)?;
        server.stop(signal)?;
        server.start_again()?;
    }
    finish(lab, guest, copy, &want)?;
    lab.finish(Vec::new(), &[&server])
}

/// The guest is disconnected from the network for a while.
fn disconnected(lab: &mut Lab, setup: Setup) -> Result<()> {
    let server = lab.server(&setup.options(lab)?)?;
    let mut guest = boot(lab, setup)?;
    let (want, copy) = start(lab, &mut guest, setup)?;
    written(&server, PART)?;
    network::disconnect(1)?;
    thread::sleep(DOWN);
    network::connect(1)?;
    finish(lab, guest, copy, &want)?;
    lab.finish(Vec::new(), &[&server])
}

/// Makes a file system on the disk and starts to copy a tree to it, again and again until the file `stop` exists.
fn start(lab: &mut Lab, guest: &mut Guest, setup: Setup) -> Result<(Manifest, Job)> {
    for text in [
        "EXT4-fs",
        "detected conn error",
        "ping timeout",
        "session recovery",
        "Power-on or device reset",
        "iser: ",
    ] {
        lab.expect_log(text);
    }
    let want = mount::make_tree(lab, guest, "/tmp/tree", 1)?;
    let disk = log_in(guest, setup)?;
    guest.must(&format!("mkfs.ext4 -q {disk} && mkdir /mnt/x && mount {disk} /mnt/x"))?;
    let copy = guest.spawn(
        "set -e; until [ -e /tmp/stop ]; do rm -rf /mnt/x/tree; cp -a /tmp/tree /mnt/x/; sync -f /mnt/x; done; umount /mnt/x",
    )?;
    Ok((want, copy))
}

/// Waits until the initiator has written this number of bytes since the start of the server.
pub(super) fn written(server: &Server, least: u64) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while server.metrics()?.get("iscsi_data_bytes_total{direction=\"written\"}")? < least {
        ensure!(Instant::now() < deadline, "the initiator writes nothing");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Ends the copying, and checks the file system after another login.
fn finish(lab: &mut Lab, mut guest: Guest, copy: Job, want: &Manifest) -> Result<()> {
    guest.must("touch /tmp/stop")?;
    copy.wait(LIMIT)?.ok()?;
    log_out(&mut guest)?;
    let disk = log_in_again(&mut guest)?;
    guest.must(&format!("e2fsck -fn {disk} && mount -o ro {disk} /mnt/x"))?;
    want.expect_same(&mount::manifest(&mut guest, "/mnt/x/tree")?, "the tree on the disk")?;
    guest.must("umount /mnt/x")?;
    log_out(&mut guest)?;
    lab.finish(vec![guest], &[])
}
