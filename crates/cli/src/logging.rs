//! Logs, on standard error and, of a process in the background, in the system log.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{Event, Level, Subscriber, callsite::Identifier};
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
    failure::Failure,
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

/// Lines of one kind that may come at once, and how long it takes until one more may.
const BURST: u32 = 100;
const REFILL: Duration = Duration::from_millis(100);

/// Limits how often each place in the program logs, so that a peer cannot fill the disk by what it does. Lines that
/// someone asked for (debug and trace) are not limited.
#[derive(Default)]
struct Limited {
    places: Mutex<HashMap<Identifier, Place>>,
}

/// What one place has logged.
struct Place {
    /// Lines that may come now.
    left: u32,
    refilled: Instant,
    left_out: u64,
}

impl Place {
    fn new(now: Instant) -> Self {
        Self { left: BURST, refilled: now, left_out: 0 }
    }

    /// Whether a line may be written; and how many were not since the last that was.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let periods = now.duration_since(self.refilled).as_millis() / REFILL.as_millis();
        let periods = u32::try_from(periods).unwrap_or(BURST).min(BURST);
        self.left = self.left.saturating_add(periods).min(BURST);
        // What is left of a period counts for the next, unless nobody waited for it.
        self.refilled = if periods < BURST { self.refilled + REFILL * periods } else { now };
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl<S: Subscriber> Layer<S> for Limited {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let taken = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.entry(metadata.callsite()).or_insert_with(|| Place::new(now)).take(now)
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
        let mut place = Place::new(start);
        let written = (0..1000).filter(|_| place.take(start).is_some()).count();
        assert_eq!(written, BURST as usize);
        assert_eq!(place.take(start + REFILL), Some(900));
        assert_eq!(place.take(start + REFILL), None);
        let later = start + REFILL * 10_000;
        assert_eq!(place.take(later), Some(1));
        let written = (0..1000).filter(|_| place.take(later).is_some()).count();
        assert_eq!(written, BURST as usize - 1);
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
        assert!((BURST as usize..250).contains(&of("a peer came")), "{}", of("a peer came"));
        assert_eq!((of("a detail"), of("another thing")), (500, 1));
    }
}
