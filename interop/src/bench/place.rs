//! The two servers, and the guest that mounts them.

use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    machine::Machine,
    network::{self, HOST},
    server::{RDMA_PORT, Server, ServerOptions, TCP_PORT},
};

/// Bytes of the file that is read and written.
pub(super) const FILE: u64 = 256 << 20;
/// What every mount has.
const OPTIONS: &str = "vers=3,nolock,rsize=1048576,wsize=1048576,mountproto=tcp";
/// How long the idle guest is watched.
const IDLE: Duration = Duration::from_secs(2);
/// Where /proc counts a process's reaped children in: ticks of a second (the kernel's USER_HZ, the same everywhere).
const TICKS: f64 = 100.0;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    /// The kernel's own, with a tmpfs, in a guest.
    Knfsd,
    /// `millrace serve` with a memory export, on the host.
    Millrace,
}

impl Contender {
    pub(super) const BOTH: [Self; 2] = [Self::Knfsd, Self::Millrace];

    /// The name of its export. Knfsd's is a directory, and only some of the guest's can hold a mount.
    const fn export(self) -> &'static str {
        match self {
            Self::Knfsd => "/mnt/export",
            Self::Millrace => "/export",
        }
    }

    /// The port of MOUNT.
    const fn mount_port(self) -> u16 {
        match self {
            Self::Knfsd => 20048,
            Self::Millrace => TCP_PORT,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Knfsd => "knfsd",
            Self::Millrace => "millrace",
        })
    }
}

/// A transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proto {
    Rdma,
    Tcp,
}

impl Proto {
    pub(super) const BOTH: [Self; 2] = [Self::Rdma, Self::Tcp];

