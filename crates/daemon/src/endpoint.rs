//! The HTTP endpoint: `GET /metrics` answers with the statistics, `GET /healthz` while the server runs.

use std::{
    convert::Infallible,
    future::ready,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use futures::future::{Either, select};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use millrace_server::StatsReader;
use tokio::{net::TcpStream, sync::Semaphore};

use crate::prometheus::render;

/// Pause after an accept that failed for lack of descriptors or memory, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of concurrent requests; further ones wait.
const MAX_REQUESTS: usize = 8;
/// Maximum bytes of the request line and headers.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time limit of a request.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The media type of the text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers requests until `stopping` completes.
pub(crate) async fn serve(listener: TcpListener, stats: StatsReader, stopping: impl Future<Output = ()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(l) => l,
        Err(e) => return tracing::error!("metrics: cannot listen: {e}"),
    };
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut stop = Box::pin(stopping);
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = match select(Box::pin(next), stop).await {
            Either::Left((next, rest)) => {
                stop = rest;
                next
            }
            Either::Right(_) => return,
        };
        let Ok(permit) = permit else { return };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("metrics: cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let stats = stats.clone();
        tokio::spawn(async move {
            let answered = tokio::time::timeout(REQUEST_LIMIT, answer(stream, &stats)).await;
            if !matches!(answered, Ok(Ok(()))) {
                tracing::debug!("metrics: a request was not answered");
            }
            drop(permit);
        });
    }
}

/// Answers the one request of a connection.
async fn answer(stream: TcpStream, stats: &StatsReader) -> hyper::Result<()> {
    let service = service_fn(|request| ready(Ok::<_, Infallible>(respond(&request, stats))));
    http1::Builder::new()
        .keep_alive(false)
        .half_close(true) // A client may close its sending side after the request.
        .header_read_timeout(None) // REQUEST_LIMIT bounds the whole request.
        .max_buf_size(MAX_REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn respond(request: &Request<Incoming>, stats: &StatsReader) -> Response<String> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => (StatusCode::OK, render(&stats.stats())),
        // The endpoint stops with the listeners. The control thread answers, so a blocked shard is not
        // detected.
        (&Method::GET, "/healthz") => (StatusCode::OK, "ok\n".to_owned()),
        _ => {
            let paths = "use /metrics for statistics, or /healthz for the health of the server\n";
            (StatusCode::NOT_FOUND, paths.to_owned())
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    response
}

/// Creates a listening socket for the endpoint, whose address can be reused immediately after a restart.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}
