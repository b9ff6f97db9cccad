//! High load, and resources that run out under it.

use std::{
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    Case,
    kernel_client::mount::{Backend, EXPORT, boot, mount_command},
};
use crate::{
    guest::GuestOptions,
    lab::{self, Lab},
    network::HOST,
    program,
    server::{RDMA_PORT, Server, ServerOptions, TCP_PORT},
    tree::{self, Manifest},
};

/// The error of a copy that ran out of space.
const NO_SPACE: &str = "no space left";

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for proto in ["rdma", "tcp"] {
        cases.push(Case::new(format!("load/copies/{proto}"), move |lab| copies(lab, proto)));
        cases.push(Case::new(format!("load/no-space/{proto}"), move |lab| no_space(lab, proto)));
        cases.push(Case::new(format!("load/no-descriptors/{proto}"), move |lab| no_descriptors(lab, proto)));
        cases.push(Case::new(format!("load/stopped/{proto}"), move |lab| stopped(lab, proto)));
        cases.push(Case::new(format!("load/silent-connections/{proto}"), move |lab| silent(lab, proto)));
    }
    cases
}

pub(super) fn url(proto: &str, path: &str) -> String {
    let port = if proto == "rdma" { RDMA_PORT } else { TCP_PORT };
    format!("nfs://{HOST}:{port}{EXPORT}{path}?proto={proto}&mountport={TCP_PORT}")
}

/// A small tree on the host.
fn source(lab: &Lab, seed: u64) -> Result<(PathBuf, Manifest)> {
    let dir = lab.dir.join(format!("source-{seed}"));
    tree::make(&dir, seed, true)?;
    let manifest = Manifest::of(&dir)?;
    Ok((dir, manifest))
}

