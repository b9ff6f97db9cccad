//! The client and the server with a proxy between them that repeatedly breaks connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_client::{
    Options, Proto, RetryPolicy, Url,
    handles::blocking::Client,
    ops::{CreateHow, SetAttributes, StableHow},
};
use millrace_server::{Config, Server};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

/// Number of bytes before the next break, from a seed, so that a failure is reproducible.
struct Breaks {
    random: Mutex<SplitMix64>,
    on: AtomicBool,
    broken: AtomicU64,
}

impl Breaks {
    fn next(&self) -> u64 {
        // Connection setup takes some hundred bytes, so breaks occur during setup and later.
        300 + self.random.lock().unwrap().next_u64() % 60_000
    }
}

/// Forwards bytes in one direction until the budget of the connection is exhausted.
fn carry(mut from: TcpStream, mut to: TcpStream, budget: &AtomicU64, breaks: &Breaks) {
    drop(to.set_nodelay(true));
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let spend = |left: u64| left.checked_sub(n as u64);
        let spent = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_err();
        if spent && breaks.on.load(Ordering::Relaxed) {
            breaks.broken.fetch_add(1, Ordering::Relaxed);
            // Break in the middle of the read data.
            drop(to.write_all(&bytes[..n / 2]));
            break;
        }
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}

fn proxy(server: SocketAddr, breaks: Arc<Breaks>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
            let budget = Arc::new(AtomicU64::new(breaks.next()));
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                let (budget, breaks) = (Arc::clone(&budget), Arc::clone(&breaks));
                std::thread::spawn(move || carry(from, to, &budget, &breaks));
            }
        }
    });
    addr
}

fn each_name_is_made_renamed_and_removed_once(c: &Client) {
    let root = c.root();
    for n in 0..150 {
        let dir = c.mkdir(root, format!("dir{n}"), SetAttributes::default()).unwrap().handle;
        let file = c.create(dir, "file", CreateHow::Unchecked(SetAttributes::default())).unwrap().handle;
        c.link(file, dir, "second").unwrap();
        c.symlink(dir, "link", "file", SetAttributes::default()).unwrap();
        c.rename(dir, "file", dir, "renamed").unwrap();
        let mut names: Vec<_> =
            c.readdir(dir).unwrap().into_iter().filter(|e| !e.is_dot()).map(|e| e.name).collect();
        names.sort();
        assert_eq!(names, [&b"link"[..], b"renamed", b"second"]);
        for name in names {
            c.remove(dir, name).unwrap();
        }
        c.rmdir(root, format!("dir{n}")).unwrap();
    }
    assert!(c.readdir(root).unwrap().iter().all(|e| e.is_dot()));
}

fn data_arrives_whole(c: &Client) {
    let data: Vec<u8> = (0..700_000_usize).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let file = c.create_file("f", 0o600).unwrap();
    let mut rest = &data[..];
    file.write_stream(0, 4, |max| {
        let (piece, tail) = rest.split_at(max.min(rest.len()));
        rest = tail;
        Ok((!piece.is_empty()).then(|| c.arena().copy_from(piece).unwrap().into()))
    })
    .unwrap();
    c.write(file.handle(), 700_000, &data[..9999], StableHow::FileSync).unwrap();
    let mut back = Vec::new();
    file.read_stream(0, u64::MAX, 4, |_, v| back.extend(v.to_vec())).unwrap();
    assert!(back.len() == 709_999 && back[..700_000] == data && back[700_000..] == data[..9999]);
    c.remove(c.root(), "f").unwrap();
}

#[test]
fn broken_connections_neither_lose_nor_repeat_operations() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for proto in [Proto::Tcp, Proto::Rdma] {
        println!("{proto}, SEED={seed}");
        let config = Config {
            exports: vec!["/data=memory:64MiB".parse().unwrap()],
            listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
            listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
            shards: Some(1),
            ..Config::default()
        };
        let server = Server::start(config).unwrap();
        let addr = if proto == Proto::Rdma { server.rdma_addr() } else { server.tcp_addr() };
        let breaks = Arc::new(Breaks {
            random: Mutex::new(SplitMix64::seed_from_u64(seed)),
            on: false.into(),
            broken: 0.into(),
        });
        let port = proxy(addr.unwrap(), Arc::clone(&breaks)).port();
        let url = Url { port: Some(port), proto: Some(proto), ..Url::new("127.0.0.1", "/data") };
        let options = Options::default()
            .nconnect(2)
            .rsize(Some(8192))
            .wsize(Some(8192))
            .timeout(Duration::from_secs(20))
            .retry(RetryPolicy {
                max_elapsed: Duration::from_secs(60),
                first_delay: Duration::from_micros(100),
                max_delay: Duration::from_millis(5),
            });
        let client = Client::connect(&url, options).unwrap();
        breaks.on.store(true, Ordering::Relaxed);
        each_name_is_made_renamed_and_removed_once(&client);
        data_arrives_whole(&client);
        breaks.on.store(false, Ordering::Relaxed);
        let (broken, stats) = (breaks.broken.load(Ordering::Relaxed), client.stats());
        println!("{broken} breaks, {} calls sent again, {} reconnects", stats.retransmits, stats.reconnects);
        assert!(broken > 20 && stats.reconnects > 10);
        drop(client);
        server.stop_blocking(Duration::from_secs(1));
    }
}
