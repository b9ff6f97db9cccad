//! Checks of an NFS server, step by step: name, port, MTU, protocol, exports, path, access, clocks.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_client::{
    Error, Options, Proto, RetryPolicy, TlsFailure, Url,
    handles::Client,
    ops::{Attributes, access},
};
use millrace_rdma_providers::ProviderChoice;
use millrace_runtime::tokio_rt::TokioRuntime;

use super::{
    Finding,
    port::{STEP_TIMEOUT, connect, mtu, resolve},
};
use crate::{describe::printable, session};

/// Tolerated difference between the clocks of client and server.
const MAX_SKEW: Duration = Duration::from_secs(2);

/// Checks the server of `url`, and its export and path if present. Ends with the first broken step.
pub(crate) async fn server(url: &Url) -> Vec<Finding> {
    let mut out = Vec::new();
    // A broken step is the last finding.
    let _ = steps(url, &mut out).await.map_err(|broken| out.push(broken));
    out
}

async fn steps(url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let (url, exports) = &transport(url, out).await?;
    if exports.is_empty() {
        return Err(Finding::broken(
            "exports",
            "the server exports nothing",
            "add an [[export]] to the server's configuration and run `millrace reload` there",
        ));
    }
    out.push(Finding::fine("exports", exports.join(", ")));
    if url.path != "/" {
        check_path(url, out).await?;
    }
    Ok(())
}

/// Checks all transports that a client would try. Returns the URL with the first that answers, and the server's exports.
async fn transport(url: &Url, out: &mut Vec<Finding>) -> Result<(Url, Vec<String>), Finding> {
    resolve(&url.host, 0)?;
    let tried = millrace_client::transports(TokioRuntime::current(), url, &options()).await;
    let tried = tried.map_err(|e| Finding::broken("name", e.to_string(), "correct the name"))?;
    let (mut first, mut failures) = (None, Vec::new());
    for (proto, port) in tried {
        let to = Url { proto: Some(proto), port: Some(port), ..url.clone() };
        match answers(&to, (proto, port), out).await {
            Ok(exports) => drop(first.get_or_insert((to, exports))),
            Err(broken) => failures.push(broken),
        }
        // One server listens at a port.
        if url.port.is_some() && first.is_some() {
            failures.clear();
            break;
        }
    }
    let Some((url, exports)) = first else {
        // The last one ends the checks.
        let last = failures.pop();
        out.extend(failures);
        return Err(last.unwrap_or_else(|| Finding::broken("protocol", "there is no transport", "")));
    };
    out.extend(failures.into_iter().map(Finding::into_note));
    Ok((url, exports))
}

/// Checks one transport. Returns the server's exports.
async fn answers(
    url: &Url,
    (proto, port): (Proto, u16),
    out: &mut Vec<Finding>,
) -> Result<Vec<String>, Finding> {
    let addr = resolve(&url.host, port)?;
    if over_tcp(url, addr) {
        let stream = connect(addr, &format!("`millrace serve --listen-{proto} 0.0.0.0:{port} ...`"))?;
        out.push(Finding::fine("port", format!("a server listens at {addr}")));
        out.push(mtu(&stream));
    }
    let exports = millrace_client::exports(TokioRuntime::current(), url, &options()).await;
    let exports = exports.map_err(|e| protocol_error(proto, port, &e))?;
    let tls = options().with_url(url).tls;
    if tls.is_used() {
        let xprtsec = tls.security();
        out.push(Finding::fine("tls", format!("the connection is encrypted (xprtsec={xprtsec})")));
    }
    out.push(Finding::fine("protocol", format!("an NFS server answers over {proto} at port {port}")));
    Ok(exports.iter().map(|(name, _)| printable(name.as_bytes())).collect())
}

/// Mounts the export and checks the path, access and clocks.
async fn check_path(url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let client =
        Client::connect(TokioRuntime::current(), url, options()).await.map_err(|e| mount_error(&e))?;
    let checked = check_object(&client, url, out).await;
    client.shutdown().await;
    checked
}

