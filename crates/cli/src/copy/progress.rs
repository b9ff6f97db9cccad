//! What has been copied so far, on a terminal, for whoever watches; and the word to stop.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

use crate::problem::Problem;

/// How one copy gets on, and whether it shall stop.
pub(crate) struct Progress {
    stop: watch::Sender<bool>,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Nothing yet. A bar is drawn only on a terminal, and not when `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) = ProgressStyle::with_template(
                "{bytes} of {total_bytes} [{bar:30}] {bytes_per_sec}, {eta} left  {wide_msg}",
            ) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { stop: watch::Sender::new(false), bar }
    }

    /// `bytes` more were found that are to be copied.
    pub(crate) fn found(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc_length(bytes);
        }
    }

    /// `bytes` more were written.
    pub(crate) fn moved(&self, bytes: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes as u64);
        }
    }

    /// `name` is being copied now.
    pub(crate) fn at(&self, name: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(name.to_owned());
        }
    }

    /// Says `text` without tearing the bar.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Makes every file that is in work stop.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Completes when [`Self::stop`] was called.
    pub(crate) async fn stopped(&self) {
        // Fails only when the sender is gone, which `self` keeps.
        drop(self.stop.subscribe().wait_for(|s| *s).await);
    }

    /// Whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// An error if [`Self::stop`] was called.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        if self.is_stopped() { Err(Problem::new("the copy was stopped")) } else { Ok(()) }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
