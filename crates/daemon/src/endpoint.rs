//! The HTTP endpoint: `GET /metrics` answers with the statistics, `GET /healthz` while the server runs.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use futures::future::{Either, select};
use millrace_server::StatsReader;
use tokio::{net::TcpStream, sync::Semaphore};

use crate::prometheus::render;

/// Pause after an accept that failed for want of descriptors or memory, so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Requests answered at once; more wait.
const MAX_REQUESTS: usize = 8;
/// The longest request line and headers.
const MAX_REQUEST_BYTES: usize = 8 << 10;
/// How long a request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Answers requests until `stopping` completes.
pub(crate) async fn serve(listener: TcpListener, stats: StatsReader, stopping: impl Future<Output = ()>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(l) => l,
        Err(e) => return tracing::error!("metrics: cannot listen: {e}"),
    };
    let places = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut stop = Box::pin(stopping);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = match select(Box::pin(next), stop).await {
            Either::Left((next, rest)) => {
                stop = rest;
                next
            }
            Either::Right(_) => return,
        };
        let Ok(place) = place else { return };
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
            drop(place);
        });
    }
}

async fn answer(stream: TcpStream, stats: &StatsReader) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST_BYTES || !read_more(&stream, &mut request).await? {
            return Ok(());
        }
    }
    let path = request.strip_prefix(b"GET ").and_then(|r| r.split(|b| matches!(b, b' ' | b'?')).next());
    let (status, body) = match path {
        Some(b"/metrics") => ("200 OK", render(&stats.stats())),
        // It ends with the listeners. Of a shard that is stuck it says nothing: the thread that accepts answers.
        Some(b"/healthz") => ("200 OK", "ok\n".to_owned()),
        _ => {
            ("404 Not Found", "the counters are at /metrics, and /healthz says that all is well\n".to_owned())
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    write_all(&stream, head.as_bytes()).await?;
    write_all(&stream, body.as_bytes()).await
}

/// Appends what has come to `request`; false at the end of the stream.
async fn read_more(stream: &TcpStream, request: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 1024];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut piece) {
            Ok(n) => {
                request.extend(piece.iter().take(n));
                return Ok(n > 0);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A listening socket for the endpoint, which a restart may bind again at once.
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