/// Starts `millrace cp -r` of a tree to the export.
fn copy(from: &Path, proto: &str, to: &str) -> Result<Child> {
    Command::new(lab::millrace_program()?)
        .args(["cp", "-r", "--hard-links", "--owner", &from.display().to_string(), &url(proto, to)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start a copy")
}

/// Waits for copies and returns the error output of those that failed.
fn failures(copies: Vec<Child>) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for copy in copies {
        let out = copy.wait_with_output()?;
        if !out.status.success() {
            failures.push(String::from_utf8_lossy(&out.stderr).trim().to_owned());
        }
    }
    Ok(failures)
}

fn all_succeed(copies: Vec<Child>) -> Result<()> {
    let of = copies.len();
    let failures = failures(copies)?;
    ensure!(failures.is_empty(), "{} of {of} copies failed: {}", failures.len(), failures.join(" | "));
    Ok(())
}

/// Many concurrent copies; each is complete in the end.
fn copies(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let server = lab.server(&Backend::Local.options(lab)?)?;
    let (from, want) = source(lab, 1)?;
    let count = if lab.quick { 20 } else { 200 };
    let copies = (0..count).map(|n| copy(&from, proto, &format!("/copy-{n}"))).collect::<Result<Vec<_>>>()?;
    all_succeed(copies)?;
    for n in 0..count {
        let there = Manifest::of(&lab.dir.join(format!("export/copy-{n}")))?;
        want.expect_same(&there, &format!("copy {n}"))?;
    }
    lab.finish(vec![], &[&server])
}

/// A file system that fills up during a copy fails that copy and changes no older file. With free space
/// again, the next copy succeeds.
fn no_space(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let small = lab.directory("small")?;
    program::must("mount", &["-t", "tmpfs", "-o", "size=64m", "none", &small.display().to_string()])?;
    let mut server = lab.server(&ServerOptions::default().local(EXPORT, &small, ""))?;
    // The copy that fails exits with calls in flight, and its socket may be reset.
    server.expect_fault(&format!("connections_failed_total{{transport=\"{proto}\"}}"));
    let (from, want) = source(lab, 1)?;
    all_succeed(vec![copy(&from, proto, "/before")?])?;
    let large = lab.directory("large")?;
    for n in 0..8 {
        std::fs::write(large.join(format!("file-{n}")), vec![n; 8 << 20])?;
    }
    let errors = failures(vec![copy(&large, proto, "/large")?])?;
    ensure!(errors.len() == 1 && errors[0].contains(NO_SPACE), "a copy without space failed with {errors:?}");
    want.expect_same(&Manifest::of(&small.join("before"))?, "the tree that was copied before")?;
    lab::millrace(&["rm", "-r", &url(proto, "/large")])?.ok()?;
    all_succeed(vec![copy(&from, proto, "/after")?])?;
    want.expect_same(&Manifest::of(&small.join("after"))?, "the tree that was copied after")?;
    lab.finish(vec![], &[&server])
}

/// A server with a low limit of open files serves more clients in total than that limit.
fn no_descriptors(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let server = lab.server(&Backend::Local.options(lab)?.descriptors(64))?;
    let (from, want) = source(lab, 1)?;
    let count = if lab.quick { 10 } else { 60 };
    // Clients run in rounds, since the server cannot have more connections than descriptors at the same time.
    for round in 0..count / 10 {
        let name = |n| format!("copy-{round}-{n}");
        let copies =
            (0..10).map(|n| copy(&from, proto, &format!("/{}", name(n)))).collect::<Result<Vec<_>>>()?;
        all_succeed(copies)?;
        for n in 0..10 {
            want.expect_same(&Manifest::of(&lab.dir.join("export").join(name(n)))?, &name(n))?;
        }
    }
    lab.finish(vec![], &[&server])
}

/// The server is suspended during copies by the library and by the kernel's client.
fn stopped(lab: &mut Lab, proto: &'static str) -> Result<()> {
    lab.expect_log("not responding, still trying");
    lab.expect_log("nfs: server 10.77.0.1 OK");
    let mut server = lab.server(&Backend::Local.options(lab)?)?;
    // A client that waits for a long time connects again and repeats its calls.
    server.expect_fault(&format!("connections_failed_total{{transport=\"{proto}\"}}"));
    server.expect_fault("replayed_calls_total");
    let mut guest = boot(lab, &GuestOptions::default())?;
    let (from, want) = source(lab, 1)?;
    guest.must(&mount_command(proto, "/mnt/x", ",hard"))?;
    let source_in_guest = guest.host_file(&from);
    let job = guest.spawn(&format!("cp -a {source_in_guest} /mnt/x/kernel && sync -f /mnt/x"))?;
    let at = lab.directory("mounted")?.display().to_string();
    lab::millrace(&["mount", &url(proto, ""), &at, "--daemon"])?.ok()?;
    let through_mount =
        Command::new("cp").args(["-a", &from.display().to_string(), &format!("{at}/fuse")]).spawn()?;
    thread::sleep(Duration::from_millis(200));
    let pause = Duration::from_secs(if lab.quick { 10 } else { 90 });
    signal(&server, "STOP")?;
    thread::sleep(pause);
    signal(&server, "CONT")?;
    job.wait(Duration::from_secs(120))?.ok()?;
    all_succeed(vec![through_mount])?;
    program::must("umount", &[&at])?;
    let there = |name| Manifest::of(&lab.dir.join("export").join(name));
    want.expect_same(&there("kernel")?, "the copy of the kernel's client")?;
    want.expect_same(&there("fuse")?, "the copy through the mount")?;
    lab.finish(vec![guest], &[&server])
}

fn signal(server: &Server, signal: &str) -> Result<()> {
    let Some(pid) = server.pid() else { bail!("the server does not run") };
    program::must("kill", &["-s", signal, &pid.to_string()]).map(drop)
}

/// Connections without any data, from several addresses, beside active clients.
fn silent(lab: &mut Lab, proto: &'static str) -> Result<()> {
    let server = lab.server(&Backend::Local.options(lab)?)?;
    let (from, want) = source(lab, 1)?;
    let mut open = Vec::new();
    for source in 1..=5 {
        // All addresses of 127.0.0.0/8 belong to the host, and can connect to its address on the bridge.
        for _ in 0..205 {
            open.push(connect_from([127, 0, 0, source])?);
        }
    }
    for n in 0..5 {
        all_succeed(vec![copy(&from, proto, &format!("/copy-{n}"))?])?;
        want.expect_same(&Manifest::of(&lab.dir.join(format!("export/copy-{n}")))?, "a copy")?;
    }
    drop(open);
    lab.finish(vec![], &[&server])
}

/// Opens a TCP connection to the server's NFS port from the address `source`.
fn connect_from(source: [u8; 4]) -> Result<TcpStream> {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((source, 0)))?;
    let server: SocketAddr = format!("{HOST}:{TCP_PORT}").parse()?;
    rustix::net::connect(&socket, &server)?;
    Ok(TcpStream::from(socket))
}
