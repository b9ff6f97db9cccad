//! `millrace-lab security`: a hostile peer against servers of both designs and against a client, with
//! figures.

mod malicious_servers;

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

use millrace_client::{
    Options, Url, Version, handles::blocking::Client, ops::StableHow, rpcrdma::ProtocolRef,
};
use millrace_hostile::{
    Files, Peer, READ_READ, READ_WRITE, Source,
    attack::{self, Tries},
};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
};
use millrace_rdma_iwarp::Iwarp;
use millrace_rdma_providers::ProviderChoice;
use millrace_read_read::{Design, ExposureLimits, ReadRead};
use millrace_server::{Config, Running, Server, ServerError};

use crate::args::SecurityArgs;

const SECRET: u8 = 0x5e;
/// Content of the file that the attacker opens itself.
const PUBLIC: u8 = 0x11;
const LEN: usize = 1 << 20;
/// Duration of the measurement of the honest client without attacks.
const ALONE: Duration = Duration::from_secs(1);
/// Time limit of the Read-Read server for RDMA_DONE.
const DONE_TIMEOUT: Duration = Duration::from_secs(2);

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::new(e.to_string())
}

pub(crate) fn run(args: &SecurityArgs) -> CommandResult {
    let mut harm = false;
    output::write(
        b"A hostile peer on a plain TCP socket, against servers and a client in this process.\n\n",
    )?;
    for (design, private) in [(Design::ReadRead, READ_READ), (Design::ReadWrite, READ_WRITE)] {
        let bed = TestBed::start(design)?;
        let (text, harm_done) = bed.attack(private, args.tries).map_err(failed)?;
        harm |= harm_done;
        output::write(text.as_bytes())?;
    }
    let (text, shown) = attack_weakened(args.tries)?;
    output::write(text.as_bytes())?;
    let (text, harm_done) = malicious_servers::run()?;
    harm |= harm_done;
    output::write(text.as_bytes())?;
    output::line(match (harm, shown) {
        (true, _) => "AN ATTACK SUCCEEDED.",
        (false, false) => {
            "No attack succeeded, but neither did the one on the deliberately weakened server: see above."
        }
        (false, true) => {
            "No attack read or changed a byte without the right to, except on deliberately weakened ends. For the \
             limits of this test see docs/security.md"
        }
    })?;
    Ok(if harm || !shown { Outcome::Failed } else { Outcome::Done })
}

/// The protocol of the servers and of the honest clients.
fn protocol_of(design: Design) -> ProtocolRef {
    match design {
        Design::ReadWrite => design.protocol(),
        Design::ReadRead => {
            let exposure = ExposureLimits { done_timeout: DONE_TIMEOUT, ..ExposureLimits::default() };
            ProtocolRef::new(ReadRead { exposure, ..ReadRead::default() })
        }
    }
}

/// A server and an honest client.
struct TestBed {
    design: Design,
    server: Running,
    addr: SocketAddr,
    client: Client,
}

impl TestBed {
    fn start(design: Design) -> Result<Self, Failure> {
        Self::with(design, Server::start)
    }

