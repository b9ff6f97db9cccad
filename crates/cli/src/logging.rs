//! Logging to standard error and, in a background process, to the system log.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::ColorChoice;
use millrace_daemon::RecentWarnings;
use millrace_program::{coloured_log, failure::Failure};
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::LevelFilter,
    fmt::{self, MakeWriter},
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    args::{BlkArgs, BlkCommand, Command, Global, LogFormat},
    background,
    system_log::{self, Journal, SystemLog},
};

/// A layer that writes plain text to a `W`.
type TextLayer<S, W> = fmt::Layer<S, fmt::format::DefaultFields, fmt::format::Format, W>;
type BoxedLayer<S> = Box<dyn Layer<S> + Send + Sync>;

/// Starts logging with the stated filter, or with the default level of `command`: info for servers and mounts, warn for
/// umount, which may find that data was lost, and error for others. A mount in the background then prints warnings only, as mount.nfs: its system log has the rest.
pub(crate) fn start(global: &Global, command: &Command) -> Result<(), Failure> {
    let filter = global.log.as_deref().filter(|f| !f.trim().is_empty());
    let format = global.log_format;
    let (default, daemon) = match command {
        Command::Serve(_) => ("info", false),
        Command::Mount(args) => ("info", args.daemon),
        Command::Blk(BlkArgs { command: BlkCommand::Attach(args) }) => ("info", args.daemon),
        Command::Umount(_) => ("warn", false),
        _ => ("error", false),
    };
    // mount(8) passes its own -v to a mount in the background.
    let default = if daemon { default } else { level(default, global) };
    let printed = if daemon && filter.is_none() { LevelFilter::WARN } else { LevelFilter::TRACE };
    let filter = EnvFilter::try_new(filter.unwrap_or(default))
        .map_err(|e| Failure::usage(format!("--log: {e}; write a level such as debug, or module=level")))?;
    let colours = match global.color {
        ColorChoice::Auto => coloured_log(),
        ColorChoice::Always => true,
        ColorChoice::Never => false,
    };
    let lines = if system_log::stderr_is_journal() {
        lines(format, Journal, without_time_and_level)
    } else {
        lines(format, std::io::stderr, |text| text.with_ansi(colours).boxed())
    };
    let system = background::is_background_process().then(SystemLog::find).and_then(Result::ok);
    let system = system.map(|log| self::lines(format, log, without_time_and_level));
    let lines = lines.with_filter(printed);
    // Without use in a process that serves no status page.
    let registry = tracing_subscriber::registry().with(filter).with(RateLimit::default());
    registry.with(RecentWarnings).with(lines).with(system).init();
    Ok(())
}

/// The level for -v and -q, where the command has `default`.
fn level(default: &'static str, global: &Global) -> &'static str {
    const MORE: [&str; 3] = ["info", "debug", "trace"];
    match (global.quiet, usize::from(global.verbose)) {
        (true, _) => "error",
        (false, 0) => default,
        (false, times) => {
            let from = MORE.iter().position(|level| *level == default).map_or(0, |at| at + 1);
            MORE[(from + times - 1).min(MORE.len() - 1)]
        }
    }
}

/// Format for logs that record time and level themselves.
fn without_time_and_level<S, W>(text: TextLayer<S, W>) -> BoxedLayer<S>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    text.with_ansi(false).with_level(false).without_time().boxed()
}

/// Returns a layer that writes to `to` in `format`; `text` configures the plain text.
fn lines<S, W>(format: LogFormat, to: W, text: impl FnOnce(TextLayer<S, W>) -> BoxedLayer<S>) -> BoxedLayer<S>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(to);
    match format {
        LogFormat::Text => text(lines),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

/// Limit of a token bucket: lines in a burst, and the time after which one more line is allowed.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    refill: Duration,
}

/// Limit of one call site.
const CALL_SITE: Rate = Rate { burst: 100, refill: Duration::from_millis(100) };
/// Limit of one call site for one client, so that a few clients cannot exhaust the limit of the call site.
const PER_CLIENT: Rate = Rate { burst: 25, refill: Duration::from_millis(500) };
/// Maximum number of clients with a bucket, per call site.
const MAX_CLIENTS: usize = 1024;

