//! `millrace-lab serve`: the server library with research options.

use millrace_daemon::{Config, Daemon, MetricsAccess};
use millrace_program::{
    failure::{CommandResult, Failure},
    output,
};
use millrace_read_read::{Design, ExposureLimits};

use crate::{
    args::{Global, ServeArgs},
    consent::Consent,
};

pub(super) fn run(global: &Global, args: &ServeArgs) -> CommandResult {
    let config = config(global, args)?;
    warn_of_exposure(&config.server);
    let daemon = Daemon::start(config).map_err(|e| Failure::new(e.to_string()))?;
    output::line(&ready(&daemon))?;
    loop {
        std::thread::park();
    }
}

fn config(global: &Global, args: &ServeArgs) -> Result<Config, Failure> {
    let exports = args.exports.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    let design = global.design().unwrap_or_default();
    if design == Design::ReadRead {
        consent(args).check(args.listen_rdma).map_err(Failure::usage)?;
    }
    let mut server = millrace_server::Config {
        exports: exports.map_err(|e| Failure::usage(format!("--export: {e}")))?,
        listen_rdma: vec![args.listen_rdma],
        listen_tcp: vec![args.listen_tcp],
        provider: global.provider.unwrap_or_default(),
        rdma_protocol: design.protocol(),
        registration: global.registration(),
        ..millrace_server::Config::default()
    };
    server.stages.sample = global.sample_stages.unwrap_or(server.stages.sample);
    let metrics_access = MetricsAccess { insecure: true, ..MetricsAccess::default() };
    let config = Config { server, metrics: args.metrics, metrics_access, ..Config::default() };
    config.check().map_err(|e| Failure::usage(e.to_string()))?;
    Ok(config)
}

fn consent(args: &ServeArgs) -> Consent {
    match args.i_accept_exposed_buffers {
        0 => Consent::None,
        1 => Consent::Loopback,
        _ => Consent::Networks,
    }
}

/// Logs a warning about the memory that the Read-Read design exposes.
fn warn_of_exposure(config: &millrace_server::Config) {
    if Design::of(&config.rdma_protocol) == Design::ReadRead {
        let ExposureLimits { regions, bytes, done_timeout } = ExposureLimits::default();
        tracing::warn!(
            "read-read design: what READ and READDIR answer is EXPOSED to the client until it says that it is done; for \
             each connection at most {regions} regions and {} MiB, each for at most {} s",
            bytes >> 20,
            done_timeout.as_secs()
        );
    }
}

/// The line with the addresses of the server.
fn ready(daemon: &Daemon) -> String {
    let server = daemon.server();
    let addresses =
        [("rdma", server.rdma_addr()), ("tcp", server.tcp_addr()), ("metrics", daemon.metrics_addr())];
    let parts = addresses.into_iter().filter_map(|(name, addr)| Some(format!(" {name}={}", addr?)));
    parts.fold("ready".to_owned(), |line, part| line + &part)
}
