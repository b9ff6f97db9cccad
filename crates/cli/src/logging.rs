//! Logs, on standard error and, of a process in the background, in the system log.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use millrace_cli_common::failure::Failure;
use tracing::{
    Event, Level, Subscriber,
    callsite::Identifier,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{self, MakeWriter},
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    args::{Command, LogFormat},
    background,
    system_log::{self, Journal, SystemLog},
};

/// A layer that writes lines for people to a `W`.
type TextLayer<S, W> = fmt::Layer<S, fmt::format::DefaultFields, fmt::format::Format, W>;
type BoxedLayer<S> = Box<dyn Layer<S> + Send + Sync>;

/// Starts logging with `filter`, or with what suits `command`: servers and mounts tell what they do, the others only warn.
pub(crate) fn start(filter: Option<&str>, format: LogFormat, command: &Command) -> Result<(), Failure> {
    let default = match command {
        Command::Serve(_) => "info",
        // The FUSE library warns of each unmount that it finds done already.
        Command::Mount(_) => "info,fuser=error",
        _ => "error",
    };
    let filter = EnvFilter::try_new(filter.filter(|f| !f.trim().is_empty()).unwrap_or(default))
        .map_err(|e| Failure::usage(format!("--log: {e}; write a level such as debug, or module=level")))?;
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = if system_log::stderr_is_journal() {
        lines(format, Journal, known_there)
    } else {
        lines(format, std::io::stderr, |text| text.with_ansi(colours).boxed())
    };
    let system = background::is_here().then(SystemLog::find).and_then(Result::ok);
    let system = system.map(|log| self::lines(format, log, known_there));
    tracing_subscriber::registry().with(filter).with(Limited::default()).with(lines).with(system).init();
    Ok(())
}

/// Lines for a log that adds the time, and is told the level.
fn known_there<S, W>(text: TextLayer<S, W>) -> BoxedLayer<S>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    text.with_ansi(false).with_level(false).without_time().boxed()
}

/// A layer that writes lines of `format` to `to`; those for people are as `text` has them.
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

/// How many lines may come at once, and how long it takes until one more may.
#[derive(Clone, Copy)]
struct Rate {
    burst: u32,
    refill: Duration,
}

/// Of one place in the program.
const PLACE: Rate = Rate { burst: 100, refill: Duration::from_millis(100) };
/// Of one place about one client, so that a few clients do not use up what the place may log.
const CLIENT: Rate = Rate { burst: 25, refill: Duration::from_millis(500) };
/// Clients of which a place keeps account.
const CLIENTS: usize = 1024;

/// Limits how often each place in the program logs, in all and about each client, so that a peer can neither fill the
/// disk nor hide what is logged about others. Lines that someone asked for (debug and trace) are not limited.
#[derive(Default)]
struct Limited {
    places: Mutex<HashMap<Identifier, Place>>,
}

/// What one place has logged.
struct Place {
    all: Bucket,
    clients: HashMap<IpAddr, Bucket>,
}

impl Place {
    fn new(now: Instant) -> Self {
        Self { all: Bucket::new(PLACE, now), clients: HashMap::new() }
    }

    /// Whether a line may be written, about `client` if it is about one; and how many were left out before it.
    fn take(&mut self, client: Option<IpAddr>, now: Instant) -> Option<u64> {
        let mut left_out = 0;
        if let Some(client) = client {
            if self.clients.len() >= CLIENTS && !self.clients.contains_key(&client) {
                self.clients.retain(|_, b| !b.is_full(now));
            }
            if self.clients.len() < CLIENTS || self.clients.contains_key(&client) {
                let bucket = self.clients.entry(client).or_insert_with(|| Bucket::new(CLIENT, now));
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
}

/// A token bucket.
struct Bucket {
    rate: Rate,
    /// Lines that may come now.
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
        // What is left of a period counts for the next, unless no line waited for it.
        self.refilled = if periods < burst { self.refilled + refill * periods } else { now };
    }

    /// Whether it is as a new one.
    fn is_full(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.left == self.rate.burst && self.left_out == 0
    }

    /// Whether a line may be written; and how many were not since the last that was.
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

/// Finds the client that an event is about: the field `peer`, an address with or without a port.
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

/// One client has one IPv4 address, or a network of 2^64 IPv6 addresses (RFC 4291, section 2.5.4).
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut client = FindClient::default();
        event.record(&mut client);
        let now = Instant::now();
        let taken = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.entry(metadata.callsite()).or_insert_with(|| Place::new(now)).take(client.0, now)
        };
        if let Some(left_out @ 1..) = taken {
            let place = metadata.module_path().unwrap_or_default();
            tracing::warn!(left_out, place, "lines like the next one were left out: there were too many");
        }
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_place_that_logs_too_much_is_cut_off_and_comes_back() {
        let start = Instant::now();
        let (mut place, burst) = (Place::new(start), PLACE.burst as usize);
        let written = (0..1000).filter(|_| place.take(None, start).is_some()).count();
        assert_eq!(written, burst);
        assert_eq!(place.take(None, start + PLACE.refill), Some(900));
        assert_eq!(place.take(None, start + PLACE.refill), None);
        let later = start + PLACE.refill * 10_000;
        assert_eq!(place.take(None, later), Some(1));
        let written = (0..1000).filter(|_| place.take(None, later).is_some()).count();
        assert_eq!(written, burst - 1);
    }

    #[test]
    fn the_clients_of_which_account_is_kept_are_bounded() {
        let start = Instant::now();
        let mut place = Place::new(start);
        for i in 0..3 * CLIENTS as u32 {
            place.take(Some(IpAddr::from(i.to_be_bytes())), start);
            assert!(place.clients.len() <= CLIENTS);
        }
        let later = start + CLIENT.refill * 2;
        assert!(place.take(Some(IpAddr::from([10, 0, 0, 1])), later).is_some());
        assert_eq!(place.clients.len(), 1, "the others have a full allowance again");
    }

    #[test]
    fn a_client_does_not_hide_what_is_logged_about_another() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = fmt::layer().with_writer(move || to.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(Limited::default()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            // One place for all of them.
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
    fn each_place_has_a_limit_of_its_own() {
        let lines = Lines::default();
        let to = lines.clone();
        let layer = fmt::layer().with_writer(move || to.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(Limited::default()).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            for i in 0..500 {
                tracing::info!(i, "a peer came");
                tracing::debug!(i, "a detail");
            }
            tracing::info!("another thing");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let of = |what: &str| text.lines().filter(|l| l.contains(what)).count();
        // A machine that stands still for 100 ms lets some more through.
        assert!((PLACE.burst as usize..250).contains(&of("a peer came")), "{}", of("a peer came"));
        assert_eq!((of("a detail"), of("another thing")), (500, 1));
    }
}
