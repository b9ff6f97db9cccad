//! The targets, and the guest whose kernel logs in to them.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Read},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::super::{
    testbed::{Done, Sample, tree_cpu},
    wire::{Limits, Wire},
};
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::{self, HOST},
    server::{Server, ServerOptions},
};

mod lio;
mod tgt;

use self::tgt::Tgt;

/// Bytes of each disk.
pub(super) const DISK: u64 = 256 << 20;
/// The port of Millrace and of LIO (RFC 7143, section 13.1).
const PORT: u16 = 3260;
/// Time during which the idle guest is observed.
const IDLE: Duration = Duration::from_secs(2);

/// A disk of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// `millrace serve` on the host, with a file of a local directory.
    MillraceLocal,
    /// `millrace serve` on the host, with a memory export.
    MillraceMemory,
    /// tgtd on the host, with a file of the same file system.
    TgtLocal,
    /// tgtd on the host, with a file of a tmpfs.
    TgtMemory,
    /// The kernel's target in a guest, with a disk in memory (`rd_mcp`).
    Lio,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MillraceLocal | Self::MillraceMemory => "millrace",
            Self::TgtLocal | Self::TgtMemory => "tgt",
            Self::Lio => "LIO",
        })
    }
}

/// The transport of a session of the kernel's initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Transport {
    Tcp,
    /// RDMA with siw.
    Iser,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Iser => "iser",
        })
    }
}

/// The guests: the initiator's and LIO's.
struct Guests {
    client: Guest,
    lio: Guest,
    devices: HashMap<(Subject, Transport), String>,
    /// CPU seconds per second of the idle guest of LIO.
    idle: f64,
    wire: Wire,
}

/// Everything that is measured.
pub(super) struct Testbed {
    lab: Lab,
    millrace: Server,
    tgt: Tgt,
    guests: Option<Guests>,
    /// The plain TCP connection of each run, if there are guests.
    pub(super) limits: Vec<Limits>,
}

fn target(subject: Subject) -> &'static str {
    match subject {
        Subject::MillraceLocal => "iqn.2026-01.example.lab:millrace-local",
        Subject::MillraceMemory => "iqn.2026-01.example.lab:millrace-memory",
        Subject::TgtLocal => "iqn.2026-01.example.lab:tgt-local",
        Subject::TgtMemory => "iqn.2026-01.example.lab:tgt-memory",
        Subject::Lio => "iqn.2026-01.example.lab:lio",
    }
}

impl Testbed {
    /// Starts the targets, and the guests if `guests` is set, and writes all disks.
    ///
    /// # Errors
    /// When a part does not start, or a disk cannot be written.
    pub(super) fn new(dir: &Path, guests: bool) -> Result<Self> {
        let mut lab = Lab::new(dir, false, crate::machine::Machine::Uml)?;
        network::use_cubic()?;
        let image = dir.join("image");
        io::copy(&mut File::open("/dev/urandom")?.take(DISK), &mut File::create(&image)?)?;
        let millrace = start_millrace(&lab)?;
        let tgt = Tgt::start(dir)?;
        let guests = if guests { Some(Guests::boot(&mut lab)?) } else { None };
        let testbed = Self { lab, millrace, tgt, guests, limits: Vec::new() };
        let mut disks =
            vec![Subject::MillraceLocal, Subject::MillraceMemory, Subject::TgtLocal, Subject::TgtMemory];
        disks.extend(testbed.guests.is_some().then_some(Subject::Lio));
        for disk in disks {
            lab::millrace(&["blk", "cp", &image.display().to_string(), &testbed.url(disk)?])?.ok()?;
        }
        Ok(testbed)
    }

    /// The guest of the initiator.
    ///
    /// # Errors
    /// When there are no guests.
    pub(super) fn client(&mut self) -> Result<&mut Guest> {
        Ok(&mut self.guests.as_mut().context("the rows need no guests")?.client)
    }

    /// The URL of a disk, for initiators on the host.
    ///
    /// # Errors
    /// When it is in a guest that does not run.
    pub(super) fn url(&self, subject: Subject) -> Result<String> {
        let (address, lun) = match subject {
            Subject::MillraceLocal | Subject::MillraceMemory => (format!("{HOST}:{PORT}"), 0),
            Subject::TgtLocal | Subject::TgtMemory => (format!("{HOST}:{}", tgt::PORT), tgt::LUN),
            Subject::Lio => {
                let guests = self.guests.as_ref().context("the guest of LIO does not run")?;
                (format!("{}:{PORT}", guests.lio.address()), 0)
            }
        };
        Ok(format!("iscsi://{address}/{}/{lun}", target(subject)))
    }

    /// The block device of a disk in the guest, after a login at the first use.
    ///
    /// # Errors
    /// When the login fails.
    pub(super) fn device(&mut self, subject: Subject, transport: Transport) -> Result<String> {
        self.guests.as_mut().context("the rows need no guests")?.device(subject, transport)
    }

    /// Measures the plain TCP connection between the guest and the host.
    ///
    /// # Errors
    /// When the guest does not connect.
    pub(super) fn measure_wire(&mut self) -> Result<()> {
        if let Some(guests) = &mut self.guests {
            self.limits.push(Limits::measure(&guests.wire, &mut guests.client)?);
        }
        Ok(())
    }

