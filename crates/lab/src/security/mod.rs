//! `millrace-lab security`: a hostile peer against servers of both designs and against a client, with numbers.

mod lies;

use std::{
    fmt::Write,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_bench::table::{Align, Table};
use millrace_cli_common::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_client::{Design, Options, Url, nfs3::blocking::Client};
use millrace_hostile::{
    Files, Peer, READ_READ, READ_WRITE, Source,
    attack::{self, Tries},
};
use millrace_nfs::v3::StableHow;
use millrace_rdma_iwarp::Iwarp;
use millrace_rdma_providers::ProviderChoice;
use millrace_server::{Config, ExposedBuffers, Exposure, Running, Server, ServerError};

use crate::args::SecurityArgs;

const SECRET: u8 = 0x5e;
/// What the file holds that the attacker opens itself.
const PUBLIC: u8 = 0x11;
const LEN: usize = 1 << 20;
/// How long the honest client is measured alone.
const ALONE: Duration = Duration::from_secs(1);
/// How long a Read-Read server here waits for RDMA_DONE.
const DONE_SECONDS: u64 = 2;

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::new(e.to_string())
}

pub(crate) fn run(args: &SecurityArgs) -> CommandResult {
    let mut harm = false;
    output::write(b"A hostile peer, made of nothing but a TCP socket, against servers and a client in this process.\n\n")?;
    for (design, private) in [(Design::ReadRead, READ_READ), (Design::ReadWrite, READ_WRITE)] {
        let scene = Scene::start(design)?;
        let (text, harmed) = scene.attacked(private, args.tries).map_err(failed)?;
        harm |= harmed;
        output::write(text.as_bytes())?;
    }
    let (text, shown) = weakened(args.tries)?;
    output::write(text.as_bytes())?;
    let (text, harmed) = lies::told()?;
    harm |= harmed;
    output::write(text.as_bytes())?;
    output::line(match (harm, shown) {
        (true, _) => "AN ATTACK GOT THROUGH.",
        (false, false) => {
            "No attack got through, but the server that was made weak on purpose did not fall: see above."
        }
        (false, true) => {
            "No attack read or changed a byte that it was not given, but of what was made weak on purpose. What this does \
             not cover: docs/security.md"
        }
    })?;
    Ok(if harm || !shown { Outcome::Failed } else { Outcome::Done })
}

/// A server, and a client of it that keeps the rules.
struct Scene {
    design: Design,
    server: Running,
    addr: SocketAddr,
    client: Client,
}

impl Scene {
    fn start(design: Design) -> Result<Self, Failure> {
        Self::with(design, Server::start)
    }

    /// A server whose connections share one table of tags that follow one another: weak on purpose.
    fn start_weak(design: Design) -> Result<Self, Failure> {
        let weak = Arc::new(Iwarp::insecure_with_predictable_shared_tags());
        Self::with(design, |config| Server::start_over(config, weak))
    }

    fn with(
        design: Design,
        start: impl FnOnce(Config) -> Result<Running, ServerError>,
    ) -> Result<Self, Failure> {
        let any_port = "127.0.0.1:0".parse().map_err(failed)?;
        let config = Config {
            exports: vec!["/x=memory:64MiB".parse().map_err(failed)?],
            listen_rdma: vec![any_port],
            provider: ProviderChoice::Iwarp,
            design,
            exposed_buffers: ExposedBuffers::AcceptedOnLoopback,
            exposure: Exposure { done_seconds: DONE_SECONDS, ..Exposure::default() },
            ..Config::default()
        };
        let server = start(config).map_err(failed)?;
        let addr = server.rdma_addr().ok_or_else(|| Failure::new("the embedded server does not listen"))?;
        let url: Url = format!("nfs://{addr}/x?proto=rdma&provider=iwarp").parse().map_err(failed)?;
        let client = Client::connect(&url, Options::default().design(design)).map_err(failed)?;
        for (name, fill) in [("secret", SECRET), ("public", PUBLIC)] {
            let file = client.create_file(name, 0o600).map_err(failed)?.handle();
            client.write(file, 0, &vec![fill; LEN], StableHow::FileSync).map_err(failed)?;
        }
        Ok(Self { design, server, addr, client })
    }

    /// Runs all attacks while the client reads its file.
    fn attacked(self, private: &[u8], tries: u64) -> io::Result<(String, bool)> {
        let reader = Reader::start(self.client.clone())?;
        std::thread::sleep(ALONE);
        reader.mark(); // Until here it was warming up.
        std::thread::sleep(ALONE);
        let alone = reader.rate();
        let mut table = Table::new(&[
            (&format!("{} server", self.design), Align::Left),
            ("tries", Align::Right),
            ("refused", Align::Right),
            ("bytes got", Align::Right),
            ("other client", Align::Right),
        ]);
        let mut harm = false;
        let mut row = |what: &str, tries: Tries, rate: f64| {
            harm |= tries.bytes > 0 || tries.refused != tries.tried;
            let number = |n: u64| n.to_string();
            table.row([
                what.to_owned(),
                number(tries.tried),
                number(tries.refused),
                number(tries.bytes),
                format!("{:.0} MB/s", rate / 1e6),
            ]);
        };
        row("(nobody attacks)", Tries::default(), alone);
        reader.mark();
        let reads = attack::guess_reads(self.addr, private, tries, 1)?;
        row("RDMA Read of guessed tags", reads, reader.rate());
        reader.mark();
        let writes = attack::guess_writes(self.addr, private, tries, 2)?;
        row("RDMA Write to guessed tags", writes, reader.rate());
        let mut more = String::new();
        if self.design == Design::ReadRead {
            reader.mark();
            let (_victim, source) = self.reading(private)?;
            let known = attack::read_of_another(self.addr, private, source)?;
            row("RDMA Read of another client's tag, known exactly", known, reader.rate());
            reader.mark();
            let (near, _) = self.around_its_own(private, tries)?;
            row("RDMA Read of the tags around its own", near, reader.rate());
            reader.mark();
            let reuse = attack::reuse(self.addr, private, "/x", "secret")?;
            row("RDMA Read beyond its own tag, or after RDMA_DONE", reuse, reader.rate());
            more = self.hoard(private)?;
        }
        let intact = reader.stop()?;
        let exposure = self.server.stats().operations.exposure;
        drop(self.client);
        self.server.stop_blocking(Duration::from_secs(1));
        let mut text = format!("{table}{more}");
        let _ = writeln!(
            text,
            "Server memory that clients could reach: at most {} bytes at a time, {:.0} byte-seconds in all.\n\
             The other client {}.\n",
            exposure.peak_bytes,
            exposure.byte_seconds(),
            if intact { "read what it wrote, all the time" } else { "READ OTHER DATA THAN IT WROTE" },
        );
        Ok((text, harm || !intact))
    }

