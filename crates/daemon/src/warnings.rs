//! The last warnings and errors of this process, for the status page.

use std::{
    collections::VecDeque,
    fmt::{self, Write},
    time::Instant,
};

use millrace_runtime::sync::Mutex;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// Number of warnings that are kept.
const KEPT: usize = 20;
/// Maximum length of a warning in bytes.
const MAX_TEXT: usize = 512;

static LAST: Mutex<VecDeque<Warning>> = Mutex::new(VecDeque::new());

/// A warning or error in the log.
#[derive(Debug, Clone)]
pub(crate) struct Warning {
    pub(crate) at: Instant,
    pub(crate) is_error: bool,
    pub(crate) text: String,
}

/// The warnings, the latest first.
pub(crate) fn last() -> Vec<Warning> {
    LAST.lock().iter().rev().cloned().collect()
}

/// A layer of the log that keeps the last warnings and errors of this process for the status page of its server.
#[derive(Debug, Default, Clone, Copy)]
pub struct RecentWarnings;

impl<S: Subscriber> Layer<S> for RecentWarnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::WARN {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let warning = Warning {
            at: Instant::now(),
            is_error: level == Level::ERROR,
            text: text.message + &text.fields,
        };
        let mut last = LAST.lock();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(warning);
    }
}

/// An event as text of limited length.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A text that is too long ends there.
        let _ = match field.name() {
            "message" => write!(Limited(&mut self.message), "{value:?}"),
            name => write!(Limited(&mut self.fields), " {name}={value:?}"),
        };
    }
}

/// Writes at most [`MAX_TEXT`] bytes.
struct Limited<'t>(&'t mut String);

impl Write for Limited<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MAX_TEXT.saturating_sub(self.0.len());
        let end = text.floor_char_boundary(left);
        self.0.push_str(text.get(..end).unwrap_or_default());
        if end < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn the_last_warnings_are_kept_with_their_fields() {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(RecentWarnings), || {
            tracing::info!("not kept");
            for n in 0..3 * KEPT {
                tracing::warn!(n, peer = %"10.0.0.1", "lost");
            }
            tracing::error!("{}", "ü".repeat(MAX_TEXT));
        });
        let kept = last();
        assert_eq!(kept.len(), KEPT);
        assert!(kept[0].is_error && kept[0].text == "ü".repeat(MAX_TEXT / 2), "{:?}", kept[0]);
        assert!(!kept[1].is_error && kept[1].text == "lost n=59 peer=10.0.0.1", "{:?}", kept[1]);
    }
}
