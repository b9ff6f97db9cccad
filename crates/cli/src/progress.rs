//! Progress bar of a copy on the terminal.

use std::{
    io::{ErrorKind, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_copy::{Error, Event};

use crate::file_error::FileError;

/// A progress bar on standard error, and a line for each object that could not be copied.
#[derive(Clone)]
pub(crate) struct CopyProgress {
    bar: Option<ProgressBar>,
}

impl CopyProgress {
    /// Shows the bar on a terminal only, and not when `quiet`.
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
        Self { bar }
    }

    /// Shows an event of the copy.
    pub(crate) fn show(&self, event: &Event<'_>) {
        if let Event::Failed { path, error } = event
            && !is_closed_pipe(error)
        {
            self.print(&format!("millrace: {}", FileError::from(*error).of(path)));
        }
        let Some(bar) = &self.bar else { return };
        match event {
            Event::Started { path, bytes } => {
                bar.inc_length(*bytes);
                bar.set_message((*path).to_owned());
            }
            Event::Written { bytes } => bar.inc(*bytes as u64),
            _ => {}
        }
    }

    /// Prints `text` to standard error above the bar.
    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whether the reader of a pipe has closed it, which ends a program without a message.
fn is_closed_pipe(error: &Error) -> bool {
    matches!(error, Error::Local { source, .. } if source.kind() == ErrorKind::BrokenPipe)
}
