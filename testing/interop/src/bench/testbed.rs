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
/// Options of every mount.
const OPTIONS: &str = "vers=3,nolock,rsize=1048576,wsize=1048576,mountproto=tcp";
/// Time during which the idle guest is observed.
const IDLE: Duration = Duration::from_secs(2);
/// Clock ticks per second of `/proc/PID/stat` (USER_HZ, 100 on every architecture of interest).
const TICKS: f64 = 100.0;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// The kernel's NFS server with a tmpfs, in a guest.
    Knfsd,
    /// `millrace serve` with a memory export, on the host.
    Millrace,
}

impl ServerKind {
    pub(super) const BOTH: [Self; 2] = [Self::Knfsd, Self::Millrace];

    /// The name of its export. Knfsd exports a directory, which must be one of the guest's writable ones.
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

impl fmt::Display for ServerKind {
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

/// The result of a load.
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
    /// CPU seconds of the server for each GB or operation.
    pub(super) server: f64,
    /// CPU seconds of server and client together for each GB or operation.
    pub(super) both: f64,
}

/// Both servers, mounted.
pub(super) struct Testbed {
    lab: Lab,
    /// The guest with the mounts.
    pub(super) client: Guest,
    knfsd: Guest,
    millrace: Server,
    /// CPU seconds per second that the guest of knfsd uses without requests.
    idle: f64,
}

impl Testbed {
    /// Starts and mounts everything.
    ///
    /// # Errors
    /// When a part does not start.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let mut lab = Lab::new(dir, false, Machine::Uml)?;
        // Knfsd runs without the daemon that keeps the state of NFSv4 clients, and logs that.
        lab.expect_log("NFSD: Unable to initialize client recovery tracking");
        lab.expect_log("NFSD: Is nfsdcld running");
        network::use_cubic()?;
        let millrace = lab.server(&ServerOptions::default().memory(ServerKind::Millrace.export(), "1GiB"))?;
        let client = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
        let mut knfsd = lab.guest(&GuestOptions { memory: 1536, ..GuestOptions::default() })?;
        knfsd.add_siw()?;
        knfsd.must(&start_knfsd())?;
        let mut testbed = Self { lab, client, knfsd, millrace, idle: 0.0 };
        testbed.client.add_siw()?;
        for kind in ServerKind::BOTH {
            Proto::BOTH.iter().try_for_each(|proto| testbed.mount(kind, *proto))?;
            let file = format!("{}/data", mount_point(kind, Proto::Tcp));
            testbed
                .client
                .must(&format!("dd if=/dev/zero of={file} bs=1M count={} oflag=direct", FILE >> 20))?;
        }
        let (before, began) = (testbed.server_cpu(ServerKind::Knfsd)?, Instant::now());
        std::thread::sleep(IDLE);
        testbed.idle = (testbed.server_cpu(ServerKind::Knfsd)? - before) / began.elapsed().as_secs_f64();
        Ok(testbed)
    }

    fn mount(&mut self, kind: ServerKind, proto: Proto) -> Result<()> {
        let (at, from, export) = (mount_point(kind, proto), self.address(kind), kind.export());
        let (port, mount_port) = (proto.port(), kind.mount_port());
        self.client.must(&format!(
            "mkdir -p {at} && ping -c 1 -q {from} && \
             mount -t nfs -o {OPTIONS},proto={proto},port={port},mountport={mount_port} {from}:{export} {at}"
        ))?;
        Ok(())
    }

    /// The IP address of a server.
    pub(super) fn address(&self, kind: ServerKind) -> String {
        match kind {
            ServerKind::Knfsd => self.knfsd.address(),
            ServerKind::Millrace => HOST.into(),
        }
    }

    /// The URL of the export for a Millrace client on the host.
    pub(super) fn url(&self, kind: ServerKind, proto: Proto) -> String {
        let (address, port) = (self.address(kind), proto.port());
        let (export, mount_port) = (kind.export(), kind.mount_port());
        format!("nfs://{address}:{port}{export}?proto={proto}&mountport={mount_port}")
    }

    fn server_cpu(&self, kind: ServerKind) -> Result<f64> {
        let pid = match kind {
            ServerKind::Knfsd => self.knfsd.pid(),
            ServerKind::Millrace => self.millrace.pid().context("the server does not run")?,
        };
        tree_cpu(pid)
    }

    /// Measures `load` on a server. The CPU time that the idle guest would have used in the same time is
    /// subtracted.
    ///
    /// # Errors
    /// Those of the load.
    pub(super) fn measure(
        &mut self,
        kind: ServerKind,
        load: impl FnOnce(&mut Self) -> Result<Done>,
    ) -> Result<Sample> {
        let own = || millrace_program::cpu::own().as_secs_f64();
        let before = (self.server_cpu(kind)?, tree_cpu(self.client.pid())?, own());
        let began = Instant::now();
        let done = load(self)?;
        let took = began.elapsed().as_secs_f64();
        let idle = if kind == ServerKind::Knfsd { self.idle * took } else { 0.0 };
        let server = (self.server_cpu(kind)? - before.0 - idle).max(0.0);
        let client = tree_cpu(self.client.pid())? - before.1 + own() - before.2;
        let work = done.work.max(f64::MIN_POSITIVE);
        Ok(Sample { rate: done.rate, server: server / work, both: (server + client) / work })
    }

    /// Unmounts, and checks the kernel logs and the resources that the server still holds.
    ///
    /// # Errors
    /// With a description of each fault.
    pub(super) fn finish(mut self) -> Result<()> {
        self.lab.finish(vec![self.client, self.knfsd], &[&self.millrace])
    }
}

/// The mount point of a server in the client.
pub(super) fn mount_point(kind: ServerKind, proto: Proto) -> String {
    format!("/mnt/{kind}-{proto}")
}

fn start_knfsd() -> String {
    let (at, mount_port) = (ServerKind::Knfsd.export(), ServerKind::Knfsd.mount_port());
    // The default block size depends on the guest's memory, so it is set. The memory is touched once, so that
    // the host's page faults are not part of a measurement.
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

/// CPU seconds of a process and of all its descendants, including those that have ended.
pub(super) fn tree_cpu(root: u32) -> Result<f64> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
        // The parent counts the time of a process that has just ended.
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
        seconds += millrace_program::cpu::of(pid).map_or(0.0, |t| t.as_secs_f64());
        seconds += parents.iter().find(|p| p.0 == pid).map_or(0.0, |p| p.2 as f64 / TICKS);
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_tree_includes_children_that_have_ended() {
        let before = tree_cpu(std::process::id()).unwrap();
        let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(tree_cpu(std::process::id()).unwrap() > before + 0.01);
    }
}
