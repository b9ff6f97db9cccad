//! Progress bar of a copy on the terminal.

use std::{
    io::{ErrorKind, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace_copy::{Error, Event};
use millrace_program::output;

use crate::{
    describe::{printable, shown},
    file_error::FileError,
    session,
};

/// A progress bar on standard error, and a line for each object that could not be copied.
#[derive(Clone)]
pub(crate) struct CopyProgress {
    bar: Option<ProgressBar>,
    /// The words before the paths of copied and removed objects; `None`: they are not printed.
    words: Option<[&'static str; 2]>,
}

impl CopyProgress {
    /// Shows the bar on a terminal only, and not with --quiet or, beside a result, with --json.
    pub(crate) fn new(json: bool) -> Self {
        let bar = (!json && !session::global().quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
            if let Ok(style) = ProgressStyle::with_template(
                "{bytes} of {total_bytes} [{bar:30}] {bytes_per_sec}, {eta} left  {wide_msg}",
            ) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, words: None }
    }

    /// Prints a line with `words` on standard output for each object that is copied or removed.
    pub(crate) fn with_paths(self, words: [&'static str; 2]) -> Self {
        Self { words: Some(words), ..self }
    }

    /// Shows an event of the copy.
    pub(crate) fn show(&self, event: &Event<'_>) {
        if let Event::Failed { path, error } = event
            && !is_closed_pipe(error)
        {
            let message = FileError::from(*error).of(path);
            self.print(&format!("millrace: {}", printable(message.as_bytes())));
        }
        match (event, self.words) {
            (Event::Copied { path }, Some([word, _])) | (Event::Deleted { path }, Some([_, word])) => {
                self.print_path(word, path);
            }
            _ => {}
        }
        let Some(bar) = &self.bar else { return };
        match event {
            Event::Started { path, bytes } => {
                bar.inc_length(*bytes);
                bar.set_message(printable(path.as_bytes()));
            }
            Event::Written { bytes } => bar.inc(*bytes as u64),
            _ => {}
        }
    }

    /// Prints a path to standard output. A closed pipe does not end the copy.
    fn print_path(&self, word: &str, path: &str) {
        let line = [word.as_bytes(), b" ", &shown(path.as_bytes()), b"\n"].concat();
        let print = || drop(output::write(&line));
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
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
