//! The HTTP endpoint: `/` is a page for people, `/metrics` has the statistics; `/healthz` answers while the server runs,
//! `/readyz` whether all shards answer. Over HTTPS if there is a certificate.

use std::{
    convert::Infallible,
    error::Error,
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut, Write},
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use arc_swap::ArcSwap;
use flate2::{Compression, write::GzEncoder};
use futures::future::{Either, select};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, VARY, WWW_AUTHENTICATE,
        X_CONTENT_TYPE_OPTIONS,
    },
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use millrace_runtime::{ByteStream, tokio_rt::TcpByteStream};
use millrace_tls::{Session, TlsStream};
use tokio::{net::TcpStream, task::AbortHandle};

use crate::{
    access::Access,
    negotiation::{Format, accepts_gzip},
    observer::Observer,
    prometheus::render,
    status_page::CONTENT_SECURITY_POLICY,
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
/// The state of the server for people.
const STATUS: &str = "/";
/// Whether all shards answer.
const READY: &str = "/readyz";
/// The pages of the endpoint.
const PATHS: [&str; 4] = [STATUS, METRICS, READY, "/healthz"];

/// Answers requests until `stopping` completes.
pub(crate) async fn serve(
    listener: TcpListener,
    observer: Arc<Observer>,
    access: Arc<ArcSwap<Access>>,
    stopping: impl Future<Output = ()>,
) {
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
            Ok((stream, _)) => connections.add(stream, Arc::clone(&observer), access.load_full()),
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
    fn add(&mut self, stream: TcpStream, observer: Arc<Observer>, access: Arc<Access>) {
        self.0.retain(|connection| !connection.task.is_finished());
        if self.0.len() >= MAX_CONNECTIONS {
            let is_idle = |connection: &Connection| !connection.has_request.load(Ordering::Relaxed);
            let replaced = self.0.iter().position(is_idle).unwrap_or(0);
            self.0.remove(replaced).task.abort();
        }
        let has_request = Arc::new(AtomicBool::new(false));
        let requested = Arc::clone(&has_request);
        let task = tokio::spawn(async move {
            let answered = answer(stream, &observer, &access, &requested);
            match tokio::time::timeout(REQUEST_LIMIT, answered).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => tracing::debug!("metrics: a request was not answered: {e}"),
                Err(_) => tracing::debug!("metrics: a request took too long"),
            }
        });
        self.0.push(Connection { task: task.abort_handle(), has_request });
    }
}

/// Answers the one request of a connection, and records its arrival in `has_request`.
async fn answer(
    stream: TcpStream,
    observer: &Observer,
    access: &Access,
    has_request: &AtomicBool,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let Some(config) = &access.tls else {
        let asker = Asker { observer, access, has_certificate: false };
        return Ok(asker.answer(TokioIo::new(stream), has_request).await?);
    };
    let stream = TcpByteStream::new(stream.into_std()?)?;
    let mut stream = TlsStream::new(stream, Session::server(config)?);
    let handshake = tokio::time::timeout(HEADERS_LIMIT, poll_fn(|cx| stream.poll_handshake(cx)));
    handshake.await??;
    let has_certificate = stream.client_certificate().is_some();
    let asker = Asker { observer, access, has_certificate };
    Ok(asker.answer(Encrypted(stream), has_request).await?)
}

/// Who makes a request of whom.
#[derive(Clone, Copy)]
struct Asker<'c> {
    observer: &'c Observer,
    access: &'c Access,
    /// Whether the client has proved a certificate.
    has_certificate: bool,
}

impl Asker<'_> {
    async fn answer(
        self,
        stream: impl hyper::rt::Read + hyper::rt::Write + Unpin,
        has_request: &AtomicBool,
    ) -> hyper::Result<()> {
        let service = service_fn(|request: Request<Incoming>| {
            has_request.store(true, Ordering::Relaxed);
            let (head, _) = request.into_parts();
            async move { Ok::<_, Infallible>(respond(&head, self).await) }
        });
        http1::Builder::new()
            .keep_alive(false)
            .half_close(true) // A client may close its sending side after the request.
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_LIMIT)
            .max_buf_size(MAX_REQUEST_BYTES)
            .serve_connection(stream, service)
            .await
    }
}

/// A stream with TLS as hyper uses it.
struct Encrypted(TlsStream<TcpByteStream>);

