//! Common parts of the cases of this group: a guest with a device, and the programs in the guest.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use crate::{
    guest::{Guest, GuestOptions, Job},
    lab::{self, Lab},
    metrics::Metrics,
    server::{RDMA_PORT, TCP_PORT},
    tree::Manifest,
};

/// The address of a guest's device, on a network without other hosts. (siw does not work on `lo`.)
pub(super) const INSIDE: &str = "10.99.0.1";
/// The export of a server in a guest.
pub(super) const EXPORT: &str = "/export";
/// Time limit of the start of a server in a guest, and of the end of its connections after its clients have
/// ended.
const LIMIT: Duration = Duration::from_secs(20);

/// The kernel's software devices.
#[derive(Debug, Clone, Copy)]
pub(super) enum Device {
    /// RoCE version 2.
    Rxe,
    /// iWARP.
    Siw,
}

impl Device {
    pub(super) const BOTH: [Self; 2] = [Self::Rxe, Self::Siw];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rxe => "rxe",
            Self::Siw => "siw",
        }
    }
}

/// Boots a guest whose device has the address [`INSIDE`].
pub(super) fn boot(lab: &mut Lab, device: Device) -> Result<Guest> {
    let mut guest = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
    let kind = device.name();
    guest.must(&format!(
        "ip addr add {INSIDE}/24 dev dummy0 && ip link set dummy0 up && \
         rdma link add {kind}0 type {kind} netdev dummy0"
    ))?;
    Ok(guest)
}

/// The start of a `millrace` command over verbs in a guest.
pub(super) fn millrace(guest: &Guest) -> Result<String> {
    Ok(format!("{} --provider verbs", guest.host_file(&lab::millrace_program()?)))
}

/// Makes the tree of `seed` in the guest's memory and returns its manifest.
pub(super) fn make_tree(lab: &Lab, guest: &mut Guest, dir: &str, seed: u64) -> Result<Manifest> {
    let interop = guest.interop()?;
    let quick = if lab.quick { "--quick" } else { "" };
    guest.must(&format!("{interop} tree make {dir} --seed {seed} {quick}"))?;
    manifest(guest, dir)
}

/// The manifest of a directory of the guest.
pub(super) fn manifest(guest: &mut Guest, dir: &str) -> Result<Manifest> {
    let interop = guest.interop()?;
    Manifest::parse(&guest.must(&format!("{interop} tree manifest {dir}"))?)
}

/// Options with which copies preserve every attribute of a manifest.
pub(super) const KEEP_ALL: &str = "--recursive --hard-links --owner --quiet";

/// Copies the guest's `/tmp/tree` to the directory `url` and back, by `millrace` over verbs in the guest.
pub(super) fn round_trip(guest: &mut Guest, want: &Manifest, url: &str) -> Result<()> {
    let millrace = millrace(guest)?;
    guest.must(&format!("{millrace} put {KEEP_ALL} /tmp/tree {url}"))?;
    guest.must(&format!("mkdir /tmp/back && {millrace} get {KEEP_ALL} {url}/tree /tmp/back"))?;
    want.expect_same(&manifest(guest, "/tmp/back/tree")?, "the tree that was copied back")
}

/// `millrace serve` over verbs in a guest, with [`EXPORT`] in memory.
pub(super) struct GuestServer {
    job: Job,
    metrics: String,
}

impl GuestServer {
    /// Starts it at the guest's address `at`, with further `options`, and waits until it is ready.
    pub(super) fn start(guest: &mut Guest, at: &str, options: &str) -> Result<Self> {
        let metrics = format!("{}:9464", guest.address());
        let millrace = millrace(guest)?;
        let job = guest.spawn(&format!(
            "exec {millrace} --log info serve --export {EXPORT}=memory:256MiB,squash=none --metrics {metrics} --metrics-insecure \
             --listen-rdma {at}:{RDMA_PORT} --listen-tcp {at}:{TCP_PORT} {options}"
        ))?;
        let mut server = Self { job, metrics };
        let limit = guest.limit(LIMIT);
        let deadline = Instant::now() + limit;
        while Metrics::scrape(&server.metrics).is_err() {
            if !server.job.is_running() {
                server.job.wait(limit)?.ok()?;
                bail!("the server ended before it was ready");
            }
            ensure!(Instant::now() < deadline, "the server is not ready after {} s", limit.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Checks after the end of its clients that the server holds no resources of theirs and has counted no
    /// fault, and stops it.
    pub(super) fn finish(self, guest: &mut Guest) -> Result<()> {
        let limit = guest.limit(LIMIT);
        let deadline = Instant::now() + limit;
        let mut now = Metrics::scrape(&self.metrics)?;
        while now.connections()? > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
            now = Metrics::scrape(&self.metrics)?;
        }
        let (connections, regions) = (now.connections()?, now.get("rdma_regions_exposed")?);
        ensure!(
            (connections, regions) == (0, 0),
            "without clients the server has {connections} connections and {regions} exposed regions"
        );
        let faults = now.faults(&[])?;
        ensure!(faults.is_empty(), "the server's counters: {}", faults.join(", "));
        guest.must("kill -TERM $(pidof millrace)")?;
        self.job.wait(limit)?.ok().map(drop)
    }
}

/// Runs `millrace` with `args` on the host and returns the manifest of `dir`.
pub(super) fn on_host(args: &[&str], dir: &Path) -> Result<Manifest> {
    lab::millrace(args)?.ok()?;
    Manifest::of(dir)
}
