//! The targets.

mod connection;
mod files;
mod gss;
mod iscsi;
mod iwarp;
mod krb5;
mod nbd;
mod nfs3;
mod nfs4;
mod record;
mod rpc;
mod rpcrdma;
mod scsi;
mod serving;
mod text;
mod tls;
mod xdr;

/// A fuzz target.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Executes the target with `input`.
    ///
    /// # Panics
    /// When a property does not hold.
    pub run: fn(&[u8]),
    /// The initial inputs: correct ones, and those that once caused a fault.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Executions in a short run.
    pub short: u64,
}

/// Executions of a decoder in a short run.
const DECODER: u64 = 200_000;
/// Executions of a target that sets up a queue pair or reads a file in a short run.
const ENDPOINT: u64 = 10_000;
/// Executions of a target that simulates a server, a network and clients in a short run.
const CONNECTION: u64 = 500;

macro_rules! targets {
    ($($name:ident = $($module:ident)::+, $short:ident;)*) => {
        &[$(Target {
            name: stringify!($name),
            run: $($module)::+::run,
            seeds: $($module)::+::seeds,
            short: $short,
        }),*]
    };
}

/// All targets.
pub const TARGETS: &[Target] = targets! {
    record_marking = record, DECODER;
    rpc_call = rpc::call, DECODER;
    rpc_reply = rpc::reply, DECODER;
    universal_address = text::address, DECODER;
    rpc_rdma_header = rpcrdma::header, DECODER;
    private_data = rpcrdma::private_data, DECODER;
    nfs3_args = nfs3::args, DECODER;
    nfs3_results = nfs3::results, DECODER;
    mount3 = nfs3::mount, DECODER;
    nfs4_compound = nfs4, DECODER;
    mpa_request = iwarp::request, ENDPOINT;
    mpa_reply = iwarp::reply, ENDPOINT;
    fpdu_stream = iwarp::stream, ENDPOINT;
    file_handles = files, ENDPOINT;
    url = text::url, DECODER;
    mount_options = text::mount_options, DECODER;
    configuration = text::configuration, ENDPOINT;
    krb5_token = krb5, DECODER;
    iscsi_pdu = iscsi::pdu, DECODER;
    iscsi_text = iscsi::text, DECODER;
    iscsi_login = iscsi::login, ENDPOINT;
    iscsi_session = iscsi::session, ENDPOINT;
    iser_header = iscsi::iser, DECODER;
    scsi_cdb = scsi, ENDPOINT;
    tcp_server = connection::tcp_server, CONNECTION;
    rdma_server_stream = connection::rdma_server_stream, CONNECTION;
    rdma_server_messages = connection::rdma_server_messages, CONNECTION;
    nfs4_server = connection::nfs4_server, CONNECTION;
    tcp_client = connection::tcp_client, CONNECTION;
    rdma_client = connection::rdma_client, CONNECTION;
    tls_server = tls, CONNECTION;
    gss_server = gss, CONNECTION;
    iscsi_connection = iscsi::connection, CONNECTION;
    nbd_connection = nbd, CONNECTION;
};

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// The result of a call of a file system, some of which answer at once.
fn wait<T>(call: impl IntoFuture<Output = T>) -> T {
    futures_executor::block_on(call.into_future())
}
