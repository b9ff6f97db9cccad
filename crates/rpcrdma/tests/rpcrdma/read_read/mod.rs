//! The Read-Read design: its encoding, and attacks of either end.

mod agreement;
mod hostile_requester;
mod hostile_responder;

use millrace_rpcrdma::{Design, PrivateData};

/// Connection parameters of a bare queue pair.
fn params(design: Design) -> millrace_rdma::ConnectParams {
    let data = PrivateData { design, remote_invalidate: false, send_size: 4096, receive_size: 4096 };
    millrace_rdma::ConnectParams { private_data: data.encode().to_vec(), ..Default::default() }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}