/// Checks the object that the URL names.
async fn check_object(client: &Client, url: &Url, out: &mut Vec<Finding>) -> Result<(), Finding> {
    let start = Instant::now();
    let found = client.resolve(client.path_in_export()).await;
    let elapsed = start.elapsed();
    let (file, attributes) = found.map_err(|e| {
        let remedy = format!("`millrace ls` lists {}", client.export());
        Finding::broken("path", format!("{}: {e}", url.path.display()), remedy)
    })?;
    out.push(Finding::fine(
        "path",
        format!("{} is there (found in {} us)", url.path.display(), elapsed.as_micros()),
    ));
    let wanted = access::READ | access::LOOKUP | access::MODIFY | access::EXTEND;
    let rights = client.access(file, wanted).await.map_err(|e| {
        Finding::broken("access", e.to_string(), "check the server's log, and the export's `clients`")
    })?;
    out.push(access_finding(rights, &attributes));
    out.push(clock(&attributes, SystemTime::now()));
    Ok(())
}

fn options() -> Options {
    session::options()
        .connect_timeout(STEP_TIMEOUT)
        .timeout(STEP_TIMEOUT)
        .retry(RetryPolicy { max_elapsed: STEP_TIMEOUT, ..RetryPolicy::default() })
}

/// Whether the port is a TCP port: with NFS over TCP, the iwarp provider, or TLS.
fn over_tcp(url: &Url, addr: SocketAddr) -> bool {
    let stated = url.provider.or(session::global().provider).unwrap_or_default();
    let devices = || stated.to_connect(addr).is_ok_and(|chosen| chosen.provider.name() != "iwarp");
    let has_tls = options().with_url(url).tls.is_used();
    has_tls || url.proto == Some(Proto::Tcp) || stated == ProviderChoice::Iwarp || !devices()
}

/// The server that listens at the port uses another protocol.
fn protocol_error(proto: Proto, port: u16, e: &Error) -> Finding {
    if let Error::Connect { source: Some(cause), .. } = e
        && let Some(failure) = cause.downcast_ref::<TlsFailure>()
    {
        let found = format!("{}: {}", failure.step(), failure.reason());
        let remedy = if failure.remedy().is_empty() { "check the server's log" } else { failure.remedy() };
        return Finding::broken("tls", found, remedy);
    }
    let other = match proto {
        Proto::Rdma => Proto::Tcp,
        Proto::Tcp => Proto::Rdma,
    };
    Finding::broken(
        "protocol",
        format!("no NFS over {proto} at port {port}: {e}"),
        format!(
            "the port may belong to another service: use the server's port for {proto}, or try ?proto={other}; \
             the server's `ready` line shows both"
        ),
    )
}

fn mount_error(e: &Error) -> Finding {
    match e {
        Error::UnknownExport { .. } => Finding::broken(
            "export",
            e.to_string(),
            "correct the name, or add an [[export]] to the server's configuration and run `millrace reload` there",
        ),
        Error::Mount { .. } if e.kind() == ErrorKind::PermissionDenied => Finding::broken(
            "access",
            e.to_string(),
            "add this host to the export's `clients` and run `millrace reload` there; with \
             `require_privileged_port`, run the command as root",
        ),
        _ => Finding::broken("mount", e.to_string(), "check the server's log"),
    }
}

fn access_finding(rights: u32, attributes: &Attributes) -> Finding {
    let readable = rights & (access::READ | access::LOOKUP) != 0;
    let writable = rights & (access::MODIFY | access::EXTEND) != 0;
    let owner =
        format!("owner {}, group {}, mode {:o}", attributes.uid, attributes.gid, attributes.mode & 0o7777);
    match (readable, writable) {
        (true, true) => Finding::fine("access", "read and write access"),
        (true, false) => Finding::note(
            "access",
            format!("read access only ({owner})"),
            "for write access, check `read_only` and `squash` of the export, and owner and mode on the server",
        ),
        (false, _) => Finding::broken(
            "access",
            format!("no read access ({owner})"),
            "change owner or mode on the server, or `squash` of the export",
        ),
    }
}

/// Compares the file's newest timestamp with the local clock: NFS version 3 has no procedure that returns the
/// server's time.
fn clock(attributes: &Attributes, now: SystemTime) -> Finding {
    let newest = attributes.ctime.max(attributes.mtime);
    let newest = UNIX_EPOCH + Duration::new(newest.seconds.max(0).unsigned_abs(), newest.nanoseconds);
    match newest.duration_since(now) {
        Ok(ahead) if ahead > MAX_SKEW => Finding::broken(
            "clocks",
            format!("the file was changed {} s in the future: the clocks differ", ahead.as_secs()),
            "`timedatectl set-ntp true` on both hosts",
        ),
        _ => Finding::fine("clocks", "the server's clock is not ahead of the local clock"),
    }
}
