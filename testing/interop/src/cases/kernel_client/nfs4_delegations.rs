//! Two guests use the same files with NFSv4.2 and delegations; one of them uses NFSv3, too.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_command, mount_v4_command},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    server::{Server, ServerOptions},
};

/// Time limit of commands that wait for recalls.
const LIMIT: Duration = Duration::from_secs(180);
/// Duration of leases in seconds.
const LEASE: u64 = 15;

/// Writes the file `shared` and reads it 20 times, without an OPEN for each.
const USE: &str =
    "cd /mnt/x && exec 9<> shared && echo held >&9 && for i in $(seq 20); do cat shared > /dev/null; done";

/// Appends 40 lines to each of four files under a lock, and reads them.
const APPEND: &str = "
cd /mnt/x
for i in $(seq 40); do
  for f in 0 1 2 3; do
    ( flock -x 9 && echo \"$HOSTNAME $f $i\" >> log$f && tail -n 1 log$f | grep -q \"^$HOSTNAME $f $i\\$\" ) 9<> lock$f || exit 1
  done
done";

pub(super) fn cases() -> Vec<Case> {
    let case = |proto: &'static str| {
        Case::new(format!("kernel-client/{proto}/local/nfs4-delegations"), move |lab| run(lab, proto))
    };
    ["tcp", "rdma"].into_iter().map(case).collect()
}

fn run(lab: &mut Lab, proto: &'static str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let state = lab.directory("state")?;
    let mut options = ServerOptions::default()
        .local(EXPORT, &lab.directory("export")?, "sync_metadata = false\ndelegations = \"write\"")
        .tables(&format!("[nfs4]\nlease = {LEASE}\n"));
    options.config = format!("state_dir = \"{}\"\n", state.display());
    let mut server = lab.server(&options)?;
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for (n, guest) in guests.iter_mut().enumerate() {
        guest.must(&format!("hostname client{n}"))?;
        guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ""))?;
    }
    guests[1].must(&mount_command(proto, "/mnt/v3", ",actimeo=0"))?;
    caching(&mut guests[0], &server)?;
    conflicts(&mut guests, &server)?;
    load(&mut guests, &server)?;
    restart(&mut guests, &mut server)?;
    guests[1].must("umount /mnt/v3")?;
    for guest in &mut guests {
        guest.must("umount /mnt/x")?;
    }
    lab.finish(guests.into(), &[&server])
}

fn held(server: &Server) -> Result<u64> {
    server.metrics()?.get("nfs4_delegations")
}

fn recalled(server: &Server) -> Result<u64> {
    server.metrics()?.get("nfs4_delegations_recalled_total")
}

/// A guest with a write delegation opens the file without the server.
fn caching(guest: &mut Guest, server: &Server) -> Result<()> {
    let opens = || server.metrics()?.get("nfs_calls_total{version=\"4\",procedure=\"OPEN\"}");
    guest.must("echo > /mnt/x/shared")?;
    let before = opens()?;
    guest.must(USE)?;
    let more = opens()? - before;
    ensure!(more <= 2, "a guest with a delegation sent {more} OPENs for 21 opens");
    let held = held(server)?;
    ensure!(held >= 1, "the guest holds {held} delegations");
    Ok(())
}

/// A guest writes `text` to a new file of this name, for which it gets a delegation. The server does not delegate files whose
/// handles have the same hash as that of one that was recalled within 30 seconds: then the guest tries another file.
fn hold(guest: &mut Guest, server: &Server, name: &str, text: &str) -> Result<()> {
    for _ in 0..10 {
        guest.must(&format!("rm -f /mnt/x/{name}"))?;
        let before = held(server)?;
        guest.must(&format!("cd /mnt/x && exec 9<> {name} && echo {text} >&9 && cat {name} > /dev/null"))?;
        if held(server)? > before {
            return Ok(());
        }
    }
    bail!("a guest gets no delegation for any of ten files")
}

/// Each guest reads the data that the other has written.
fn conflicts([a, b]: &mut [Guest; 2], server: &Server) -> Result<()> {
    let uses = [
        ("stat -c %s /mnt/x/shared", "6", 0),
        ("cat /mnt/x/shared", "held1", 1),
        ("cat /mnt/v3/shared", "held2", 1),
        ("echo other > /mnt/x/shared; cat /mnt/x/shared", "other", 1),
        ("echo third > /mnt/v3/shared; cat /mnt/v3/shared", "third", 1),
    ];
    for (n, (command, expected, recalls)) in uses.into_iter().enumerate() {
        // A file that was recalled is not delegated for 30 seconds, so each use has a new file.
        b.must("rm -f /mnt/x/shared")?;
        hold(a, server, "shared", &format!("held{n}"))?;
        let before = recalled(server)?;
        let got = b.must(&format!("timeout {} sh -c '{command}'", LIMIT.as_secs()))?;
        ensure!(
            got.trim() == expected,
            "`{command}` of the other guest printed {got:?} instead of {expected}"
        );
        let count = recalled(server)? - before;
        ensure!(count >= recalls, "`{command}` of the other guest recalled {count} delegations");
        let here = a.must("cat /mnt/x/shared")?;
        let there = b.must("cat /mnt/x/shared")?;
        ensure!(here == there, "after `{command}`, the guests read {here:?} and {there:?}");
    }
    Ok(())
}

/// Both guests use the same files at the same time, and the first one other files, whose delegations are recalled then.
fn load(guests: &mut [Guest; 2], server: &Server) -> Result<()> {
    guests[0].must("cd /mnt/x && for f in 0 1 2 3; do : > log$f; : > lock$f; done")?;
    let jobs: Vec<_> = guests
        .iter_mut()
        .map(|guest| guest.spawn(&format!("HOSTNAME=$(hostname); {APPEND}")))
        .collect::<Result<_>>()?;
    let own = guests[0].spawn(
        "mkdir -p /mnt/x/own && cd /mnt/x/own && for i in $(seq 100); do echo $i > f$i; exec 9<> f$i; echo x >&9; done",
    )?;
    own.wait(LIMIT)?.ok()?;
    guests[1]
        .must("cd /mnt/x/own && for i in $(seq 100); do [ \"$(head -c 1 f$i)\" = x ] || exit 1; done")?;
    for job in jobs {
        job.wait(LIMIT)?.ok()?;
    }
    for guest in guests.iter_mut() {
        for f in 0..4 {
            let lines = guest.must(&format!("sort -u /mnt/x/log{f} | wc -l"))?;
            ensure!(
                lines.trim() == "80",
                "of 80 lines that the guests appended to log{f}, one reads {lines}"
            );
        }
    }
    let revoked = server.metrics()?.get("nfs4_delegations_revoked_total")?;
    ensure!(revoked == 0, "the server revoked {revoked} delegations of guests that run");
    Ok(())
}

/// A guest reclaims its delegation after a restart of the server, with the data that it has not written.
fn restart([a, b]: &mut [Guest; 2], server: &mut Server) -> Result<()> {
    hold(a, server, "kept", "unsaved")?;
    let holder = a.spawn("cd /mnt/x && exec 9<> kept && until [ -e free ]; do sleep 0.05; done")?;
    ensure!(held(server)? >= 1, "the guest holds no delegation");
    server.stop("KILL")?;
    server.start_again()?;
    let got = b.must(&format!("timeout {} cat /mnt/x/kept", LIMIT.as_secs()))?;
    ensure!(got.trim() == "unsaved", "after a restart of the server, the other guest reads {got:?}");
    b.must("touch /mnt/x/free")?;
    holder.wait(LIMIT)?.ok()?;
    Ok(())
}