/// Limits the log rate of each call site, in total and per client, so that a peer can neither fill the disk
/// nor suppress messages about other clients. Levels debug and trace are not limited.
#[derive(Default)]
struct RateLimit {
    call_sites: Mutex<HashMap<Identifier, CallSite>>,
}

/// Buckets of one call site.
struct CallSite {
    all: Bucket,
    clients: HashMap<IpAddr, Bucket>,
}

impl CallSite {
    fn new(now: Instant) -> Self {
        Self { all: Bucket::new(CALL_SITE, now), clients: HashMap::new() }
    }

    /// Takes a token for a line, which may be about `client`. Returns the number of lines suppressed before
    /// it, or `None` if this line is suppressed.
    fn take(&mut self, client: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut left_out = 0;
        if let Some(client) = client {
            if self.clients.len() >= MAX_CLIENTS && !self.clients.contains_key(&client) {
                self.evict_quiet_clients(now);
            }
            if self.clients.len() < MAX_CLIENTS || self.clients.contains_key(&client) {
                let bucket = self.clients.entry(client).or_insert_with(|| Bucket::new(PER_CLIENT, now));
                left_out += bucket.take(now)?;
            }
        }
        match self.all.take(now) {
            Some(before) => Some(left_out + before),
            None => {
                self.all.left_out += left_out;
                None
            }
        }
    }

    /// Removes the buckets that have all their tokens again. The lines suppressed since are reported before the
    /// next line of the call site.
    fn evict_quiet_clients(&mut self, now: Instant) {
        let Self { all, clients } = self;
        clients.retain(|_, bucket| {
            let quiet = bucket.is_full(now);
            if quiet {
                all.left_out += bucket.left_out;
            }
            !quiet
        });
    }
}

/// A token bucket.
struct Bucket {
    rate: Rate,
    /// Available tokens.
    left: u32,
    refilled: Instant,
    left_out: u64,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, left: rate.burst, refilled: now, left_out: 0 }
    }

    fn refill(&mut self, now: Instant) {
        let Rate { burst, refill } = self.rate;
        let periods = now.duration_since(self.refilled).as_millis() / refill.as_millis();
        let periods = u32::try_from(periods).unwrap_or(burst).min(burst);
        self.left = self.left.saturating_add(periods).min(burst);
        // The rest of a period counts towards the next, unless the bucket is full.
        self.refilled = if periods < burst { self.refilled + refill * periods } else { now };
    }

    /// Whether the bucket has all its tokens.
    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left == self.rate.burst
    }

    /// Takes a token. Returns the number of lines suppressed since the last token, or `None` without a token.
    fn take(&mut self, now: Instant) -> Option<u64> {
        self.refill(now);
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Extracts the client of an event: its field `peer`, an address with or without a port.
#[derive(Default)]
struct FindClient(Option<IpAddr>);

impl Visit for FindClient {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "peer" {
            let text = format!("{value:?}");
            let address = text.parse::<SocketAddr>().map(|a| a.ip()).or_else(|_| text.parse());
            self.0 = address.ok().map(client_of);
        }
    }
}

