//! Queue pairs over connected byte streams.

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, QueuePair, stag::StagTables};
use millrace_runtime::{ByteStream, RuntimeRef};

use super::{qp::IwarpQp, setup};

/// Sets up a connection over `stream` as the MPA initiator (the end that opened the stream).
///
/// # Errors
/// Those of [`millrace_rdma::Provider::connect`].
pub async fn connect_over(
    rt: RuntimeRef,
    _arena: Arena,
    stream: Box<dyn ByteStream>,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    initiate(rt, stream, params, StagTables::default()).await
}

pub(super) async fn initiate(
    rt: RuntimeRef,
    mut stream: Box<dyn ByteStream>,
    params: ConnectParams,
    tags: StagTables,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let negotiated = setup::initiate(&rt, &mut *stream, &params).await?;
    Ok(Box::new(IwarpQp::new(rt, stream, &params, negotiated, tags)))
}

/// Sets up a connection over `stream` as the MPA responder.
///
/// # Errors
/// Those of [`millrace_rdma::Incoming::accept`].
pub async fn accept_over(
    rt: RuntimeRef,
    _arena: Arena,
    stream: Box<dyn ByteStream>,
    params: ConnectParams,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    respond(rt, stream, params, StagTables::default()).await
}

pub(super) async fn respond(
    rt: RuntimeRef,
    mut stream: Box<dyn ByteStream>,
    params: ConnectParams,
    tags: StagTables,
) -> Result<Box<dyn QueuePair>, ConnectionError> {
    let negotiated = setup::respond(&rt, &mut *stream, &params).await?;
    Ok(Box::new(IwarpQp::new(rt, stream, &params, negotiated, tags)))
}
