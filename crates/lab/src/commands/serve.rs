//! `millrace-lab serve`: the server of the library with research options.

use millrace_cli_common::{
    failure::{CommandResult, Failure},
    output,
};
use millrace_server::{Config, ExposedBuffers, Running, Server};

use crate::args::{Global, ServeArgs};

pub(super) fn run(global: &Global, args: &ServeArgs) -> CommandResult {
    let running = Server::start(config(global, args)?).map_err(|e| Failure::new(e.to_string()))?;
    output::line(&ready(&running))?;
    loop {
        std::thread::park();
    }
}

fn config(global: &Global, args: &ServeArgs) -> Result<Config, Failure> {
    let exports = args.exports.iter().map(|text| text.parse()).collect::<Result<_, _>>();
    let mut config = Config {
        exports: exports.map_err(|e| Failure::usage(format!("--export: {e}")))?,
        listen_rdma: vec![args.listen_rdma],
        listen_tcp: vec![args.listen_tcp],
        metrics: args.metrics,
        provider: global.provider.unwrap_or_default(),
        design: global.design().unwrap_or_default(),
        exposed_buffers: match args.i_accept_exposed_buffers {
            0 => ExposedBuffers::NotAccepted,
            1 => ExposedBuffers::AcceptedOnLoopback,
            _ => ExposedBuffers::AcceptedOnNetworks,
        },
        registration: global.registration(),
        ..Config::default()
    };
    config.stages.sample = global.sample_stages.unwrap_or(config.stages.sample);
    config.check().map_err(|e| Failure::usage(e.to_string()))?;
    Ok(config)
}

/// The line with the addresses of the server.
fn ready(running: &Running) -> String {
    let addresses =
        [("rdma", running.rdma_addr()), ("tcp", running.tcp_addr()), ("metrics", running.metrics_addr())];
    let parts = addresses.into_iter().filter_map(|(name, addr)| Some(format!(" {name}={}", addr?)));
    parts.fold("ready".to_owned(), |line, part| line + &part)
}
