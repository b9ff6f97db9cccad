//! `millrace serve`.

use std::{
    ffi::OsStr,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_daemon::{Config, Daemon, DaemonError};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_rdma_providers::IWARP;
use millrace_server::{Backend, ExportConfig, LunSettings, ServerError, TargetSettings, target_name};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::{
    net::UnixStream,
    signal::unix::{Signal, SignalKind, signal},
};

use crate::{
    activation::Activation,
    args::ServeArgs,
    control::{self, Control, Request},
    interrupt::is_ignored,
    reachable::reachable,
    session, state,
};

const RDMA: &str = "127.0.0.1:20049";
const TCP: &str = "127.0.0.1:2049";
const ISCSI: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), millrace_iscsi::name::PORT);

pub(super) fn run(args: &ServeArgs) -> CommandResult {
    let mut activation = Activation::take()?;
    let dir = args.dir.as_deref().map(export_of).transpose()?;
    let config = config(args, &activation, with_hint)?;
    raise_file_limit();
    // An executor for signals only: the server starts its own threads.
    let rt = millrace_program::executor::small()?;
    let mut signals = rt.block_on(async { Signals::new() })?;
    let control = {
        let _guard = rt.enter();
        config.control.as_deref().map(Control::bind).transpose()?
    };
    let mut daemon =
        Daemon::start_on(config, activation.take_sockets()).map_err(|e| Failure::new(with_hint(&e)))?;
    output::line(&ready(&daemon))?;
    if let (Some(dir), Some(rdma), Some(tcp)) = (dir, daemon.server().rdma_addr(), daemon.server().tcp_addr())
    {
        output::line(&mount_commands(&dir.name, rdma, tcp))?;
    }
    notify_service_manager(NotifyState::Ready);
    rt.block_on(async {
        let name = loop {
            match next(&mut signals, control.as_ref(), args.config.is_some()).await {
                Event::End(name) => break name,
                Event::HangUp => drop(reload(&mut daemon, args, &activation)),
                Event::Request(stream, Request::Reload) => {
                    control::reply(stream, &reload(&mut daemon, args, &activation)).await;
                }
                Event::Request(stream, Request::State(request)) => {
                    let state = daemon.server().nfs4_state();
                    // The file system may delay the answer.
                    tokio::spawn(async move {
                        control::reply(stream, &state::answer(&state, &request).await).await;
                    });
                }
            }
        };
        drop(control);
        notify_service_manager(NotifyState::Stopping);
        tracing::info!(
            "{name}: completing the calls in progress, for at most {} s; a second signal exits immediately",
            args.grace
        );
        tokio::select! {
            _ = daemon.stop(Duration::from_secs(args.grace)) => Ok(Outcome::Done),
            name = signals.end() => {
                tracing::warn!("second {name}: exiting without completing the calls in progress");
                std::process::exit(1)
            }
        }
    })
}

/// Notifies the service manager of `state`, if there is one (sd_notify(3)).
fn notify_service_manager(state: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify the service manager: {e}");
    }
}

/// Raises the limit of open files to the hard limit, because it bounds the numbers of connections and of
/// cached open files. (The soft limit is low for programs that use select(2), which supports few
/// descriptors.)
fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("cannot raise the limit of open files from {current:?} to {maximum:?}: {e}");
    }
}