    const fn port(self) -> u16 {
        match self {
            Self::Rdma => RDMA_PORT,
            Self::Tcp => TCP_PORT,
        }
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

/// What a load did.
pub(super) struct Done {
    /// MB or operations per second.
    pub(super) rate: f64,
    /// GB or operations.
    pub(super) work: f64,
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// MB or operations per second.
    pub(super) rate: f64,
    /// Processor seconds of the server for each GB or operation.
    pub(super) server: f64,
    /// The same of server and client together.
    pub(super) both: f64,
}

/// Both servers, mounted.
pub(super) struct Place {
    lab: Lab,
    /// The guest with the mounts.
    pub(super) client: Guest,
    knfsd: Guest,
    millrace: Server,
    /// Processor seconds that the second guest takes in a second in which nobody asks it for anything.
    idle: f64,
}

impl Place {
    /// Starts and mounts everything.
    ///
    /// # Errors
    /// When something does not start.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let mut lab = Lab::new(dir, false, Machine::Uml)?;
        // It runs without a daemon for the state of version 4 clients, and says so.
        lab.expect_log("NFSD: Unable to initialize client recovery tracking");
        lab.expect_log("NFSD: Is nfsdcld running");
        network::use_cubic()?;
        let millrace = lab.server(&ServerOptions::default().memory(Contender::Millrace.export(), "1GiB"))?;
        let client = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
        let mut knfsd = lab.guest(&GuestOptions { memory: 1536, ..GuestOptions::default() })?;
        knfsd.add_siw()?;
        knfsd.must(&start_knfsd())?;
        let mut place = Self { lab, client, knfsd, millrace, idle: 0.0 };
        place.client.add_siw()?;
        for contender in Contender::BOTH {
            Proto::BOTH.iter().try_for_each(|proto| place.mount(contender, *proto))?;
            let file = format!("{}/data", mount_point(contender, Proto::Tcp));
            place
                .client
                .must(&format!("dd if=/dev/zero of={file} bs=1M count={} oflag=direct", FILE >> 20))?;
        }
        let (before, began) = (place.server_cpu(Contender::Knfsd)?, Instant::now());
        std::thread::sleep(IDLE);
        place.idle = (place.server_cpu(Contender::Knfsd)? - before) / began.elapsed().as_secs_f64();
        Ok(place)
    }

    fn mount(&mut self, contender: Contender, proto: Proto) -> Result<()> {
        let (at, from, export) = (mount_point(contender, proto), self.address(contender), contender.export());
        let (port, mount_port) = (proto.port(), contender.mount_port());
        self.client.must(&format!(
            "mkdir -p {at} && ping -c 1 -q {from} && \
             mount -t nfs -o {OPTIONS},proto={proto},port={port},mountport={mount_port} {from}:{export} {at}"
        ))?;
        Ok(())
    }

    /// Where a server is on the wire.
    pub(super) fn address(&self, contender: Contender) -> String {
        match contender {
            Contender::Knfsd => self.knfsd.address(),
            Contender::Millrace => HOST.into(),
        }
    }

    /// The URL of the export for a Millrace client on the host.
    pub(super) fn url(&self, contender: Contender, proto: Proto) -> String {
        let (address, port) = (self.address(contender), proto.port());
        let (export, mount_port) = (contender.export(), contender.mount_port());
        format!("nfs://{address}:{port}{export}?proto={proto}&mountport={mount_port}")
    }

    fn server_cpu(&self, contender: Contender) -> Result<f64> {
        let pid = match contender {
            Contender::Knfsd => self.knfsd.pid(),
            Contender::Millrace => self.millrace.pid().context("the server is gone")?,
        };
        tree_cpu(pid)
    }

    /// Measures what `load` does with a server. What the idle guest would have taken in the same time is taken off.
    ///
    /// # Errors
    /// Those of the load.
    pub(super) fn measure(
        &mut self,
        contender: Contender,
        load: impl FnOnce(&mut Self) -> Result<Done>,
    ) -> Result<Sample> {
        let own = || millrace_bench::cpu::own().as_secs_f64();
        let before = (self.server_cpu(contender)?, tree_cpu(self.client.pid())?, own());
        let began = Instant::now();
        let done = load(self)?;
        let took = began.elapsed().as_secs_f64();
        let idle = if contender == Contender::Knfsd { self.idle * took } else { 0.0 };
        let server = (self.server_cpu(contender)? - before.0 - idle).max(0.0);
        let client = tree_cpu(self.client.pid())? - before.1 + own() - before.2;
        let work = done.work.max(f64::MIN_POSITIVE);
        Ok(Sample { rate: done.rate, server: server / work, both: (server + client) / work })
    }

    /// The end: unmounts, and looks at the kernel logs and what the server still holds.
    ///
    /// # Errors
    /// With what was found.
    pub(super) fn finish(mut self) -> Result<()> {
        self.lab.finish(vec![self.client, self.knfsd], &[&self.millrace])
    }
}

/// Where a server is mounted in the client.
pub(super) fn mount_point(contender: Contender, proto: Proto) -> String {
    format!("/mnt/{contender}-{proto}")
}

fn start_knfsd() -> String {
    let (at, mount_port) = (Contender::Knfsd.export(), Contender::Knfsd.mount_port());
    // The block size follows the guest's memory where it is not set. The memory is touched once, so that the host's
    // page faults are not part of a measurement.
    format!(
        "set -e
        mkdir -p {at} && mount -t tmpfs -o size=1200m tmpfs {at}
        dd if=/dev/zero of={at}/touch bs=1M count=1100 && rm {at}/touch
        mount -t nfsd nfsd /proc/fs/nfsd && mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
        echo 1048576 >/proc/fs/nfsd/max_block_size
        touch /var/lib/nfs/etab /var/lib/nfs/rmtab && rpcbind -w
        exportfs -i -o rw,async,no_root_squash,insecure,no_subtree_check,fsid=1 '*:{at}'
        rpc.nfsd --tcp --rdma={RDMA_PORT} --port {TCP_PORT} 8
        rpc.mountd --port {mount_port}"
    )
}

/// Processor seconds of a process, what it started, and what of that has ended.
fn tree_cpu(root: u32) -> Result<f64> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        // One that has just ended is counted by its parent.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some(fields) = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()) else { continue };
        let numbers: Vec<u64> = fields.skip(1).map(|f| f.parse().unwrap_or(0)).collect();
        if let [parent, ..] = numbers.as_slice() {
            // proc_pid_stat(5): cutime and cstime are fields 16 and 17.
            let reaped = numbers.get(12..14).map_or(0, |t| t.iter().sum());
            parents.push((pid, *parent as u32, reaped));
        }
    }
    let (mut tree, mut at, mut seconds) = (vec![root], 0, 0.0);
    while let Some(&pid) = tree.get(at) {
        at += 1;
        tree.extend(parents.iter().filter(|p| p.1 == pid).map(|p| p.0));
        seconds += millrace_bench::cpu::of(pid).map_or(0.0, |t| t.as_secs_f64());
        seconds += parents.iter().find(|p| p.0 == pid).map_or(0.0, |p| p.2 as f64 / TICKS);
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_tree_holds_that_of_a_child_that_has_ended() {
        let before = tree_cpu(std::process::id()).unwrap();
        let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(tree_cpu(std::process::id()).unwrap() > before + 0.01);
    }
}
