//! Standard output. A closed pipe (`| head`) ends a command without a message.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes `bytes` to standard output.
///
/// # Errors
/// When standard output cannot be written; the failure is silent on a broken pipe.
pub fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|e| failed(&e))
}

/// Writes `text` and a line end to standard output.
///
/// # Errors
/// As [`write()`].
pub fn line(text: &str) -> Result<(), Failure> {
    write(format!("{text}\n").as_bytes())
}

/// The failure of a command whose write to standard output failed.
pub fn failed(e: &io::Error) -> Failure {
    if e.kind() == io::ErrorKind::BrokenPipe {
        Failure::silent()
    } else {
        Failure::new(format!("cannot write to standard output: {e}"))
    }
}