/// A request to a running server.
enum Event {
    /// A signal to stop.
    End(&'static str),
    /// SIGHUP that does not end the server: a reload.
    HangUp,
    /// A request of a client of the control socket.
    Request(UnixStream, Request),
}

async fn next(signals: &mut Signals, control: Option<&Control>, has_file: bool) -> Event {
    let request = async {
        match control {
            Some(control) => control.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        name = ended(&mut signals.terminate, &mut signals.interrupt) => Event::End(name),
        _ = signals.hang_up.recv() => match signals.hang_up_ends(has_file) {
            true => Event::End("SIGHUP"),
            false => Event::HangUp,
        },
        (stream, request) = request => Event::Request(stream, request),
    }
}

/// Reloads the configuration. Logs and returns the result.
fn reload(daemon: &mut Daemon, args: &ServeArgs, activation: &Activation) -> Result<String, String> {
    let new = config(args, activation, in_one_line).map_err(|e| e.to_string());
    let done = new.and_then(|c| daemon.reload(&c).map_err(|e| with_hint(&e)));
    match &done {
        Ok(done) => tracing::info!("reload: {done}"),
        Err(why) => tracing::error!("reload failed, nothing has changed: {why}"),
    }
    done.map(|d| d.to_string())
}

fn with_hint(e: &DaemonError) -> String {
    let hint = match e {
        DaemonError::Listen { source, .. } | DaemonError::Server(ServerError::Listen { source, .. }) => {
            match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "; another server uses the address: stop it, or choose another port (0 selects a free one)"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "; ports below 1024 require root: choose another port"
                }
                std::io::ErrorKind::AddrNotAvailable => "; this host does not have the address",
                _ => "",
            }
        }
        DaemonError::Server(ServerError::Export { reason, .. }) if reason.contains("No such file") => {
            "; check the name, or create the directory first"
        }
        DaemonError::ReadConfig { .. } => "; check the name given to --config",
        _ => "",
    };
    format!("{e}{hint}")
}