    /// A client that has read the secret and not acknowledged it yet, and where the server exposes it.
    fn reading(&self, private: &[u8]) -> io::Result<(Files, Source)> {
        let mut victim = Files::new(Peer::connect(self.addr, private)?);
        let root = victim.mount("/x")?;
        let file = victim.lookup(&root, "secret")?;
        let source = victim.read(&file, 0, 64 << 10)?.ok_or(io::ErrorKind::Unsupported)?;
        Ok((victim, source))
    }

    /// The attacker opens a file of its own, and guesses from its tag.
    fn around_its_own(&self, private: &[u8], tries: u64) -> io::Result<(Tries, Option<Vec<u8>>)> {
        let own = attack::own_tag(self.addr, private, "/x", "public")?;
        attack::guess_near(self.addr, private, own.tag, tries)
    }

    /// A client that sends no RDMA_DONE: this one the design cannot refuse, only limit.
    fn hoard(&self, private: &[u8]) -> io::Result<String> {
        let hoard = attack::hoard(self.addr, private, "/x", "secret", 200)?;
        let (replies, bytes) = (hoard.replies, hoard.bytes);
        let held = hoard.wait()?;
        Ok(format!(
            "A client that never sends RDMA_DONE held {bytes} bytes of the server in {replies} replies for {:.1} s; then \
             its connection was ended (limit {DONE_SECONDS} s).\n",
            held.as_secs_f64()
        ))
    }
}

/// Servers of both designs that were made weak on purpose; whether that of the Read-Read design fell to it, as it must,
/// and that of the Read-Write design did not.
fn weakened(tries: u64) -> Result<(String, bool), Failure> {
    let columns = [
        ("a server made WEAK ON PURPOSE", Align::Left),
        ("attack", Align::Left),
        ("tries", Align::Right),
        ("refused", Align::Right),
        ("bytes got", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let mut row = |design: Design, what: &str, t: Tries| {
        let numbers = [t.tried, t.refused, t.bytes].map(|n| n.to_string());
        table.row([design.to_string(), what.to_owned()].into_iter().chain(numbers));
    };
    let scene = Scene::start_weak(Design::ReadRead)?;
    let (victim, _) = scene.reading(READ_READ).map_err(failed)?;
    let (fell, stolen) = scene.around_its_own(READ_READ, tries).map_err(failed)?;
    row(Design::ReadRead, "RDMA Read of the tags around its own", fell);
    drop((victim, scene));
    let scene = Scene::start_weak(Design::ReadWrite)?;
    let (withstood, nothing) = attack::guess_near(scene.addr, READ_WRITE, 0, tries).map_err(failed)?;
    row(Design::ReadWrite, "RDMA Read of the first tags", withstood);
    let theirs = stolen.as_ref().is_some_and(|b| b.iter().all(|b| *b == SECRET));
    let what = if theirs {
        "The attacker opened /x/public alone, and got bytes of /x/secret, which another client was reading."
    } else {
        "THE ATTACKER GOT NOTHING OF ANOTHER CLIENT'S."
    };
    let note = "All connections have one table of tags there, and tags follow one another. No option makes a server so.";
    Ok((format!("{table}{what}\n{note}\n\n"), theirs && nothing.is_none()))
}

/// The client that keeps the rules, reading its file again and again.
struct Reader {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<bool>,
    since: std::cell::Cell<(Instant, u64)>,
}

impl Reader {
    fn start(client: Client) -> io::Result<Self> {
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&bytes), Arc::clone(&stop));
        let read = move || {
            let mut memory = vec![0; LEN];
            let Ok((file, _)) = client.resolve("secret") else { return false };
            while !stopped.load(Ordering::Relaxed) {
                memory.fill(0);
                let Ok(n) = client.read(file, 0, &mut memory) else { return false };
                if n != LEN || memory.iter().any(|b| *b != SECRET) {
                    return false;
                }
                counted.fetch_add(n as u64, Ordering::Relaxed);
            }
            true
        };
        let thread = std::thread::Builder::new().name("honest client".into()).spawn(read)?;
        Ok(Self { bytes, stop, thread, since: std::cell::Cell::new((Instant::now(), 0)) })
    }

    /// Measures from here on.
    fn mark(&self) {
        self.since.set((Instant::now(), self.bytes.load(Ordering::Relaxed)));
    }

    /// Bytes per second since then.
    fn rate(&self) -> f64 {
        let (at, before) = self.since.get();
        (self.bytes.load(Ordering::Relaxed) - before) as f64 / at.elapsed().as_secs_f64()
    }

    /// Whether it read what it wrote until now.
    fn stop(self) -> io::Result<bool> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| io::Error::other("the honest client panicked"))
    }
}