/// Identifies a client by its IPv4 address, or by its IPv6 network of 64 bits (RFC 4291 section 2.5.4).
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut client = FindClient::default();
        event.record(&mut client);
        let now = Instant::now();
        let taken = {
            let mut call_sites = self.call_sites.lock().unwrap_or_else(PoisonError::into_inner);
            call_sites.entry(metadata.callsite()).or_insert_with(|| CallSite::new(now)).take(client.0, now)
        };
        if let Some(left_out @ 1..) = taken {
            let place = metadata.module_path().unwrap_or_default();
            tracing::warn!(left_out, place, "suppressed lines like the next one: rate limit exceeded");
        }
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn flags_change_the_level_of_a_command() {
        let level = |default, verbose, quiet| level(default, &Global { verbose, quiet, ..Global::default() });
        let of = |default| [0, 1, 2, 3, 255].map(|verbose| level(default, verbose, false));
        assert_eq!(of("error"), ["error", "info", "debug", "trace", "trace"]);
        assert_eq!(of("warn"), ["warn", "info", "debug", "trace", "trace"]);
        assert_eq!(of("info"), ["info", "debug", "trace", "trace", "trace"]);
        assert_eq!(level("info", 0, true), "error");
    }

    #[test]
    fn a_call_site_above_its_rate_is_suppressed_until_its_tokens_return() {
        let start = Instant::now();
        let (mut site, burst) = (CallSite::new(start), CALL_SITE.burst as usize);
        let written = (0..1000).filter(|_| site.take(None, start).is_some()).count();
        assert_eq!(written, burst);
        assert_eq!(site.take(None, start + CALL_SITE.refill), Some(900));
        assert_eq!(site.take(None, start + CALL_SITE.refill), None);
        let later = start + CALL_SITE.refill * 10_000;
        assert_eq!(site.take(None, later), Some(1));
        let written = (0..1000).filter(|_| site.take(None, later).is_some()).count();
        assert_eq!(written, burst - 1);
    }

    #[test]
    fn the_number_of_client_buckets_is_bounded() {
        let start = Instant::now();
        let mut site = CallSite::new(start);
        for i in 0..3 * MAX_CLIENTS as u32 {
            site.take(Some(IpAddr::from(i.to_be_bytes())), start);
            assert!(site.clients.len() <= MAX_CLIENTS);
        }
        let later = start + PER_CLIENT.refill * 2;
        assert!(site.take(Some(IpAddr::from([10, 0, 0, 1])), later).is_some());
        assert_eq!(site.clients.len(), 1, "the buckets of the others are full again");
    }

    #[test]
    fn quiet_clients_are_evicted_and_their_suppressed_lines_reported() {
        let start = Instant::now();
        let mut site = CallSite::new(start);
        let client = |n: u32| Some(IpAddr::from(n.to_be_bytes()));
        // Each client causes one line more than its burst permits.
        let (clients, lines) = (MAX_CLIENTS as u32, PER_CLIENT.burst + 1);
        let take = |n| (0..lines).filter_map(|_| site.take(client(n), start)).count();
        let written: usize = (0..clients).map(take).sum();
        assert_eq!(site.clients.len(), MAX_CLIENTS);
        let later = start + PER_CLIENT.refill * PER_CLIENT.burst;
        let suppressed = u64::from(clients * lines) - written as u64;
        assert_eq!(site.take(client(clients), later), Some(suppressed));
        assert_eq!(site.clients.len(), 1);
        assert_eq!(site.take(client(0), later), Some(0));
    }

    #[test]
    fn a_client_does_not_suppress_messages_about_another() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = fmt::layer().with_writer(move || to.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(RateLimit::default()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            // One call site for all messages.
            let refuse = |peer: &str| tracing::warn!(%peer, "mount refused");
            for port in 1..=500 {
                refuse(&format!("10.0.0.1:{port}"));
                refuse(&format!("[::ffff:10.0.0.1]:{port}"));
                refuse(&format!("[2001:db8::{port:x}]:700"));
            }
            refuse("10.0.0.2:700");
            refuse("2001:db8:0:1::1");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        for peer in ["peer=10.0.0.2:700", "peer=2001:db8:0:1::1"] {
            assert_eq!(text.matches(peer).count(), 1, "{text}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_call_site_has_its_own_limit() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = fmt::layer().with_writer(move || to.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(RateLimit::default()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            for i in 0..500 {
                tracing::info!(i, "a peer came");
                tracing::debug!(i, "a detail");
            }
            tracing::info!("another thing");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let of = |what: &str| text.lines().filter(|l| l.contains(what)).count();
        // A pause of 100 ms refills one token.
        assert!((CALL_SITE.burst as usize..250).contains(&of("a peer came")), "{}", of("a peer came"));
        assert_eq!((of("a detail"), of("another thing")), (500, 1));
    }
}
