//! Two kernel clients see each other's changes as two mounts of `millrace mount` do. The scenarios are the
//! same.

#[path = "../../../../../crates/fuse/tests/scenarios/mod.rs"]
mod scenarios;

use anyhow::{Result, ensure};

use self::scenarios::Shell;
use super::{
    super::Case,
    mount::{Backend, boot, mount_command},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
};

/// Commands that start a shell in a guest, run a command in it and end it. The shell reads a FIFO, writes the
/// output of each command to a file, and creates another file when the command has ended.
const START: &str = "
mkfifo /tmp/N.in
sh <> /tmp/N.in > /tmp/N.log 2>&1 &
echo 'cd /mnt/x/DIR' > /tmp/N.in";
const RUN: &str = "
rm -f /tmp/N.ended
cat > /tmp/N.in <<'END OF COMMAND'
{
COMMAND
} > /tmp/N.out; : > /tmp/N.ended
END OF COMMAND
until [ -e /tmp/N.ended ]; do sleep 0.002; done
cat /tmp/N.out";
const END: &str = "
echo 'exec 3>&-; cd /; : > /tmp/N.gone; exit' > /tmp/N.in
until [ -e /tmp/N.gone ]; do sleep 0.002; done";

pub(super) fn cases() -> Vec<Case> {
    let all = [("tcp", Backend::Memory), ("rdma", Backend::Local)];
    let name = |proto: &str, backend: Backend| format!("kernel-client/{proto}/{}/two-mounts", backend.name());
    all.into_iter().map(|(p, b)| Case::new(name(p, b), move |lab| run(lab, p, b))).collect()
}

/// A shell that runs in a guest.
struct InGuest<'g> {
    guest: &'g mut Guest,
    number: usize,
}

impl<'g> InGuest<'g> {
    fn start(guest: &'g mut Guest, number: usize, dir: &str) -> Result<Self> {
        guest.must(&START.replace('N', &number.to_string()).replace("DIR", dir))?;
        Ok(Self { guest, number })
    }

    /// Ends the shell, whose current directory is in the mount.
    fn end(self) -> Result<()> {
        self.guest.must(&END.replace('N', &self.number.to_string())).map(drop)
    }
}

impl Shell for InGuest<'_> {
    fn run(&mut self, command: &str) -> Result<String, String> {
        let script = RUN
            .replace("/tmp/N", &format!("/tmp/{}", self.number))
            .replace("COMMAND\n}", &format!("{command}\n}}"));
        self.guest.must(&script).map_err(|e| format!("{e:#}"))
    }
}

fn run(lab: &mut Lab, proto: &str, backend: Backend) -> Result<()> {
    let server = lab.server(&backend.options(lab)?)?;
    let mut guests = [boot(lab, &GuestOptions::default())?, boot(lab, &GuestOptions::default())?];
    for guest in &mut guests {
        guest.must(&mount_command(proto, "/mnt/x", ""))?;
    }
    let mut failures = Vec::new();
    for (n, scenario) in scenarios::SCENARIOS.iter().enumerate() {
        let dir = format!("case{n}");
        guests[0].must(&format!("mkdir -m 755 /mnt/x/{dir}"))?;
        let [a, b] = &mut guests;
        let (mut a, mut b) = (InGuest::start(a, n, &dir)?, InGuest::start(b, n, &dir)?);
        let has_before = backend == Backend::Memory;
        failures.extend(scenarios::run_scenario(scenario, [&mut a, &mut b], true, has_before).err());
        a.end()?;
        b.end()?;
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    lab.finish(guests.into(), &[&server])
}
