//! Faults between a Linux kernel and `millrace serve`: wrong ports, mounts that are not permitted, and guests
//! and links that disappear during a transfer. The server logs the cause once, releases the resources of the
//! client, and serves other clients.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use super::Case;
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
    network::HOST,
    server::{RDMA_PORT, Server, ServerOptions, TCP_PORT},
};

const EXPORT: &str = "/export";
/// Limit of the warnings for one mount. (A mount makes more than one attempt.)
const FEW: usize = 10;
/// Time limit of a line in the log: the server keeps a connection that began improperly for a while before it
/// logs the end.
const LOG_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("bad-input/wrong-port", wrong_port),
        Case::new("bad-input/secure-export", secure_export),
        Case::new("bad-input/guest-killed", |lab| interrupted(lab, |guest| guest.kill(), |_, _| Ok(()))),
        Case::new("bad-input/device-deleted", |lab| {
            interrupted(lab, |g| g.must("rdma link delete siw0").map(drop), |g, job| recovers(g, job, "true"))
        }),
        Case::new("bad-input/link-down", |lab| {
            interrupted(
                lab,
                |g| g.must("ip link set vec0 down").map(drop),
                |g, job| recovers(g, job, "ip link set vec0 up"),
            )
        }),
    ]
}

fn boot(lab: &mut Lab) -> Result<Guest> {
    let mut guest = lab.guest(&GuestOptions::default())?;
    guest.add_siw()?;
    Ok(guest)
}

/// Mounts the export on the new directory `at`, with one attempt, which fails within seconds.
fn mount(proto: &str, port: u16, more: &str) -> String {
    format!(
        "mkdir -p /mnt/x && mount -t nfs -o vers=3,nolock,retry=0,proto={proto},port={port},mountproto=tcp,\
         mountport={TCP_PORT}{more} {HOST}:{EXPORT} /mnt/x"
    )
}

/// The number of lines of the server's log that contain `text`.
fn logged(server: &Server, text: &str) -> Result<usize> {
    Ok(fs::read_to_string(server.log_file())?.lines().filter(|l| l.contains(text)).count())
}

/// Waits until the server's log contains `text`, and checks that it does so in at most [`FEW`] lines.
fn logs_a_few(server: &Server, text: &str) -> Result<()> {
    let deadline = Instant::now() + LOG_LIMIT;
    while logged(server, text)? == 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    let lines = logged(server, text)?;
    ensure!((1..=FEW).contains(&lines), "{lines} lines of the log contain: {text}");
    Ok(())
}

/// Mounts by each transport at the other's port, and at a port without a listener.
fn wrong_port(lab: &mut Lab) -> Result<()> {
    let mut server = lab.server(&ServerOptions::default().memory(EXPORT, "64MiB"))?;
    server.expect_fault("connections_failed_total{transport=\"tcp\"}");
    let mut guest = boot(lab)?;
    let once = ",soft,timeo=10,retrans=1";
    for (proto, port, error) in [
        ("rdma", 20050, "Connection refused"),
        ("tcp", 20050, "Connection refused"),
        ("rdma", TCP_PORT, "Connection refused"),
        ("tcp", RDMA_PORT, "mount system call failed"),
    ] {
        let stderr = guest.run(&mount(proto, port, once))?.failed()?;
        ensure!(stderr.contains(error), "proto={proto},port={port} prints: {stderr}");
    }
    for text in ["the peer may use another protocol", "such as a TCP mount at the RDMA port"] {
        logs_a_few(&server, text)?;
    }
    guest.must(&mount("rdma", RDMA_PORT, ""))?;
    guest.must("echo content > /mnt/x/file && umount /mnt/x")?;
    lab.finish(vec![guest], &[&server])
}

