//! The kernel mounts the server with NFSv4.2.

use std::{fs, thread, time::Duration};

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, manifest, mount_v4_command},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    server::{Server, ServerOptions},
    tree::{Manifest, make},
};

/// Time limit of commands that wait for the other guest.
const LIMIT: Duration = Duration::from_secs(120);

/// A program that locks bytes of the file `range` for writing: its arguments are the first byte and the number of bytes.
/// It prints whether it has the lock, and keeps it until the file of the third argument exists, if there is one.
const LOCK_RANGE: &str = "lock_range() { perl -MFcntl -e '
  open(my $f, \"+<\", \"/mnt/x/range\") or die $!;
  my $lock = pack(\"s s x4 q q l x4\", F_WRLCK, 0, $ARGV[0], $ARGV[1], 0);
  print fcntl($f, F_SETLK, $lock) ? \"locked\" : \"denied\";
  if ($ARGV[2]) { open(my $h, \">\", \"/mnt/x/held\"); close $h; until (-e $ARGV[2]) { select(undef, undef, undef, 0.05) } }
' \"$@\"; }; ";

/// Increments the file `count` under a lock of it.
const COUNT: &str = "
cd /mnt/x
for i in $(seq 25); do
  ( flock -x 9 && n=$(cat count) && echo $((n + 1)) > count ) 9<> count || exit 1
done";

pub(super) fn cases() -> Vec<Case> {
    let case = |name: &str, proto: &'static str, run: fn(&mut Lab, &'static str) -> Result<()>| {
        Case::new(format!("kernel-client/{proto}/local/{name}"), move |lab| run(lab, proto))
    };
    ["tcp", "rdma"]
        .into_iter()
        .flat_map(|proto| [case("nfs4-read", proto, read), case("nfs4-locks", proto, locks)])
        .collect()
}

/// The guest finds all exports below `/`, and reads a tree of the server.
fn read(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let dir = lab.directory("export")?;
    make(&dir.join("tree"), 3, lab.quick)?;
    let inner = lab.directory("inner")?;
    fs::write(inner.join("inside"), "inner file\n")?;
    let options = ServerOptions::default()
        .local(EXPORT, &dir, "sync_metadata = false")
        .local("/deep/er/inner", &inner, "read_only = true")
        .memory("/scratch", "16MiB");
    let server = lab.server(&options)?;
    let want = Manifest::of(&dir.join("tree"))?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_v4_command(proto, "/", "/mnt/all", ""))?;
    let listed = guest.must("cd /mnt/all && find . -maxdepth 3 -not -path './export/tree/*' | sort")?;
    ensure!(
        listed.split_whitespace().eq([
            ".",
            "./deep",
            "./deep/er",
            "./deep/er/inner",
            "./export",
            "./export/tree",
            "./scratch"
        ]),
        "the root of all exports has {listed}"
    );
    guest.must("[ \"$(cat /mnt/all/deep/er/inner/inside)\" = 'inner file' ]")?;
    guest.must("[ \"$(stat -c %a:%F /mnt/all/deep)\" = 555:directory ]")?;
    want.expect_same(
        &manifest(&mut guest, "/mnt/all/export/tree")?,
        "the tree below the root of all exports",
    )?;
    guest.must("umount -R /mnt/all")?;
    guest.must(&mount_v4_command(proto, &format!("{EXPORT}/tree"), "/mnt/x", ""))?;
    want.expect_same(&manifest(&mut guest, "/mnt/x")?, "the tree of a mounted subdirectory")?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}

/// The locks of a guest exclude the other one: flock(2) of a whole file, and fcntl(2) of ranges.
fn locks(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let options = ServerOptions::default().local(EXPORT, &lab.directory("export")?, "");
    let server = lab.server(&options)?;
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for (n, guest) in guests.iter_mut().enumerate() {
        // The kernel identifies itself by its host name: two clients of one name are one that restarts.
        guest.must(&format!("hostname client{n}"))?;
        guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ",lookupcache=none"))?;
    }
    guests[0].must("cd /mnt/x && echo 0 > count && echo > range")?;
    let jobs = [guests[0].spawn(COUNT)?, guests[1].spawn(COUNT)?];
    for job in jobs {
        job.wait(LIMIT)?.ok()?;
    }
    let n = guests[1].must("cat /mnt/x/count")?;
    ensure!(n.trim() == "50", "two guests added 25 each under a lock, but the count is {n}");
    ranges(&mut guests)?;
    notice(&mut guests, &server)?;
    for guest in &mut guests {
        guest.must("umount /mnt/x")?;
    }
    lab.finish(guests.into(), &[&server])
}

/// A guest that waits for a lock gets it by a callback as soon as the other one unlocks. (Without the callback it asks
/// again after 30 seconds.)
fn notice([a, b]: &mut [Guest; 2], server: &Server) -> Result<()> {
    let callbacks = || server.metrics()?.get("nfs4_callbacks_total{operation=\"CB_NOTIFY_LOCK\"}");
    let before = callbacks()?;
    let holder =
        a.spawn("cd /mnt/x && flock -x count sh -c 'touch owned; until [ -e free ]; do sleep 0.05; done'")?;
    b.must("until [ -e /mnt/x/owned ]; do sleep 0.05; done")?;
    let waiter = b.spawn("cd /mnt/x && flock -x count true")?;
    thread::sleep(Duration::from_secs(2));
    a.must("touch /mnt/x/free")?;
    holder.wait(LIMIT)?.ok()?;
    waiter.wait(Duration::from_secs(10))?.ok()?;
    ensure!(callbacks()? > before, "a guest got a lock without CB_NOTIFY_LOCK");
    Ok(())
}

/// A locked range is denied to the other guest until its holder ends; other ranges are not.
fn ranges([a, b]: &mut [Guest; 2]) -> Result<()> {
    let holder = a.spawn(&format!("{LOCK_RANGE}lock_range 0 100 /mnt/x/release"))?;
    b.must("until [ -e /mnt/x/held ]; do sleep 0.05; done")?;
    for (range, expected) in [("50 100", "denied"), ("99 1", "denied"), ("100 100", "locked")] {
        let got = b.must(&format!("{LOCK_RANGE}lock_range {range}"))?;
        ensure!(
            got == expected,
            "while another guest has locked bytes 0 to 99, the lock of {range} is {got}"
        );
    }
    b.must("touch /mnt/x/release")?;
    holder.wait(LIMIT)?.ok()?;
    let got = b.must(&format!("{LOCK_RANGE}lock_range 0 100"))?;
    ensure!(got == "locked", "after its holder has ended, a lock is {got}");
    Ok(())
}