/// The errors of a file in one line, for a log.
fn in_one_line(e: &DaemonError) -> String {
    match e {
        DaemonError::Config(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        e => with_hint(e),
    }
}

/// The configuration: the file, if there is one, with the addresses of passed sockets, overridden and extended by the
/// command line. The errors of the file are in the words of `file_error`.
fn config(
    args: &ServeArgs,
    activation: &Activation,
    file_error: fn(&DaemonError) -> String,
) -> Result<Config, Failure> {
    let global = session::global();
    let mut config = match &args.config {
        Some(file) if file.as_os_str() == "-" => {
            return Err(Failure::usage(
                "--config cannot be standard input, since a reload reads it again; write a file, and name it",
            ));
        }
        Some(file) => Config::from_file(file).map_err(|e| Failure::new(file_error(&e)))?,
        None => Config::default(),
    };
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    activation.apply(&mut config);
    let server = &mut config.server;
    if let Some(dir) = &args.dir {
        server.exports.push(export_of(dir)?);
    }
    for text in &args.exports {
        server.exports.push(export(text).map_err(|e| Failure::usage(format!("--export: {e}")))?);
    }
    args.luns.iter().try_for_each(|text| add_lun(&mut server.targets, text))?;
    let no_address = server.listen_rdma.is_empty() && server.listen_tcp.is_empty();
    listen(&mut server.listen_rdma, &args.listen_rdma, no_address, RDMA)?;
    listen(&mut server.listen_tcp, &args.listen_tcp, no_address, TCP)?;
    server.state_dir = server.state_dir.take().or_else(state_directory);
    config.metrics = args.metrics.or(config.metrics);
    config.metrics_access.insecure |= args.metrics_insecure;
    server.provider = global.provider.unwrap_or(server.provider);
    listen_iscsi(server, args);
    server.shards = args.shards.or(server.shards);
    server.busy_poll = args.busy_poll.map_or(server.busy_poll, Duration::from_micros);
    server.registration = global.registration.or(server.registration);
    if let Some(memory) = args.memory {
        server.limits.memory = memory;
    }
    if server.exports.is_empty() {
        return Err(Failure::usage(match args.config {
            Some(_) => {
                "no exports; add --export /NAME=local:DIRECTORY, or an [[export]] to the configuration"
            }
            None => {
                "nothing to serve; give a directory (`millrace serve /srv/data`), exports (`millrace serve --export \
                 /data=local:/srv/data`) or a configuration (`millrace serve --config /etc/millrace.toml`)"
            }
        }));
    }
    config.check().map_err(|e| Failure::usage(e.to_string()))?;
    Ok(config)
}

/// The export of the directory `dir`, with its name if that needs no quotation in shells and URLs, otherwise `/`.
fn export_of(dir: &Path) -> Result<ExportConfig, Failure> {
    let path = dir.canonicalize().map_err(|e| {
        let option = if dir.as_os_str().as_bytes().contains(&b'=') { ", or --export before it" } else { "" };
        Failure::usage(format!("cannot serve {}: {e}; give an existing directory{option}", dir.display()))
    })?;
    let is_plain =
        |name: &&str| name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let name = path.file_name().and_then(OsStr::to_str).filter(is_plain).unwrap_or_default();
    Ok(ExportConfig::new(format!("/{name}"), Backend::Local { path }))
}

/// The commands that mount the export `name`.
fn mount_commands(name: &str, rdma: SocketAddr, tcp: SocketAddr) -> String {
    let (rdma, tcp) = (reachable(rdma), reachable(tcp));
    let host = match tcp.ip() {
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let mut lines = format!(
        "\nMount {name}:\n  sudo mount -t nfs -o vers=4.2,proto=tcp,port={} {host}:{name} /mnt\n  millrace mount nfs://{rdma}{name} \
         /mnt\n  python3 -c 'import millrace_nfs; print(millrace_nfs.Client(\"nfs://{rdma}{name}\").listdir())'",
        tcp.port()
    );
    if tcp.ip().is_loopback() {
        lines += &format!(
            "\nOnly this host can connect; for others add --listen-tcp '[::]:{}' --listen-rdma '[::]:{}'",
            tcp.port(),
            rdma.port()
        );
    }
    lines
}

/// The export NAME=BACKEND, whose directory may have a path that is not UTF-8.
fn export(text: &OsStr) -> Result<ExportConfig, String> {
    let mut export: ExportConfig = text.to_string_lossy().parse()?;
    if text.to_str().is_some() {
        return Ok(export);
    }
    let mut parts = text.as_bytes().splitn(2, |b| *b == b'=');
    let (name, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let backend = rest.split(|b| *b == b',').next().unwrap_or_default();
    match (&mut export.backend, backend.strip_prefix(b"local:")) {
        (Backend::Local { path }, Some(bytes)) if name == export.name.as_bytes() => {
            *path = OsStr::from_bytes(bytes).into();
            Ok(export)
        }
        _ => Err(format!("the name `{}` is not UTF-8; choose another name", export.name)),
    }
}

/// Adds the LUN `NAME=PATH[,OPTION]...`, whose path need not be UTF-8, to its target.
fn add_lun(targets: &mut Vec<TargetSettings>, given: &OsStr) -> Result<(), Failure> {
    let text = given.to_string_lossy();
    let failed = |e: &dyn std::fmt::Display| Failure::usage(format!("--lun {text}: {e}"));
    let (name, lun) = text
        .split_once('=')
        .ok_or_else(|| failed(&"write NAME=/EXPORT/FILE, for example disks=/data/disk0,size=1GiB"))?;
    let name = target_name(name).map_err(|e| failed(&e))?;
    let mut lun: LunSettings = lun.parse().map_err(|e: String| failed(&e))?;
    let settings = given.as_bytes().splitn(2, |b| *b == b'=').nth(1);
    if let Some(path) = settings.and_then(|settings| settings.split(|b| *b == b',').next()) {
        lun.path = OsStr::from_bytes(path).into();
    }
    match targets.iter_mut().find(|t| t.name == name) {
        Some(target) => target.luns.push(lun),
        None => targets.push(TargetSettings::new(name, vec![lun])),
    }
    Ok(())
}

/// The first state directory that systemd created for the unit (`StateDirectory=`, systemd.exec(5)).
fn state_directory() -> Option<PathBuf> {
    let list = std::env::var_os("STATE_DIRECTORY")?;
    std::env::split_paths(&list).next().filter(|dir| dir.is_absolute())
}

/// Sets the listening addresses: from the command line, from the file, or the default if neither has any.
fn listen(
    list: &mut Vec<SocketAddr>,
    stated: &[SocketAddr],
    no_address: bool,
    default: &str,
) -> Result<(), Failure> {
    if !stated.is_empty() {
        *list = stated.to_vec();
    } else if no_address {
        list.push(default.parse().map_err(|_| Failure::new("no default address"))?);
    }
    Ok(())
}

/// Sets the addresses for iSCSI and iSER. Software iWARP needs no separate address for iSER.
fn listen_iscsi(server: &mut millrace_server::Config, args: &ServeArgs) {
    server.listen_iscsi = args.listen_iscsi.or(server.listen_iscsi);
    server.listen_iser = args.listen_iser.or(server.listen_iser);
    if server.listen_iscsi.is_none() && server.listen_iser.is_none() && !server.targets.is_empty() {
        server.listen_iscsi = Some(ISCSI);
    }
    let provider = server.provider;
    let is_iwarp =
        |addr: &SocketAddr| provider.to_listen(addr.ip()).is_ok_and(|chosen| chosen.provider.name() == IWARP);
    server.listen_iser = server.listen_iser.or(server.listen_iscsi.filter(is_iwarp));
}

/// The ready line, with the addresses of the server, and lines with the URLs of each LUN.
fn ready(daemon: &Daemon) -> String {
    let mut line = String::from("ready");
    let server = daemon.server();
    let (iscsi, iser, metrics) = (server.iscsi_addr(), server.iser_addr(), daemon.metrics_addr());
    let parts = [
        ("rdma", server.rdma_addrs()),
        ("tcp", server.tcp_addrs()),
        ("iscsi", iscsi.as_slice()),
        ("iser", iser.as_slice()),
        ("metrics", metrics.as_slice()),
    ];
    for (name, addrs) in parts {
        for addr in addrs {
            line.push_str(&format!(" {name}={addr}"));
        }
    }
    let schemes = [("iscsi", server.iscsi_addr()), ("iser", server.iser_addr())]
        .map(|(scheme, addr)| (scheme, addr.map(reachable)));
    for target in server.targets() {
        for (lun, _) in target.numbered() {
            for (scheme, addr) in schemes {
                if let Some(addr) = addr {
                    line.push_str(&format!("\n{scheme}://{addr}/{}/{}", target.name, lun.number()));
                }
            }
        }
    }
    line
}

/// Handlers of SIGHUP, SIGTERM and SIGINT.
pub(super) struct Signals {
    /// Whether this process was started with SIGHUP ignored, as by nohup(1).
    ignores_hang_up: bool,
    /// Whether this process had a controlling terminal.
    had_terminal: bool,
    hang_up: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers, which replace the default actions.
    pub(super) fn new() -> Result<Self, Failure> {
        let on =
            |kind| signal(kind).map_err(|e| Failure::new(format!("cannot install signal handlers: {e}")));
        Ok(Self {
            ignores_hang_up: is_ignored(SignalKind::hangup()),
            had_terminal: has_terminal(),
            hang_up: on(SignalKind::hangup())?,
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Waits for SIGTERM, SIGINT or the end of the terminal, and returns the name of the signal.
    pub(super) async fn end(&mut self) -> &'static str {
        loop {
            tokio::select! {
                name = ended(&mut self.terminate, &mut self.interrupt) => return name,
                _ = self.hang_up.recv() => {
                    if self.hang_up_ends(true) {
                        return "SIGHUP";
                    }
                }
            }
        }
    }

    /// Whether a SIGHUP ends the process: if its terminal is gone, or if it has no file to read again. Does so once,
    /// because the kernel and the shell both send the signal when a terminal is closed.
    fn hang_up_ends(&mut self, has_file: bool) -> bool {
        let ends = !self.ignores_hang_up && (!has_file || (self.had_terminal && !has_terminal()));
        self.ignores_hang_up |= ends;
        ends
    }
}

/// Whether this process has a controlling terminal (tty(4)).
fn has_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

async fn ended(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