/// An export for privileged ports only. The kernel's client uses a privileged port over TCP by default, and
/// none over RDMA.
fn secure_export(lab: &mut Lab) -> Result<()> {
    let dir = lab.directory("export")?;
    let options = ServerOptions::default().local(EXPORT, &dir, "require_privileged_port = true");
    let mut server = lab.server(&options)?;
    server.expect_fault("refused_calls_total");
    let mut guest = boot(lab)?;
    let stderr = guest.run(&mount("tcp", TCP_PORT, ",noresvport"))?.failed()?;
    ensure!(stderr.contains("access denied by server"), "over TCP from any port: {stderr}");
    let lines = logged(&server, "wants calls from a privileged port")?;
    ensure!((1..=FEW).contains(&lines), "{lines} lines of the log report the port");
    // The rule does not apply to RDMA, as in knfsd.
    guest.must(&mount("rdma", RDMA_PORT, ""))?;
    guest.must("umount /mnt/x")?;
    guest.must(&mount("tcp", TCP_PORT, ""))?;
    guest.must("echo content > /mnt/x/file")?;
    let millrace =
        |options: &str| lab::millrace(&["cat", &format!("nfs://{HOST}{EXPORT}/file?proto={options}")]);
    for options in ["tcp&resvport", "rdma&noresvport"] {
        ensure!(millrace(options)?.ok()?.stdout == "content\n", "millrace reads the file by {options}");
    }
    let stderr = millrace("tcp&noresvport")?.failed()?;
    ensure!(stderr.contains("`insecure`"), "millrace from any port prints: {stderr}");
    lab.finish(vec![guest], &[&server])
}

/// Interrupts a client with `cut` during RDMA Reads of the server. The server releases the connection shortly
/// after the stall timeout, and another client continues meanwhile. Then calls `after` with the client and
/// its writer.
fn interrupted(
    lab: &mut Lab,
    cut: impl Fn(&mut Guest) -> Result<()>,
    after: impl Fn(&mut Guest, crate::guest::Job) -> Result<()>,
) -> Result<()> {
    for text in ["not responding", "10.77.0.1 OK", "siw", "rpcrdma"] {
        lab.expect_log(text);
    }
    let mut options = ServerOptions::default().memory(EXPORT, "256MiB");
    options.config = "[limits]\nstall_timeout = 2".to_owned();
    let mut server = lab.server(&options)?;
    server.expect_fault("connections_failed_total{transport=\"rdma\"}");
    server.expect_fault("replayed_calls_total");
    let mut guest = boot(lab)?;
    guest.must(&mount("rdma", RDMA_PORT, ""))?;
    guest.must("head -c 100M /dev/urandom > /tmp/data")?;
    let mut writer = guest.spawn("dd if=/tmp/data of=/mnt/x/file bs=1M oflag=direct")?;
    while server.metrics()?.get("data_bytes_total{direction=\"written\"}")? < 8 << 20 {
        thread::sleep(Duration::from_millis(2));
    }
    ensure!(writer.is_running(), "the copy ended before it was interrupted");
    cut(&mut guest)?;
    let file = lab.dir.join("other");
    fs::write(&file, vec![7; 8 << 20])?;
    let url = format!("nfs://{HOST}{EXPORT}/other?proto=rdma");
    lab::millrace(&["put", "--verify", &file.display().to_string(), &url])?.ok()?;
    while server.metrics()?.connections()? > 0 {
        thread::sleep(Duration::from_millis(20));
    }
    after(&mut guest, writer)?;
    lab.finish(vec![guest], &[&server])
}

/// When the device is back, the guest's hard mount continues by itself, and no data is lost.
fn recovers(guest: &mut Guest, writer: crate::guest::Job, back: &str) -> Result<()> {
    guest.must(back)?;
    guest.run("rdma link show siw0/1 || rdma link add siw0 type siw netdev vec0")?.ok()?;
    writer.wait(Duration::from_secs(120))?.ok()?;
    guest.must("umount /mnt/x")?;
    guest.must(&mount("rdma", RDMA_PORT, ""))?;
    guest.must("cmp /tmp/data /mnt/x/file")?;
    Ok(())
}
