//! Locks of two mounts of `millrace mount` on the host, and of a kernel client, exclude each other.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};

use super::{
    super::Case,
    mount::{EXPORT, boot, mount_on_host, mount_v4_command, unmount_on_host},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    program,
    server::{Server, ServerOptions},
};

/// Time limit of commands that wait for other clients.
const LIMIT: Duration = Duration::from_secs(120);

/// Increments the file `count` under a lock of it.
const COUNT: &str = "
for i in $(seq 20); do
  ( flock -x 9 && n=$(cat count) && echo $((n + 1)) > count ) 9<> count || exit 1
done";

/// `lock_range FIRST NUMBER [UNTIL]` locks bytes of the file `range` for writing, and prints whether it has the lock. It
/// creates `held` and keeps the lock until the file UNTIL exists, if there is one.
const LOCK_RANGE: &str = "lock_range() { perl -MFcntl -e '
  open(my $f, \"+<\", \"range\") or die \"open: $!\";
  my $lock = pack(\"s s x4 q q l x4\", F_WRLCK, 0, $ARGV[0], $ARGV[1], 0);
  print fcntl($f, F_SETLK, $lock) ? \"locked\" : $!{EAGAIN} || $!{EACCES} ? \"denied\" : \"failed: $!\";
  if ($ARGV[2]) { open(my $h, \">\", \"held\"); close $h; until (-e $ARGV[2]) { select(undef, undef, undef, 0.05) } }
' \"$@\"; }; ";

pub(super) fn cases() -> Vec<Case> {
    let case =
        |proto| Case::new(format!("kernel-client/{proto}/memory/fuse-locks"), move |lab| run(lab, proto));
    ["tcp", "rdma"].map(case).into()
}

fn run(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let server = lab.server(&ServerOptions::default().memory(EXPORT, "16MiB"))?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ",lookupcache=none"))?;
    let mounts = mount_on_host(lab, proto, ["4.2", "4.2"])?;
    let [one, two] = &mounts;
    guest.must("cd /mnt/x && echo 0 > count && echo > range && chmod 666 *")?;
    counts(&mut guest, [one, two])?;
    ranges(&mut guest, [one, two])?;
    passes_on(&mut guest, one, &server, proto)?;
    unmount_on_host(&mounts)?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}

/// Runs a script (bash) in the directory of a mount on the host. Returns its standard output.
fn on_host(at: &Path, script: &str) -> Result<String> {
    let script = format!("cd {} && {script}", at.display());
    Ok(program::run("bash", &["-c", &script], LIMIT)?.ok()?.stdout)
}

/// No increment of the three clients under a lock is lost.
fn counts(guest: &mut Guest, mounts: [&Path; 2]) -> Result<()> {
    let job = guest.spawn(&format!("cd /mnt/x && {}", COUNT.trim()))?;
    thread::scope(|scope| {
        let counters = mounts.map(|at| scope.spawn(move || on_host(at, COUNT.trim())));
        counters.into_iter().try_for_each(|counter| {
            counter.join().map_err(|_| anyhow!("a thread that counts has panicked"))?.map(drop)
        })
    })
    .context("a mount that counts under a lock")?;
    job.wait(LIMIT)?.ok()?;
    let n = guest.must("cat /mnt/x/count")?;
    ensure!(n.trim() == "60", "three clients added 20 each under a lock, but the count is {n}");
    Ok(())
}

/// Ranges that one client has locked are denied to the others, and free after its end.
fn ranges(guest: &mut Guest, [one, two]: [&Path; 2]) -> Result<()> {
    let attempt = |range: &str| format!("{LOCK_RANGE}lock_range {range}");
    let holder = guest.spawn(&format!("cd /mnt/x && {}", attempt("0 100 release")))?;
    on_host(one, "until [ -e held ]; do sleep 0.05; done")?;
    for (range, expected) in [("50 100", "denied"), ("99 1", "denied"), ("100 100", "locked")] {
        for at in [one, two] {
            let got = on_host(at, &attempt(range))?;
            ensure!(got == expected, "while a guest has locked bytes 0 to 99, the lock of {range} is {got}");
        }
    }
    on_host(one, "rm held && touch release")?;
    holder.wait(LIMIT)?.ok()?;
    thread::scope(|scope| {
        let holder = scope.spawn(|| on_host(one, &attempt("0 100 released")));
        on_host(two, "until [ -e held ]; do sleep 0.05; done")?;
        let got =
            [on_host(two, &attempt("50 100"))?, guest.must(&format!("cd /mnt/x && {}", attempt("50 100")))?];
        on_host(two, "touch released")?;
        let held = holder.join().map_err(|_| anyhow!("the thread of the holder has panicked"))??;
        ensure!(held == "locked", "after the guest has ended, the lock is {held}");
        ensure!(got == ["denied", "denied"], "while a mount has the lock, it is {got:?} for others");
        Ok(())
    })?;
    let got = guest.must(&format!("cd /mnt/x && {}", attempt("0 100")))?;
    ensure!(got == "locked", "after its holder has ended, a lock is {got}");
    Ok(())
}

/// A mount that waits gets the lock after the guest has unlocked; over TCP by a callback.
fn passes_on(guest: &mut Guest, at: &Path, server: &Server, proto: &str) -> Result<()> {
    let callbacks = || server.metrics()?.get("nfs4_callbacks_total{operation=\"CB_NOTIFY_LOCK\"}");
    let before = callbacks()?;
    let holder = guest
        .spawn("cd /mnt/x && flock -x count sh -c 'touch owned; until [ -e free ]; do sleep 0.05; done'")?;
    on_host(at, "until [ -e owned ]; do sleep 0.05; done")?;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| on_host(at, "flock -x count true"));
        thread::sleep(Duration::from_secs(2));
        guest.must("touch /mnt/x/free")?;
        holder.wait(LIMIT)?.ok()?;
        waiter.join().map_err(|_| anyhow!("the thread of the waiter has panicked"))?.map(drop)
    })?;
    let notified = callbacks()? - before;
    ensure!(notified > 0 || proto == "rdma", "a mount got a lock over TCP without CB_NOTIFY_LOCK");
    Ok(())
}