    /// Starts a deliberately weakened server whose connections share one table of consecutive tags.
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
            rdma_protocol: protocol_of(design),
            ..Config::default()
        };
        let protocol = config.rdma_protocol.clone();
        let server = start(config).map_err(failed)?;
        let addr =
            server.rdma_addr().ok_or_else(|| Failure::new("the embedded server has no RDMA address"))?;
        let url: Url = format!("nfs://{addr}/x?proto=rdma&provider=iwarp").parse().map_err(failed)?;
        let client =
            Client::connect(&url, Options::default().vers(Some(Version::V3)).rdma_protocol(protocol))
                .map_err(failed)?;
        for (name, fill) in [("secret", SECRET), ("public", PUBLIC)] {
            let file = client.create_file(name, 0o600).map_err(failed)?.handle();
            client.write(file, 0, &vec![fill; LEN], StableHow::FileSync).map_err(failed)?;
        }
        Ok(Self { design, server, addr, client })
    }

    /// Runs all attacks while the client reads its file.
    fn attack(self, private: &[u8], tries: u64) -> io::Result<(String, bool)> {
        let reader = Reader::start(self.client.clone())?;
        std::thread::sleep(ALONE);
        reader.mark(); // End of the warm-up.
        std::thread::sleep(ALONE);
        let alone = reader.rate();
        let mut table = Table::new(&[
            (&format!("{} server", self.design), Align::Left),
            ("tries", Align::Right),
            ("rejected", Align::Right),
            ("bytes obtained", Align::Right),
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
        row("(no attack)", Tries::default(), alone);
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
            let (near, _) = self.around_own_tag(private, tries)?;
            row("RDMA Read of tags near its own", near, reader.rate());
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
            "Server memory exposed to clients: at most {} bytes at a time, {:.0} byte-seconds in total.\n\
             The other client {}.\n",
            exposure.peak_bytes,
            exposure.byte_seconds(),
            if intact { "always read the data that it wrote" } else { "READ OTHER DATA THAN IT WROTE" },
        );
        Ok((text, harm || !intact))
    }

    /// Creates a client that has read the secret without acknowledging it. Returns it and the exposed memory
    /// of the server.
    fn reading(&self, private: &[u8]) -> io::Result<(Files, Source)> {
        let mut victim = Files::new(Peer::connect(self.addr, private)?);
        let root = victim.mount("/x")?;
        let file = victim.lookup(&root, "secret")?;
        let source = victim.read(&file, 0, 64 << 10)?.ok_or(io::ErrorKind::Unsupported)?;
        Ok((victim, source))
    }

    /// Opens a file as the attacker, and guesses tags near the tag obtained.
    fn around_own_tag(&self, private: &[u8], tries: u64) -> io::Result<(Tries, Option<Vec<u8>>)> {
        let own = attack::own_tag(self.addr, private, "/x", "public")?;
        attack::guess_near(self.addr, private, own.tag, tries)
    }

    /// A client that does not send RDMA_DONE, which the design can only limit, not prevent.
    fn hoard(&self, private: &[u8]) -> io::Result<String> {
        let hoard = attack::hoard(self.addr, private, "/x", "secret", 200)?;
        let (replies, bytes) = (hoard.replies, hoard.bytes);
        let held = hoard.wait()?;
        Ok(format!(
            "A client that sends no RDMA_DONE retained {bytes} bytes of the server in {replies} replies for {:.1} s; then \
             its connection was ended (limit {} s).\n",
            held.as_secs_f64(),
            DONE_TIMEOUT.as_secs()
        ))
    }
}

/// Attacks deliberately weakened servers of both designs. Returns the text, and whether the attack succeeded
/// on the Read-Read server and failed on the Read-Write server, as expected.
fn attack_weakened(tries: u64) -> Result<(String, bool), Failure> {
    let columns = [
        ("a server WEAKENED ON PURPOSE", Align::Left),
        ("attack", Align::Left),
        ("tries", Align::Right),
        ("rejected", Align::Right),
        ("bytes obtained", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let mut row = |design: Design, what: &str, t: Tries| {
        let numbers = [t.tried, t.refused, t.bytes].map(|n| n.to_string());
        table.row([design.to_string(), what.to_owned()].into_iter().chain(numbers));
    };
    let bed = TestBed::start_weak(Design::ReadRead)?;
    let (victim, _) = bed.reading(READ_READ).map_err(failed)?;
    let (fell, stolen) = bed.around_own_tag(READ_READ, tries).map_err(failed)?;
    row(Design::ReadRead, "RDMA Read of tags near its own", fell);
    drop((victim, bed));
    let bed = TestBed::start_weak(Design::ReadWrite)?;
    let (withstood, nothing) = attack::guess_near(bed.addr, READ_WRITE, 0, tries).map_err(failed)?;
    row(Design::ReadWrite, "RDMA Read of the first tags", withstood);
    let theirs = stolen.as_ref().is_some_and(|b| b.iter().all(|b| *b == SECRET));
    let what = if theirs {
        "The attacker opened only /x/public, and obtained bytes of /x/secret, which another client was reading."
    } else {
        "THE ATTACKER OBTAINED NO DATA OF ANOTHER CLIENT."
    };
    let note = "All connections of this server share one table of consecutive tags. No option configures a server like this.";
    Ok((format!("{table}{what}\n{note}\n\n"), theirs && nothing.is_none()))
}

/// The honest client, which reads its file repeatedly.
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

    /// Starts a measurement.
    fn mark(&self) {
        self.since.set((Instant::now(), self.bytes.load(Ordering::Relaxed)));
    }

    /// Bytes per second since the start of the measurement.
    fn rate(&self) -> f64 {
        let (at, before) = self.since.get();
        (self.bytes.load(Ordering::Relaxed) - before) as f64 / at.elapsed().as_secs_f64()
    }

    /// Stops the client. Returns whether it always read the data that it wrote.
    fn stop(self) -> io::Result<bool> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| io::Error::other("the honest client panicked"))
    }
}
