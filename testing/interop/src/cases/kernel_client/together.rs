//! Two kernels change one export concurrently, without caches of attributes and names.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{
    super::Case,
    mount::{Backend, boot, mount_command},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
};

/// Time limit of commands that run in both guests concurrently.
const LIMIT: Duration = Duration::from_secs(120);

/// Commands with the guest that runs each, in order.
const DIALOGUE: [(usize, &str); 13] = [
    (0, "echo one > f"),
    (1, "[ \"$(cat f)\" = one ]"),
    (1, "echo two >> f"),
    (0, "[ \"$(cat f)\" = \"$(printf 'one\\ntwo')\" ]"),
    (0, "mv f g"),
    (1, "[ ! -e f ] && [ \"$(tail -1 g)\" = two ]"),
    (1, "truncate -s 4 g"),
    (0, "[ \"$(cat g)\" = one ]"),
    (0, "chmod 640 g && mkdir d && ln -s g l"),
    (1, "[ $(stat -c %a g) = 640 ] && [ \"$(cat l)\" = one ] && rmdir d"),
    (0, "[ ! -e d ] && mkdir d && touch d/x"),
    (1, "! rmdir d 2>/dev/null && rm -r d l"),
    (0, "[ \"$(ls)\" = g ]"),
];

/// Increments the file `count` under a lock, which is a directory that only one guest can create.
const COUNT: &str = "
cd /mnt/x
for i in $(seq 10); do
  until mkdir lock 2>/dev/null; do sleep 0.005; done
  n=$(cat count); echo $((n + 1)) > count; sync count
  rmdir lock
done";

pub(super) fn cases() -> Vec<Case> {
    let all = [("rdma", Backend::Memory), ("rdma", Backend::Local), ("tcp", Backend::Memory)];
    let name = |proto: &str, backend: Backend| format!("kernel-client/{proto}/{}/together", backend.name());
    all.into_iter().map(|(p, b)| Case::new(name(p, b), move |lab| run(lab, p, b))).collect()
}

fn run(lab: &mut Lab, proto: &str, backend: Backend) -> Result<()> {
    let server = lab.server(&backend.options(lab)?)?;
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for guest in &mut guests {
        guest.must(&mount_command(proto, "/mnt/x", ",noac,lookupcache=none"))?;
    }
    for (speaker, line) in DIALOGUE {
        guests[speaker].must(&format!("cd /mnt/x && {line}"))?;
    }
    stale(&mut guests)?;
    count(&mut guests)?;
    crowd(&mut guests)?;
    halves(&mut guests)?;
    lab.finish(guests.into(), &[&server])
}

/// A file that another client has removed is stale to the client that has it open.
fn stale([a, b]: &mut [Guest; 2]) -> Result<()> {
    let reader = a.spawn(
        "cd /mnt/x; echo x > s; exec 3< s; touch opened; while [ -e s ]; do sleep 0.01; done; cat <&3",
    )?;
    b.must("cd /mnt/x; until [ -e opened ]; do sleep 0.01; done; rm s opened")?;
    let error = reader.wait(LIMIT)?.failed()?;
    ensure!(
        error.contains("Stale file handle"),
        "reading a file that another client has removed prints: {error}"
    );
    Ok(())
}

/// Runs `script` in both guests concurrently.
fn both([a, b]: &mut [Guest; 2], script: &str) -> Result<()> {
    let (a, b) = (a.spawn(script)?, b.spawn(script)?);
    for job in [a, b] {
        job.wait(LIMIT)?.ok()?;
    }
    Ok(())
}

/// Checks that no increment is lost.
fn count(guests: &mut [Guest; 2]) -> Result<()> {
    guests[0].must("echo 0 > /mnt/x/count")?;
    both(guests, COUNT)?;
    let n = guests[1].must("cat /mnt/x/count")?;
    ensure!(n.trim() == "20", "two guests added 10 each, but the count is {n}");
    Ok(())
}

/// Both guests create and rename files in one directory.
fn crowd(guests: &mut [Guest; 2]) -> Result<()> {
    guests[0].must("mkdir /mnt/x/crowd")?;
    let fill = "cd /mnt/x/crowd; me=$(hostname -I | tr -d ' '); \
                for i in $(seq 50); do echo $i > new-$me-$i && mv new-$me-$i $me-$i; done";
    both(guests, fill)?;
    let list = "cd /mnt/x/crowd && ls | wc -l && cat * | sort -n | uniq -c | awk '$1 != 2' | wc -l";
    for guest in guests {
        let seen = guest.must(list)?;
        ensure!(
            seen == "100\n0\n",
            "100 entries were created in pairs; a guest sees (entries, entries without a pair): {seen}"
        );
    }
    Ok(())
}

/// Both guests write one file, each of them every second record.
fn halves([a, b]: &mut [Guest; 2]) -> Result<()> {
    let write = |parity: u32| {
        format!(
            "cd /mnt/x; for i in $(seq {parity} 2 63); do yes $i | head -c 65536 | \
             dd of=halves bs=64k seek=$i iflag=fullblock oflag=direct conv=notrunc status=none || exit 1; done"
        )
    };
    a.must("touch /mnt/x/halves")?;
    let jobs = [a.spawn(&write(0))?, b.spawn(&write(1))?];
    for job in jobs {
        job.wait(LIMIT)?.ok()?;
    }
    let check = "cmp /mnt/x/halves <(for i in $(seq 0 63); do yes $i | head -c 65536; done)";
    a.must(check)?;
    b.must(check)?;
    Ok(())
}
