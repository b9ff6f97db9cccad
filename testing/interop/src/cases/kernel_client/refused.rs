//! Errors of administrators, and a client that is killed.

use std::{fs, thread, time::Duration};

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, EXPORT, boot, make_tree, manifest, mount_command},
};
use crate::{guest::GuestOptions, lab::Lab, server::ServerOptions};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new("kernel-client/rdma/memory/guest-killed", guest_killed)];
    for proto in ["rdma", "tcp"] {
        cases.push(Case::new(format!("kernel-client/{proto}/memory/refusals"), move |lab| {
            refusals(lab, proto)
        }));
    }
    cases
}

/// Each mistake produces a specific error.
fn refusals(lab: &mut Lab, proto: &str) -> Result<()> {
    let dir = lab.directory("export")?;
    fs::write(dir.join("file"), "content")?;
    let elsewhere = lab.directory("elsewhere")?;
    let options = ServerOptions::default().local(EXPORT, &dir, "read_only = true").local(
        "/elsewhere",
        &elsewhere,
        "clients = [\"10.1.0.0/16\"]",
    );
    let mut server = lab.server(&options)?;
    server.expect_fault("refused_calls_total");
    let mut guest = boot(lab, &GuestOptions::default())?;
    let good = mount_command(proto, "/mnt/x", ",retrans=1,timeo=10,retry=0");
    let missing = guest.run(&good.replace(":/export", ":/nothing"))?.failed()?;
    ensure!(missing.contains("No such file"), "mounting an unknown export prints: {missing}");
    let outside = guest.run(&good.replace(":/export", ":/elsewhere"))?.failed()?;
    ensure!(
        outside.contains("access denied") || outside.contains("Permission denied"),
        "mounting from a foreign network prints: {outside}"
    );
    let wrong_port = good.replace(",port=2", ",port=3");
    let port = guest.run(&format!("timeout 20 bash <<'END'\n{wrong_port}\nEND"))?.failed()?;
    ensure!(port.contains("Connection refused"), "mounting from a wrong port prints: {port}");
    guest.must(&good)?;
    let write = guest.run("echo x > /mnt/x/file")?.failed()?;
    ensure!(write.contains("Read-only file system"), "writing to a read-only export prints: {write}");
    ensure!(guest.must("cat /mnt/x/file")? == "content", "a read-only export is not readable");
    lab.finish(vec![guest], &[&server])
}

/// A guest is powered off with WRITEs in flight. The server releases its resources, and another guest
/// continues.
fn guest_killed(lab: &mut Lab) -> Result<()> {
    let mut server = lab.server(&Backend::Memory.options(lab)?)?;
    server.expect_fault("connections_failed_total{transport=\"rdma\"}");
    let mut guest = boot(lab, &GuestOptions::default())?;
    let mut other = boot(lab, &GuestOptions::default())?;
    other.must(&mount_command("rdma", "/mnt/x", ""))?;
    guest.must(&mount_command("rdma", "/mnt/x", ""))?;
    let mut writer = guest.spawn("dd if=/dev/zero of=/mnt/x/file bs=1M count=200 oflag=direct")?;
    while server.metrics()?.get("data_bytes_total{direction=\"written\"}")? < 16 << 20 {
        thread::sleep(Duration::from_millis(2));
    }
    ensure!(writer.is_running(), "the copy ended before the guest was killed");
    guest.kill()?;
    let want = make_tree(lab, &mut other, "/tmp/tree", 2)?;
    other.must("cp -a /tmp/tree /mnt/x/")?;
    want.expect_same(
        &manifest(&mut other, "/mnt/x/tree")?,
        "the tree that another guest wrote and read back",
    )?;
    lab.finish(vec![guest, other], &[&server])
}
