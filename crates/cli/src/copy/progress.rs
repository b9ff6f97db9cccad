//! What has been copied so far, for the summary and, on a terminal, for whoever watches.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::problem::Problem;

/// Running totals of one copy.
pub(crate) struct Progress {
    bytes: AtomicU64,
    stopped: AtomicBool,
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
        Self { bytes: AtomicU64::new(0), stopped: AtomicBool::new(false), bar }
    }

    /// `bytes` more were found that are to be copied.
    pub(crate) fn found(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc_length(bytes);
        }
    }

    /// `bytes` more were written.
    pub(crate) fn moved(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
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

    /// Bytes written so far; records that had to be sent again count again.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Makes every file that is in work stop at its next record.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
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
