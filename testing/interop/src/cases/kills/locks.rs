//! Two kernels use locks of NFSv4 on a server that is killed and restarted. A lock that one of them holds is never given
//! to the other one, and no increment under a lock is lost.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::super::{
    Case,
    kernel_client::mount::{EXPORT, boot, mount_v4_command},
};
use crate::{
    guest::{Guest, GuestOptions, Job},
    lab::Lab,
    server::{Server, ServerOptions},
};

/// Time in which the guests must have reclaimed their locks: more than a grace period.
const RECOVERY: Duration = Duration::from_secs(120);
/// Time from a recovery to the next end of the server.
const LIFE: Duration = Duration::from_millis(500);

/// Locks the first bytes of `held` until the file `release` exists. Meanwhile it counts in the locked bytes, and ends with
/// an error if it cannot. Prints the last number.
const HOLD: &str = "perl -MFcntl -MIO::Handle -e '
  open(my $f, \"+<\", \"/mnt/x/held\") or die \"open: $!\";
  my $lock = pack(\"s s x4 q q l x4\", F_WRLCK, 0, 0, 100, 0);
  fcntl($f, F_SETLK, $lock) or die \"lock: $!\";
  my $n = 0;
  until (-e \"/mnt/x/release\") {
    sysseek($f, 0, 0) or die \"seek: $!\";
    syswrite($f, sprintf(\"%08d\", ++$n)) == 8 or die \"write: $!\";
    $f->sync or die \"sync: $!\";
    select(undef, undef, undef, 0.02);
  }
  print $n;
'";

/// Tries to lock a part of what the other guest has locked. Prints the result.
const TRY: &str = "perl -MFcntl -MPOSIX -e '
  open(my $f, \"+<\", \"/mnt/x/held\") or die \"open: $!\";
  my $lock = pack(\"s s x4 q q l x4\", F_WRLCK, 0, 50, 100, 0);
  print fcntl($f, F_SETLK, $lock) ? \"locked\" : $! == EAGAIN || $! == EACCES ? \"denied\" : \"failed: $!\";
'";

/// Increments the file `count` under a lock of it until the file `release` exists. Prints how often.
const COUNT: &str = "
cd /mnt/x
i=0
until [ -e release ]; do
  ( flock -x 9 && n=$(cat count) && echo $((n + 1)) > count && sync count ) 9<> count || exit 1
  i=$((i + 1))
done
echo $i";

pub(super) fn cases() -> Vec<Case> {
    let case = |proto| Case::new(format!("kills/nfs4-locks/{proto}"), move |lab| run(lab, proto));
    ["tcp", "rdma"].map(case).into()
}

fn run(lab: &mut Lab, proto: &'static str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    // The kernel counts the lock that a program waits for as a lost one. A program that has lost a lock gets errors.
    lab.expect_log("lost 1 locks");
    let state = lab.directory("state")?;
    let mut options = ServerOptions::default().local(EXPORT, &lab.directory("export")?, "");
    options.config = format!("state_dir = \"{}\"\n", state.display());
    let mut server = lab.server(&options)?;
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for (n, guest) in guests.iter_mut().enumerate() {
        // The kernel identifies itself by its host name.
        guest.must(&format!("hostname client{n}"))?;
        guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ",hard,lookupcache=none"))?;
    }
    guests[0].must("cd /mnt/x && echo 0 > count && printf %08d 0 > held && sync")?;
    let mut holder = guests[0].spawn(HOLD)?;
    guests[1].must("until [ $(cat /mnt/x/held) -gt 0 ]; do sleep 0.05; done")?;
    let counters = [guests[0].spawn(COUNT)?, guests[1].spawn(COUNT)?];
    // 500 kills, 1,000 with both transports; a round takes about four seconds.
    let rounds = if lab.quick { 4 } else { 375 };
    let report = kill(&mut server, &mut guests[1], &mut holder, rounds)?;
    let sums = release(&mut guests, holder, counters)?;
    lab.report(&format!("{report}; {sums}"))?;
    for guest in &mut guests {
        guest.must("umount /mnt/x")?;
    }
    lab.finish(guests.into(), &[&server])
}

/// Kills the server in rounds, in each third one a second time while the guests reclaim their locks. After each round,
/// `other` does not get the lock of the holder.
fn kill(server: &mut Server, other: &mut Guest, holder: &mut Job, rounds: u32) -> Result<String> {
    let (mut kills, mut longest) = (0, Duration::ZERO);
    for round in 0..rounds {
        thread::sleep(LIFE);
        server.stop("KILL")?;
        server.start_again()?;
        kills += 1;
        if round % 3 == 2 {
            thread::sleep(Duration::from_millis(u64::from(round) * 37 % 3000));
            server.stop("KILL")?;
            server.start_again()?;
            kills += 1;
        }
        let started = Instant::now();
        let got = other.spawn(TRY)?.wait(RECOVERY)?.ok()?.stdout;
        longest = longest.max(started.elapsed());
        ensure!(
            got == "denied",
            "after {kills} kills, an attempt to lock what the other guest has locked: {got}"
        );
        ensure!(
            holder.is_running(),
            "the holder of a lock has ended after {kills} kills; its error is in its file"
        );
    }
    Ok(format!("{kills} kills; the longest recovery took {} ms", longest.as_millis()))
}

/// Ends all programs. Checks that the other guest gets the lock then, and the numbers.
fn release([a, b]: &mut [Guest; 2], holder: Job, counters: [Job; 2]) -> Result<String> {
    a.must("touch /mnt/x/release")?;
    let held = holder.wait(RECOVERY)?.ok()?.stdout;
    let mut increments = 0;
    for counter in counters {
        let count = counter.wait(RECOVERY)?.ok()?.stdout;
        increments += count.trim().parse::<u64>().context("the number of increments")?;
    }
    let got = b.must(TRY)?;
    ensure!(got == "locked", "after its holder has ended, a lock is {got}");
    let (written, counted) = (b.must("cat /mnt/x/held")?, b.must("cat /mnt/x/count")?);
    ensure!(
        written.trim().parse::<u64>()? == held.trim().parse::<u64>()?,
        "the holder of a lock has counted to {held}, but its file contains {written}"
    );
    ensure!(
        counted.trim().parse::<u64>()? == increments,
        "two guests made {increments} increments under a lock, but the count is {counted}"
    );
    Ok(format!("{} writes under a lock that was held, {increments} increments under locks", held.trim()))
}