    fn target_cpu(&self, subject: Subject) -> Result<f64> {
        let pid = match subject {
            Subject::MillraceLocal | Subject::MillraceMemory => {
                self.millrace.pid().context("the server does not run")?
            }
            Subject::TgtLocal | Subject::TgtMemory => self.tgt.pid(),
            Subject::Lio => self.guests.as_ref().context("the guest of LIO does not run")?.lio.pid(),
        };
        tree_cpu(pid)
    }

    /// Measures `load` on a disk. The CPU time that the idle guest of LIO would have used in the same time is
    /// subtracted.
    ///
    /// # Errors
    /// Those of the load.
    pub(super) fn measure(
        &mut self,
        subject: Subject,
        load: impl FnOnce(&mut Self) -> Result<Done>,
    ) -> Result<Sample> {
        let all = || tree_cpu(std::process::id());
        let (target, both, began) = (self.target_cpu(subject)?, all()?, Instant::now());
        let done = load(self)?;
        let idle = self.guests.as_ref().map_or(0.0, |g| g.idle) * began.elapsed().as_secs_f64();
        let of_target = if subject == Subject::Lio { idle } else { 0.0 };
        let work = done.work.max(f64::MIN_POSITIVE);
        Ok(Sample {
            rate: done.rate,
            server: (self.target_cpu(subject)? - target - of_target).max(0.0) / work,
            both: (all()? - both - idle).max(0.0) / work,
        })
    }

    /// Logs out, and checks the kernel logs and the resources that the server still holds.
    ///
    /// # Errors
    /// With a description of each fault.
    pub(super) fn finish(mut self) -> Result<()> {
        let mut all = Vec::new();
        if let Some(mut guests) = self.guests.take() {
            if !guests.devices.is_empty() {
                guests.client.must("iscsiadm -m node --logoutall=all")?;
            }
            all.extend([guests.client, guests.lio]);
        }
        self.lab.finish(all, &[&self.millrace])
    }
}

impl Guests {
    fn boot(lab: &mut Lab) -> Result<Self> {
        for text in ["scsi host", "iSCSI Initiator over TCP", "sd ", "scsi ", "iser: "] {
            lab.expect_log(text);
        }
        let mut client = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
        client.add_siw()?;
        client.must(
            "cd /etc/iscsi && mkdir -p /run/lock/iscsi && \
             echo InitiatorName=iqn.2026-01.example.lab:guest > initiatorname.iscsi && \
             printf 'iscsid.startup = /usr/sbin/iscsid\\nnode.startup = manual\\n' > iscsid.conf && iscsid",
        )?;
        let mut lio = lio::boot(lab, target(Subject::Lio))?;
        let (before, began) = (tree_cpu(lio.pid())?, Instant::now());
        std::thread::sleep(IDLE);
        let idle = (tree_cpu(lio.pid())? - before) / began.elapsed().as_secs_f64();
        lio.must(&format!("ping -c 1 -q {} && ping -c 1 -q {HOST}", client.address()))?;
        Ok(Self { client, lio, devices: HashMap::new(), idle, wire: Wire::listen()? })
    }

    fn device(&mut self, subject: Subject, transport: Transport) -> Result<String> {
        if let Some(device) = self.devices.get(&(subject, transport)) {
            return Ok(device.clone());
        }
        let portal = match (subject, transport) {
            (Subject::Lio, Transport::Tcp) => format!("{}:{PORT}", self.lio.address()),
            (Subject::Lio, Transport::Iser) => format!("{}:{}", self.lio.address(), lio::ISER_PORT),
            _ => format!("{HOST}:{PORT}"),
        };
        let interface = if transport == Transport::Iser { "iser" } else { "default" };
        let node = format!("-m node -T {} -p {portal} -I {interface}", target(subject));
        // The disk of this session is the one that did not exist before.
        let found = self.client.must(&format!(
            "set -e; ls /sys/block > before; iscsiadm {node} --op new > log; iscsiadm {node} --login > log
             for i in $(seq 100); do
               new=$(ls /sys/block | grep ^sd | grep -vxFf before || true)
               if [ -n \"$new\" ]; then echo $new; exit; fi
               sleep 0.1
             done
             exit 1"
        ));
        let found = found.context("the session has no disk")?;
        let device = format!("/dev/{}", found.trim());
        self.devices.insert((subject, transport), device.clone());
        Ok(device)
    }
}

fn start_millrace(lab: &Lab) -> Result<Server> {
    let mut options =
        ServerOptions::default().memory("/memory", "512MiB").local("/local", &lab.directory("millrace")?, "");
    options.config = format!("listen_iscsi = \"{HOST}:{PORT}\"\nlisten_iser = \"{HOST}:{PORT}\"");
    for (subject, path) in
        [(Subject::MillraceLocal, "/local/disk"), (Subject::MillraceMemory, "/memory/disk")]
    {
        options = options.tables(&format!(
            "[[target]]\nname = \"{}\"\n[[target.lun]]\npath = \"{path}\"\nsize = \"{}MiB\"\n",
            target(subject),
            DISK >> 20
        ));
    }
    lab.server(&options)
}
