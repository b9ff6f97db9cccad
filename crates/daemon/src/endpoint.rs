//! The HTTP endpoint: `GET /metrics` answers with the statistics, `GET /healthz` while the server runs.

use std::{
    convert::Infallible,
    future::ready,
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_server::StatsReader;
use tokio::{net::TcpStream, task::AbortHandle};

use crate::prometheus::render;

/// Pause after an accept that failed for lack of descriptors or memory, to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of connections. A further one replaces the oldest without a request, if any, or the oldest.
const MAX_CONNECTIONS: usize = 128;
/// Maximum bytes of the request line and headers.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// Time limit of the request line and headers.
const HEADERS_LIMIT: Duration = Duration::from_secs(1);
/// Time limit of a request and its reply.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The media type of the text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers requests until `stopping` completes.
pub(crate) async fn serve(listener: TcpListener, stats: StatsReader, stopping: impl Future<Output = ()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(l) => l,
        Err(e) => return tracing::error!("metrics: cannot listen: {e}"),
    };
    let mut connections = Connections::default();
    let mut stop = Box::pin(stopping);
    loop {
        let accepted = match select(Box::pin(listener.accept()), stop).await {
            Either::Left((accepted, rest)) => {
                stop = rest;
                accepted
            }
            Either::Right(_) => return,
        };
        match accepted {
            Ok((stream, _)) => connections.add(stream, stats.clone()),
            Err(e) => {
                tracing::warn!("metrics: cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The open connections, the oldest first.
#[derive(Default)]
struct Connections(Vec<Connection>);

struct Connection {
    task: AbortHandle,
    has_request: Arc<AtomicBool>,
}

impl Connections {
    /// Serves a connection, which may replace another one.
    fn add(&mut self, stream: TcpStream, stats: StatsReader) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let is_idle = |connection: &Connection| !connection.has_request.load(Ordering::Relaxed);
            let replaced = self.0.iter().position(is_idle).unwrap_or(0);
            self.0.remove(replaced).task.abort();
        }
        let has_request = Arc::new(AtomicBool::new(false));
        let requested = Arc::clone(&has_request);
        let task = tokio::spawn(async move {
            let answered = tokio::time::timeout(REQUEST_LIMIT, answer(stream, &stats, &requested)).await;
            if !matches!(answered, Ok(Ok(()))) {
                tracing::debug!("metrics: a request was not answered");
            }
        });
        self.0.push(Connection { task: task.abort_handle(), has_request });
    }
}

/// Answers the one request of a connection, and records its arrival in `has_request`.
async fn answer(stream: TcpStream, stats: &StatsReader, has_request: &AtomicBool) -> hyper::Result<()> {
    let service = service_fn(|request| {
        has_request.store(true, Ordering::Relaxed);
        ready(Ok::<_, Infallible>(respond(&request, stats)))
    });
    http1::Builder::new()
        .keep_alive(false)
        .half_close(true) // A client may close its sending side after the request.
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_LIMIT)
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

/// Creates a listening socket for the endpoint, whose address can be reused immediately after a restart. That of all
/// IPv6 addresses also accepts IPv4.
pub(crate) fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}
