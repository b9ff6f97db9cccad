//! Processes on two mounts of `millrace mount` and on a kernel client append to a file under a lock of it, for each kind of
//! lock, while the server is killed and restarted. No byte is lost, and no two processes of the host are in the
//! critical section at once.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::super::{
    Case,
    kernel_client::mount::{EXPORT, boot, mount_on_host, mount_v4_command, unmount_on_host},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    program,
    server::{Server, ServerOptions},
};

/// Processes on each mount of the host, and in the guest: 16 together.
const PROCESSES: [u32; 3] = [6, 6, 4];
/// Bytes of each process for each kind of lock, unless `MILLRACE_LOCK_ROUNDS` has another number.
const ROUNDS: u32 = 200;
/// Time from one start of the server to its end: more than a grace period in which all clients reclaim their locks.
const LIFE: Duration = Duration::from_secs(20);
/// The same with more rounds than `ROUNDS`: most of the time of a life is outside the grace period.
const LONG_LIFE: Duration = Duration::from_secs(90);
/// Time limit of the processes of one kind for each 200 rounds, and of reads that wait for a grace period.
const LIMIT: Duration = Duration::from_secs(1800);

/// Appends `ROUNDS` bytes to FILE, each under a lock of it of KIND and with a new description of the file, at the end that a
/// read under the lock shows: a reader with the size from before the lock replaces the byte of another. If LOCAL is not
/// empty, it is a file that only one process may have locked meanwhile, and gets the time, process and offset of each write;
/// the file system of the test does not see it.
const APPEND: &str = r#"
use Fcntl qw(:flock :seek F_SETLKW F_WRLCK F_UNLCK);
use Time::HiRes qw(time);
my ($file, $kind, $rounds, $local) = @ARGV;
my $command = $kind eq "ofd" ? 38 : F_SETLKW;
sub range { my ($f, $type) = @_; fcntl($f, $command, pack("s s x4 q q l x4", $type, SEEK_SET, 0, 0, 0)) }
for my $round (1 .. $rounds) {
  open(my $f, "+<", $file) or die "open: $!";
  ($kind eq "flock" ? flock($f, LOCK_EX) : range($f, F_WRLCK)) or die "lock in round $round: $!";
  my $own;
  if ($local) {
    open($own, ">>", $local) or die "open: $!";
    flock($own, LOCK_EX | LOCK_NB) or die "two processes have the lock in round $round";
  }
  defined(my $end = sysread($f, my $data, 1 << 20)) or die "read: $!";
  die "byte $-[0] of $end is lost in round $round" if $data =~ /[^x]/;
  sysseek($f, $end, SEEK_SET) and syswrite($f, "x") or die "write: $!";
  if ($local) {
    syswrite($own, sprintf("%.4f %d %d\n", time, $$, $end));
    close($own);
  }
  if ($round % 2) { ($kind eq "flock" ? flock($f, LOCK_UN) : range($f, F_UNLCK)) or die "unlock: $!" }
  close($f) or die "close in round $round: $!";
}
"#;

pub(super) fn cases() -> Vec<Case> {
    let case = |proto| Case::long(format!("kills/lock-stress/{proto}"), move |lab| run(lab, proto));
    ["tcp", "rdma"].map(case).into()
}

fn run(lab: &mut Lab, proto: &'static str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    // The kernel counts the lock that a program waits for as a lost one. A program that has lost a lock gets errors.
    lab.expect_log("lost 1 locks");
    let state = lab.directory("state")?;
    let mut options =
        ServerOptions::default().local(EXPORT, &lab.directory("export")?, "sync_metadata = false");
    options.config = format!("state_dir = \"{}\"\n", state.display());
    let mut server = lab.server(&options)?;
    let mut guest = boot(lab, &GuestOptions::default())?;
    guest.must(&mount_v4_command(proto, EXPORT, "/mnt/x", ",hard,lookupcache=none"))?;
    let places = mount_on_host(lab, proto, ["4.2", "4.1"])?;
    let script = lab.dir.join("append.pl");
    std::fs::write(&script, APPEND)?;
    let local = lab.dir.join("local");
    std::fs::write(&local, "")?;
    let rounds = std::env::var("MILLRACE_LOCK_ROUNDS").map_or(Ok(ROUNDS), |text| text.parse())?;
    for kind in ["flock", "fcntl", "ofd"] {
        let started = Instant::now();
        let kills = append(&mut guest, &mut server, (&places, &local), (&script, kind, rounds))?;
        let expected = PROCESSES.iter().sum::<u32>() * rounds;
        for at in &places {
            let path = at.join(kind).display().to_string();
            let size = program::run("stat", &["-c", "%s", &path], LIMIT)?.ok()?.stdout;
            ensure!(
                size.trim() == expected.to_string(),
                "{expected} appends under locks of {kind} gave {size} bytes"
            );
            let lost = std::fs::read(at.join(kind))?.iter().position(|byte| *byte != b'x');
            ensure!(lost.is_none(), "byte {lost:?} of {kind} is lost");
        }
        lab.report(&format!("{kind}: {expected} appends, {kills} kills, {} s", started.elapsed().as_secs()))?;
    }
    unmount_on_host(&places)?;
    guest.must("umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}

/// Runs the processes that append `rounds` times under one kind of lock, with the file `local` for those of the host, and kills the server
/// until they have ended. Returns how often.
fn append(
    guest: &mut Guest,
    server: &mut Server,
    (places, local): (&[PathBuf], &Path),
    (script, kind, rounds): (&Path, &str, u32),
) -> Result<u32> {
    guest.must(&format!("cd /mnt/x && : > {kind} && sync {kind}"))?;
    let started = Instant::now();
    let limit = LIMIT * rounds.div_ceil(ROUNDS);
    let life = if rounds > ROUNDS { LONG_LIFE } else { LIFE };
    let in_guest = format!(
        "pids=; for i in $(seq {}); do perl {} /mnt/x/{kind} {kind} {rounds} & pids=\"$pids $!\"; done; \
         for p in $pids; do wait $p || exit 1; done",
        PROCESSES[2],
        guest.host_file(script),
    );
    let mut job = guest.spawn(&in_guest)?;
    let mut children = Vec::new();
    for (at, processes) in places.iter().zip(PROCESSES) {
        for _ in 0..processes {
            let mut process = Command::new("perl");
            process.arg(script).arg(at.join(kind)).args([kind, &rounds.to_string()]).arg(local);
            children.push(process.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?);
        }
    }
    let mut kills = 0;
    while running(&mut children)? || job.is_running() {
        let seconds = started.elapsed().as_secs();
        ensure!(seconds < limit.as_secs(), "the processes have not ended after {seconds} s");
        kill(server)?;
        kills += 1;
        let until = Instant::now() + life;
        while Instant::now() < until && (running(&mut children)? || job.is_running()) {
            thread::sleep(Duration::from_millis(500));
        }
    }
    job.wait(LIMIT)?.ok().with_context(|| format!("the guest, {kind}"))?;
    Ok(kills)
}

/// Whether a process is running, if none has failed.
fn running(children: &mut [Child]) -> Result<bool> {
    let mut running = false;
    for child in children {
        match child.try_wait()? {
            None => running = true,
            Some(status) if !status.success() => {
                let mut why = String::new();
                child.stderr.take().context("no standard error")?.read_to_string(&mut why)?;
                bail!("process {} that appends: {}", child.id(), why.trim());
            }
            Some(_) => {}
        }
    }
    Ok(running)
}

fn kill(server: &mut Server) -> Result<()> {
    server.stop("KILL")?;
    server.start_again()
}
