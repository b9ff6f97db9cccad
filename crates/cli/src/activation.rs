//! Listening sockets that a service manager has opened and passes to this process (sd_listen_fds(3)).

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use millrace_daemon::Config;
use millrace_program::failure::Failure;

/// The passed sockets with what they are for.
#[derive(Default)]
pub(crate) struct Activation {
    sockets: Vec<TcpListener>,
    addresses: Vec<(Purpose, SocketAddr)>,
}

/// The service of a socket, which its unit names with `FileDescriptorName=`.
#[derive(Clone, Copy)]
enum Purpose {
    Tcp,
    Rdma,
    Iscsi,
    Metrics,
}

impl Activation {
    /// Takes the sockets that were passed to this process.
    pub(crate) fn take() -> Result<Self, Failure> {
        let mut passed = ListenFd::from_env();
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut found = Self::default();
        for index in 0..passed.len() {
            let name = names.next().unwrap_or_default();
            let purpose = purpose(name)?;
            let unusable = |reason: &str| {
                Failure::new(format!(
                    "the socket {name:?} of the service manager is unusable: {reason} (correct ListenStream= of its unit)"
                ))
            };
            let socket = passed.take_tcp_listener(index).map_err(|e| unusable(&e.to_string()))?;
            let socket = socket.ok_or_else(|| unusable("it was passed twice"))?;
            let address = socket.local_addr().map_err(|e| unusable(&e.to_string()))?;
            found.addresses.push((purpose, address));
            found.sockets.push(socket);
        }
        Ok(found)
    }

    /// Replaces the addresses of `config` for which there are sockets. iSCSI and metrics use the last socket.
    pub(crate) fn apply(&self, config: &mut Config) {
        let of = |wanted: fn(&Purpose) -> bool| {
            self.addresses.iter().filter(move |(purpose, _)| wanted(purpose)).map(|(_, address)| *address)
        };
        let replace = |list: &mut Vec<SocketAddr>, wanted| {
            let passed: Vec<_> = of(wanted).collect();
            if !passed.is_empty() {
                *list = passed;
            }
        };
        replace(&mut config.server.listen_tcp, |p| matches!(p, Purpose::Tcp));
        replace(&mut config.server.listen_rdma, |p| matches!(p, Purpose::Rdma));
        let iscsi = of(|p| matches!(p, Purpose::Iscsi)).next_back();
        config.server.listen_iscsi = iscsi.or(config.server.listen_iscsi);
        config.metrics = of(|p| matches!(p, Purpose::Metrics)).next_back().or(config.metrics);
    }

    /// The sockets, of which the ones in the configuration are to be used.
    pub(crate) fn take_sockets(&mut self) -> Vec<TcpListener> {
        std::mem::take(&mut self.sockets)
    }
}

fn purpose(name: &str) -> Result<Purpose, Failure> {
    match name {
        "tcp" => Ok(Purpose::Tcp),
        "rdma" => Ok(Purpose::Rdma),
        "iscsi" => Ok(Purpose::Iscsi),
        "metrics" => Ok(Purpose::Metrics),
        _ => Err(Failure::new(format!(
            "the service manager passes a socket with the name {name:?}: write FileDescriptorName=tcp, rdma, iscsi or \
             metrics in its unit"
        ))),
    }
}
