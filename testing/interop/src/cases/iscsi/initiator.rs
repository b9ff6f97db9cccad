//! Common parts of the cases of this group: a server with one target, and a guest that logs in to it.

use anyhow::{Context, Result, ensure};

use crate::{
    guest::{Guest, GuestOptions},
    lab::Lab,
    network::HOST,
    server::ServerOptions,
};

/// The name of the target.
const TARGET: &str = "iqn.2026-01.example.lab:disk";
/// The port of the target (RFC 7143 section 13.1).
const PORT: u16 = 3260;
/// Capacity of the disk.
pub(super) const SIZE: &str = "128MiB";
/// Name and secret of CHAP in each direction: the initiator's and the target's.
const CHAP: [(&str, &str); 2] = [("initiator", "secret-of-initiator"), ("target", "secret-of-target")];

/// The file system that contains the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Memory,
    Local,
}

impl Backend {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Local => "local",
        }
    }
}

/// The transport of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    /// RDMA with siw, to the port of iSCSI over TCP.
    Iser,
}

impl Transport {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Iser => "iser",
        }
    }

    /// The interface of iscsiadm(8).
    fn interface(self) -> &'static str {
        match self {
            Self::Tcp => "default",
            Self::Iser => "iser",
        }
    }
}

/// The configuration of target and initiator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) transport: Transport,
    pub(super) backend: Backend,
    /// Length of a logical block in bytes.
    pub(super) block: u32,
    /// Whether the initiator requests header and data digests.
    pub(super) digests: bool,
    /// Whether both sides authenticate.
    pub(super) chap: bool,
}

impl Setup {
    pub(super) const fn of(transport: Transport, backend: Backend) -> Self {
        Self { transport, backend, block: 512, digests: false, chap: false }
    }

    /// The name of a case.
    pub(super) fn case(self, what: &str) -> String {
        format!("iscsi/{}/{}/{what}", self.transport.name(), self.backend.name())
    }

    /// A server with the target.
    pub(super) fn options(self, lab: &Lab) -> Result<ServerOptions> {
        let mut options = match self.backend {
            Backend::Memory => ServerOptions::default().memory("/export", "160MiB"),
            Backend::Local => {
                ServerOptions::default().local("/export", &lab.directory("export")?, "sync_metadata = false")
            }
        };
        options.config = format!("listen_iscsi = \"{HOST}:{PORT}\"\nlisten_iser = \"{HOST}:{PORT}\"");
        let chap = |(name, secret)| format!("{{ name = \"{name}\", secret = \"{secret}\" }}");
        let chap = match self.chap {
            true => format!("incoming_user = {}\noutgoing_user = {}\n", chap(CHAP[0]), chap(CHAP[1])),
            false => String::new(),
        };
        let block = self.block;
        Ok(options.tables(&format!(
            "[[target]]\nname = \"{TARGET}\"\n{chap}\
             [[target.lun]]\npath = \"/export/disk\"\nsize = \"{SIZE}\"\nblock_size = {block}\n"
        )))
    }

    /// The disk, for the initiator in user space.
    pub(super) fn url(self) -> String {
        let scheme = match self.transport {
            Transport::Tcp => "iscsi",
            Transport::Iser => "iser",
        };
        format!("{scheme}://{HOST}:{PORT}/{TARGET}/0")
    }

    /// Settings of iscsid.
    fn iscsid(self) -> String {
        let mut text = "iscsid.startup = /usr/sbin/iscsid\nnode.startup = manual\n\
             node.session.timeo.replacement_timeout = 120\nnode.conn[0].timeo.noop_out_interval = 1\n\
             node.conn[0].timeo.noop_out_timeout = 2\nnode.session.err_timeo.abort_timeout = 5\n"
            .to_owned();
        if self.digests {
            text += "node.conn[0].iscsi.HeaderDigest = CRC32C\nnode.conn[0].iscsi.DataDigest = CRC32C\n";
        }
        if self.chap {
            let [(name, secret), (name_in, secret_in)] = CHAP;
            text += &format!(
                "node.session.auth.authmethod = CHAP\nnode.session.auth.chap_algs = SHA3-256,SHA256,MD5\n\
                 node.session.auth.username = {name}\nnode.session.auth.password = {secret}\n\
                 node.session.auth.username_in = {name_in}\nnode.session.auth.password_in = {secret_in}\n"
            );
        }
        text
    }
}

/// Boots a guest with a running iscsid, whose initiator name is its own.
pub(super) fn boot(lab: &mut Lab, setup: Setup) -> Result<Guest> {
    // The initiator reports each login and each lost connection; sd reports each disk.
    for text in ["scsi host", "iSCSI Initiator over TCP", " connection1:0: ", "sd ", "scsi "] {
        lab.expect_log(text);
    }
    let mut guest = lab.guest(&GuestOptions::default())?;
    if setup.transport == Transport::Iser {
        guest.add_siw()?;
    }
    let name = format!("InitiatorName=iqn.2026-01.example.lab:{}", guest.address());
    guest.must(&format!(
        "cd /etc/iscsi && mkdir -p /run/lock/iscsi && echo '{name}' > initiatorname.iscsi && \
         printf '%s' '{}' > iscsid.conf && iscsid",
        setup.iscsid()
    ))?;
    Ok(guest)
}

/// Finds the target by discovery, which uses TCP, logs in and returns the block device.
pub(super) fn log_in(guest: &mut Guest, setup: Setup) -> Result<String> {
    let interface = setup.transport.interface();
    let found =
        guest.must(&format!("iscsiadm -m discovery -t sendtargets -p {HOST}:{PORT} -I {interface}"))?;
    ensure!(found.trim() == format!("{HOST}:{PORT},1 {TARGET}"), "discovery reports {found}");
    log_in_again(guest)
}

/// Logs in to the target that discovery has found, and returns the block device.
pub(super) fn log_in_again(guest: &mut Guest) -> Result<String> {
    guest.must(&format!("iscsiadm -m node -T {TARGET} -p {HOST}:{PORT} --login"))?;
    let name = guest.must(
        "for i in $(seq 100); do ls /sys/class/iscsi_session/session*/device/target*/*/block 2>/dev/null && exit; \
         sleep 0.1; done; exit 1",
    );
    let name = name.context("the session has no disk")?;
    Ok(format!("/dev/{}", name.trim()))
}

/// Ends the session.
pub(super) fn log_out(guest: &mut Guest) -> Result<()> {
    guest.must(&format!("iscsiadm -m node -T {TARGET} -p {HOST}:{PORT} --logout")).map(drop)
}
