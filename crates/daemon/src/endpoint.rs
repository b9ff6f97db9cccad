//! The HTTP endpoint: `/metrics` has the statistics; `/healthz` answers while the server runs, `/readyz` whether all shards
//! answer.

use std::{
    convert::Infallible,
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use futures::future::{Either, select};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS,
    },
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, task::AbortHandle};

use crate::{
    negotiation::{Format, accepts_gzip},
    prometheus::render,
    snapshot::Observer,
};

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
/// The statistics.
const METRICS: &str = "/metrics";
/// Whether all shards answer.
const READY: &str = "/readyz";
/// The pages of the endpoint.
const PATHS: [&str; 3] = [METRICS, READY, "/healthz"];

/// Answers requests until `stopping` completes.
pub(crate) async fn serve(listener: TcpListener, observer: Observer, stopping: impl Future<Output = ()>) {
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
            Ok((stream, _)) => connections.add(stream, observer.clone()),
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
    fn add(&mut self, stream: TcpStream, observer: Observer) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let is_idle = |connection: &Connection| !connection.has_request.load(Ordering::Relaxed);
            let replaced = self.0.iter().position(is_idle).unwrap_or(0);
            self.0.remove(replaced).task.abort();
        }
        let has_request = Arc::new(AtomicBool::new(false));
        let requested = Arc::clone(&has_request);
        let task = tokio::spawn(async move {
            let answered = tokio::time::timeout(REQUEST_LIMIT, answer(stream, &observer, &requested)).await;
            if !matches!(answered, Ok(Ok(()))) {
                tracing::debug!("metrics: a request was not answered");
            }
        });
        self.0.push(Connection { task: task.abort_handle(), has_request });
    }
}

/// Answers the one request of a connection, and records its arrival in `has_request`.
async fn answer(stream: TcpStream, observer: &Observer, has_request: &AtomicBool) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        has_request.store(true, Ordering::Relaxed);
        let (head, _) = request.into_parts();
        async move { Ok::<_, Infallible>(respond(&head, observer).await) }
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

async fn respond(head: &Parts, observer: &Observer) -> Response<Whole> {
    let path = head.uri.path();
    if !PATHS.contains(&path) {
        return plain(
            StatusCode::NOT_FOUND,
            format!("{path} is not a page of this server: use {}\n", PATHS.join(" or ")),
        );
    }
    if !matches!(head.method, Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        METRICS => {
            let format = Format::preferred(&head.headers);
            let mut response =
                answered(StatusCode::OK, format.content_type(), render(&observer.snapshot().await, format));
            response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
            compressed(response, &head.headers)
        }
        READY => readiness(&observer.hung_shards().await),
        // The endpoint stops with the listeners. A restart would not help if a file system hangs, so no shard is asked.
        _ => plain(StatusCode::OK, "ok\n".to_owned()),
    }
}

fn readiness(hung_shards: &[usize]) -> Response<Whole> {
    if hung_shards.is_empty() {
        return plain(StatusCode::OK, "ok\n".to_owned());
    }
    let numbers = hung_shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let text = format!("shards that do not answer: {numbers}; see whether a file system hangs\n");
    plain(StatusCode::SERVICE_UNAVAILABLE, text)
}

/// A response for people.
fn plain(status: StatusCode, text: String) -> Response<Whole> {
    answered(status, "text/plain; charset=utf-8", text)
}

fn answered(status: StatusCode, content_type: &'static str, text: String) -> Response<Whole> {
    let mut response = Response::new(Whole(Some(text.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// `response`, compressed if the request with the headers `accepted` allows it.
fn compressed(mut response: Response<Whole>, accepted: &HeaderMap) -> Response<Whole> {
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    if accepts_gzip(accepted)
        && let Some(body) = &response.body().0
    {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        if let Ok(short) = encoder.write_all(body).and_then(|()| encoder.finish()) {
            *response.body_mut() = Whole(Some(short.into()));
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
    }
    response
}

/// A body that is sent at once, and has a known length.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_a_shard_that_hangs_is_not_ready() {
        assert_eq!(readiness(&[]).status(), StatusCode::OK);
        let response = readiness(&[0, 2]);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let text = response.body().0.clone().unwrap_or_default();
        assert!(text.starts_with(b"shards that do not answer: 0, 2;"), "{text:?}");
    }
}
