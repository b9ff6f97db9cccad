//! A hard mount survives a restart of the server during a copy.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, boot, make_tree, manifest, mount_command},
};
use crate::{guest::GuestOptions, lab::Lab, server::Server, tree::Manifest};

/// Time limit of an interrupted copy.
const LIMIT: Duration = Duration::from_secs(120);

/// 64 MiB without repetition; the kernel flushes the data while it is produced.
const STREAM: &str = "seq -w 1 9999999 | head -c 64M";

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
    let mut stream = guest.spawn(&format!("{STREAM} > /mnt/x/stream && sync /mnt/x/stream"))?;
    in_the_middle(&server)?;
    ensure!(
        copy.is_running() && stream.is_running(),
        "nothing was interrupted: the copies ended before the server was stopped"
    );
    server.stop(signal)?;
    server.start_again()?;
    for job in [copy, stream] {
        job.wait(LIMIT)?.ok()?;
    }
    guest.must("umount /mnt/x")?;
    guest.must(&mount)?;
    guest.must(&format!("cmp /mnt/x/stream <({STREAM})"))?;
    // Linux sets the times of a file after the first flush of its data. If that flush finds a changed write
    // verifier, the data is sent again afterwards, which changes the time of the file that `cp` was copying
    // to that of the second WRITE.
    want.expect_same_but_one_time(
        &manifest(&mut guest, "/mnt/x/tree")?,
        "the tree that the guest reads back",
    )?;
    want.expect_same_but_one_time(&Manifest::of(&lab.dir.join("export/tree"))?, "the tree of the server")?;
    lab.finish(vec![guest], &[&server])
}

/// Waits until some files are created and a part of the stream is written.
fn in_the_middle(server: &Server) -> Result<()> {
    loop {
        let now = server.metrics()?;
        let (files, bytes) = (
            "nfs_calls_total{version=\"3\",procedure=\"CREATE\"}",
            "data_bytes_total{direction=\"written\"}",
        );
        if now.get(files)? >= 10 && now.get(bytes)? >= 1 << 20 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(2));
    }
}
