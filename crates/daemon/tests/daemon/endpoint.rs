//! The HTTP endpoint of a daemon whose server has clients.

// The helpers call procedures without a client library, so that each call is counted.
#[allow(dead_code)] // The helpers have other users.
#[path = "../../../server/tests/server/common/mod.rs"]
mod common;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use common::{Caller, Proto, config, rdma_at, run};
use millrace_daemon::{Config, Daemon};
use millrace_nfs::v3::{StableHow, Status};

/// Starts a daemon with an endpoint on a free port.
fn start(server: millrace_server::Config) -> Daemon {
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    Daemon::start(Config { server, metrics, ..Config::default() }).unwrap()
}

fn get(addr: SocketAddr, path: &str) -> String {
    let mut s = TcpStream::connect(addr).unwrap();
    write!(s, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut out = String::new();
    s.read_to_string(&mut out).unwrap();
    out
}

#[test]
fn metrics_are_served_over_http() {
    run(async {
        let daemon = start(config(&["/x=memory:8MiB"]));
        let server = daemon.server();
        let c = Caller::connect(server, Proto::Rdma).await;
        let root = c.mount("/x").await.unwrap();
        let f = c.create(root, "f").await;
        c.write(f, 0, &[1; 100_000], StableHow::FileSync).await.unwrap();
        let addr = daemon.metrics_addr().unwrap();
        let text = get(addr, "/metrics");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        for line in [
            "millrace_nfs_calls_total{version=\"3\",procedure=\"WRITE\"} 1",
            "millrace_data_bytes_total{direction=\"written\"} 100000",
            "millrace_connections{transport=\"rdma\"} 1",
            "millrace_rdma_regions_exposed 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert!(get(addr, "/healthz").ends_with("\r\n\r\nok\n"));
    });
}

#[test]
fn exports_and_clients_are_counted_separately() {
    run(async {
        let mut config = config(&["/x=memory:8MiB", "/y=memory:8MiB"]);
        config.listen_tcp = vec![(rdma_at().0, 0).into()];
        let daemon = start(config);
        let server = daemon.server();
        // Two connections on two shards.
        let callers = [Caller::connect(server, Proto::Rdma).await, Caller::connect(server, Proto::Tcp).await];
        for (i, c) in callers.iter().enumerate() {
            let root = c.mount("/x").await.unwrap();
            let f = c.create(root, &format!("f{i}")).await;
            c.write(f, 0, &[1; 1000], StableHow::FileSync).await.unwrap();
            c.read(f, 0, 100).await.unwrap();
            assert_eq!(c.lookup(root, "none").await.unwrap_err(), Status::NoEnt);
        }
        let text = get(daemon.metrics_addr().unwrap(), "/metrics");
        let client = rdma_at().0;
        for line in [
            "millrace_nfs_call_seconds_count{version=\"3\",procedure=\"WRITE\"} 2".to_owned(),
            "millrace_nfs_call_seconds_bucket{le=\"+Inf\",version=\"3\",procedure=\"WRITE\"} 2".to_owned(),
            "millrace_nfs_failures_total{version=\"3\",procedure=\"LOOKUP\"} 2".to_owned(),
            "millrace_export_call_seconds_count{export=\"/x\"} 8".to_owned(),
            "millrace_export_call_seconds_count{export=\"/y\"} 0".to_owned(),
            "millrace_export_bytes_total{export=\"/x\",direction=\"written\"} 2000".to_owned(),
            format!("millrace_client_call_seconds_count{{client=\"{client}\"}} 8"),
            format!("millrace_client_bytes_total{{client=\"{client}\",direction=\"read\"}} 200"),
            "millrace_credits 64".to_owned(),
            "millrace_rdma_calls_in_progress 0".to_owned(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        let stats = server.stats();
        assert!(stats.exports[0].1.latency.nanos > 0 && stats.clients.len() == 1);
    });
}

/// Sends `request` and returns the bytes until the endpoint closes the connection.
fn answer(addr: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut s = TcpStream::connect(addr).unwrap();
    s.write_all(request).unwrap();
    let mut out = Vec::new();
    let _ = s.read_to_end(&mut out); // A connection that is closed with unread bytes may be reset.
    out
}

fn text(answer: Vec<u8>) -> String {
    String::from_utf8(answer).unwrap()
}

/// The lines of headers of a response, in lower case, and its body.
fn parsed(response: &[u8]) -> (Vec<String>, &[u8]) {
    let end = response.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    (head.split("\r\n").map(str::to_owned).collect(), &response[end + 4..])
}

/// Requests `path` with `headers`, which end with CR LF.
fn request(addr: SocketAddr, method: &str, path: &str, headers: &str) -> Vec<u8> {
    answer(addr, format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes())
}

/// The value of a header.
fn header<'h>(head: &'h [String], name: &str) -> Option<&'h str> {
    head.iter().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn every_request_gets_one_reply() {
    let daemon = start(config(&["/x=memory:8MiB"]));
    let addr = daemon.metrics_addr().unwrap();
    let response = text(answer(addr, b"GET /healthz?verbose HTTP/1.0\r\n\r\n"));
    assert!(response.starts_with("HTTP/1.0 200") && response.ends_with("\r\n\r\nok\n"), "{response}");
    let twice = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
    assert_eq!(text(answer(addr, &twice)).matches("HTTP/1.1 200").count(), 1);
    assert!(text(answer(addr, b"\x16\x03\x01 not HTTP\r\n\r\n")).starts_with("HTTP/1.1 400"));
    // A client that closes its sending side gets its reply.
    let mut s = TcpStream::connect(addr).unwrap();
    s.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    s.shutdown(std::net::Shutdown::Write).unwrap();
    let mut response = String::new();
    s.read_to_string(&mut response).unwrap();
    assert!(response.ends_with("ok\n"), "{response}");
}

#[test]
fn each_page_has_its_status_and_type() {
    let daemon = start(config(&["/x=memory:8MiB"]));
    let addr = daemon.metrics_addr().unwrap();
    for (method, path, status, content_type) in [
        ("GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("GET", "/", 200, "text/html; charset=utf-8"),
        ("GET", "/healthz", 200, "text/plain; charset=utf-8"),
        ("GET", "/readyz", 200, "text/plain; charset=utf-8"),
        ("GET", "/metricsx", 404, "text/plain; charset=utf-8"),
        ("POST", "/metricsx", 404, "text/plain; charset=utf-8"),
        ("POST", "/metrics", 405, "text/plain; charset=utf-8"),
        ("DELETE", "/healthz", 405, "text/plain; charset=utf-8"),
    ] {
        let response = request(addr, method, path, "Content-Length: 0\r\n");
        let (head, body) = parsed(&response);
        assert!(head[0].starts_with(&format!("http/1.1 {status} ")), "{method} {path}: {head:?}");
        assert_eq!(header(&head, "content-type"), Some(content_type), "{method} {path}");
        assert_eq!(header(&head, "allow"), (status == 405).then_some("get, head"));
        assert_eq!(header(&head, "content-length"), Some(&*body.len().to_string()), "{method} {path}");
        assert_eq!(header(&head, "x-content-type-options"), Some("nosniff"));
        assert!(!body.is_empty(), "{method} {path}");
    }
    for path in ["/", "/metrics", "/readyz", "/healthz", "/other"] {
        let (with_body, without) = (request(addr, "GET", path, ""), request(addr, "HEAD", path, ""));
        let (got, (asked, nothing)) = (parsed(&with_body), parsed(&without));
        assert!(nothing.is_empty() && !got.1.is_empty(), "{path}");
        for name in ["content-type", "cache-control", "vary"] {
            assert_eq!(header(&asked, name), header(&got.0, name), "{path}");
        }
        assert!(header(&asked, "content-length").is_some_and(|n| n != "0"), "{asked:?}");
    }
}

#[test]
fn metrics_have_the_format_and_coding_that_the_request_accepts() {
    let daemon = start(config(&["/x=memory:8MiB"]));
    let addr = daemon.metrics_addr().unwrap();
    let open = request(addr, "GET", "/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n");
    let (head, body) = parsed(&open);
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(header(&head, "content-type"), Some(content_type));
    assert!(body.ends_with(b"# EOF\n"));
    assert_eq!(header(&head, "content-encoding"), None);

    let zipped = request(addr, "GET", "/metrics", "Accept-Encoding: br, gzip\r\n");
    let (head, body) = parsed(&zipped);
    assert_eq!(header(&head, "content-encoding"), Some("gzip"));
    assert_eq!(header(&head, "content-length"), Some(&*body.len().to_string()));
    let mut whole = String::new();
    flate2::read::GzDecoder::new(body).read_to_string(&mut whole).unwrap();
    assert!(whole.contains("\n# TYPE millrace_data_bytes_total counter\n"), "{whole}");
    assert!(body.len() < whole.len() / 4, "{} of {} bytes", body.len(), whole.len());
    let vary: Vec<_> = head.iter().filter_map(|l| l.strip_prefix("vary: ")).collect();
    assert_eq!(vary, ["accept", "accept-encoding"]);
}

#[test]
fn headers_connections_and_time_are_limited() {
    let daemon = start(config(&["/x=memory:8MiB"]));
    let addr = daemon.metrics_addr().unwrap();
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(16 << 10));
    assert!(!text(answer(addr, long.as_bytes())).contains("200 OK"));
    // Connections without a request, more than are accepted, do not delay one with a request.
    let mut idle: Vec<_> = (0..200).map(|_| TcpStream::connect(addr).unwrap()).collect();
    idle[0].write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut s = TcpStream::connect(addr).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    s.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut out = String::new();
    s.read_to_string(&mut out).unwrap();
    assert!(out.ends_with("ok\n"), "{out}");
    for mut s in idle {
        let mut out = Vec::new();
        let _ = s.read_to_end(&mut out);
        assert!(!out.starts_with(b"HTTP/1.1 200"), "{out:?}");
    }
}

#[test]
fn the_status_page_shows_names_of_clients_as_text() {
    run(async {
        let daemon = start(config(&["/x<b>=memory:8MiB"]));
        let (rdma, tcp) = (daemon.server().rdma_addr().unwrap(), daemon.server().tcp_addr().unwrap());
        let page = request(daemon.metrics_addr().unwrap(), "GET", "/", "");
        let (head, body) = parsed(&page);
        let policy = header(&head, "content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("script"), "{policy}");
        let html = String::from_utf8(body.to_vec()).unwrap();
        for part in [
            "<bdi>/x&lt;b&gt;</bdi>",
            "Ready: all shards answer.",
            ">8 MiB<",
            &tcp.to_string(),
            &rdma.to_string(),
        ] {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
        assert!(!html.contains("<b>=") && !html.contains("x<b>"), "{html}");
    });
}
