//! A hard mount survives a server that ends and comes back in the middle of a copy.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, boot, make_tree, manifest, mount_command},
};
use crate::{guest::GuestOptions, lab::Lab, tree::Manifest};

/// How long a copy may take that was interrupted.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for proto in ["rdma", "tcp"] {
        for signal in ["TERM", "KILL"] {
            let name = format!("kernel-client/{proto}/local/restart-{}", signal.to_lowercase());
            cases.push(Case::new(name, move |lab| run(lab, proto, signal)));
        }
    }
    cases
}

fn run(lab: &mut Lab, proto: &str, signal: &str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 1)?;
    let mount = mount_command(proto, "/mnt/x", ",hard");
    guest.must(&mount)?;
    let mut copy = guest.spawn("cp -a /tmp/tree /mnt/x/")?;
    // Some of it is there.
    while server.metrics()?.get("nfs_calls_total{procedure=\"CREATE\"}")? < 50 {
        std::thread::sleep(Duration::from_millis(2));
    }
    ensure!(copy.is_running(), "the copy was done before the server was stopped; nothing was interrupted");
    server.stop(signal)?;
    server.start_again()?;
    copy.wait(LIMIT)?.ok()?;
    guest.must("umount /mnt/x")?;
    guest.must(&mount)?;
    want.expect_same(&manifest(&mut guest, "/mnt/x/tree")?, "what the guest reads back")?;
    want.expect_same(&Manifest::of(&lab.dir.join("export/tree"))?, "what the server has")?;
    lab.finish(vec![guest], &[&server])
}