impl hyper::rt::Read for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper's buffer is not initialised. A request is short.
        let mut space = [0; 2048];
        let len = buf.remaining().min(space.len());
        let n = ready!(self.0.poll_read(cx, &mut [IoSliceMut::new(&mut space[..len])]))?;
        buf.put_slice(&space[..n]);
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, &[IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.shutdown();
        self.0.poll_flush(cx)
    }
}

async fn respond(head: &Parts, asker: Asker<'_>) -> Response<Whole> {
    let observer = asker.observer;
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
    if matches!(path, METRICS | STATUS) && !asker.access.admits(&head.headers, asker.has_certificate) {
        let mut response = plain(
            StatusCode::UNAUTHORIZED,
            "state the token (Authorization: Bearer TOKEN), or use a client certificate\n".to_owned(),
        );
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
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
        STATUS => {
            let page = observer.status_page().await.html();
            let mut response = answered(StatusCode::OK, "text/html; charset=utf-8", page);
            let policy = HeaderValue::from_static(CONTENT_SECURITY_POLICY);
            response.headers_mut().insert(hyper::header::CONTENT_SECURITY_POLICY, policy);
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

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net,
        sync::{Mutex, mpsc},
        time::Instant,
    };

    use millrace_server::{Config, Resources, Running, Server};
    use millrace_vfs::{FileSystem, FileSystemRef, Handle};

    use super::*;
    use crate::MetricsAccess;

    /// A file system whose `root` blocks the thread while there is a gate that is not closed.
    struct Hanging {
        inner: FileSystemRef,
        gate: Arc<Mutex<Option<mpsc::Receiver<()>>>>,
    }

    impl FileSystem for Hanging {
        fn root(&self) -> Handle {
            if let Some(gate) = &*self.gate.lock().unwrap() {
                let _ = gate.recv();
            }
            self.inner.root()
        }

        millrace_vfs::forward!(inner: info getattr lookup read readdir stat);
    }

    /// MNT of `/x`, over TCP.
    fn mount_call() -> Vec<u8> {
        // XID, CALL, RPC version, MOUNT version 3, MNT, AUTH_NONE twice, the path.
        let words = [1, 0, 2, 100_005, 3, 1, 0, 0, 0, 0, 2, u32::from_be_bytes(*b"/x\0\0")];
        let record = [0x8000_0000 | (4 * words.len() as u32)].into_iter().chain(words);
        record.flat_map(u32::to_be_bytes).collect()
    }

    fn status(addr: SocketAddr, path: &str) -> String {
        let mut stream = net::TcpStream::connect(addr).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    }

    #[test]
    fn a_server_with_a_shard_that_hangs_is_alive_and_not_ready() {
        let gate: Arc<Mutex<Option<mpsc::Receiver<()>>>> = Arc::default();
        let of_export = Arc::clone(&gate);
        let open = move |export: &_, with: &Resources<'_>| {
            let inner = millrace_server::open(export, with)?;
            Ok(Arc::new(Hanging { inner, gate: Arc::clone(&of_export) }) as FileSystemRef)
        };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = Config {
            exports: vec!["/x=memory:1MiB,auth_none".parse().unwrap()],
            listen_tcp: vec![local],
            shards: Some(2),
            ..Config::default()
        };
        let server: Running = Server::start_with(config, open).unwrap();
        let listener = bind(local).unwrap();
        let addr = listener.local_addr().unwrap();
        let access = Arc::new(ArcSwap::from_pointee(Access::load(&MetricsAccess::default()).unwrap()));
        server.spawn("metrics", serve(listener, Arc::new(Observer::new(&server)), access, server.stopping()));
        let end = Instant::now() + Duration::from_secs(60);
        let until = |expected: &str| {
            while status(addr, READY) != expected {
                assert!(Instant::now() < end, "the server does not become {expected}");
            }
        };
        until("200");
        let (release, closed) = mpsc::channel::<()>();
        *gate.lock().unwrap() = Some(closed);
        let mut client = net::TcpStream::connect(server.tcp_addr().unwrap()).unwrap();
        client.write_all(&mount_call()).unwrap();
        until("503");
        assert_eq!((status(addr, "/healthz"), status(addr, STATUS)), ("200".to_owned(), "200".to_owned()));
        drop(release);
        until("200");
        client.read_exact(&mut [0; 4]).unwrap();
    }
}
