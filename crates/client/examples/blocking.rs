//! The blocking API with several threads that share one client: writes a file, reads it back, and lists the
//! directory.
//!
//! ```sh
//! millrace serve --export /data=memory:1GiB                 # in another terminal
//! cargo run --example blocking -- nfs://127.0.0.1/data
//! ```

use std::{process::ExitCode, thread};

use millrace_client::{
    Options,
    handles::blocking::{Client, File},
};

/// Number of threads; each writes one line.
const THREADS: u64 = 4;

fn main() -> ExitCode {
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("usage: blocking nfs://HOST/EXPORT/DIRECTORY");
        return ExitCode::from(2);
    };
    match run(&url) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("blocking: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(url: &str) -> Result<(), millrace_client::Error> {
    let client = Client::connect(&url.parse()?, Options::default())?;
    let dir = client.path_in_export();
    let file = client.create_file([dir, b"/lines"].concat(), 0o644)?;
    thread::scope(|threads| {
        let writers: Vec<_> = (0..THREADS)
            .map(|n| (n, file.clone()))
            .map(|(n, f)| threads.spawn(move || line(n, &f)))
            .collect();
        // A thread that panicked has printed the reason.
        writers.into_iter().try_for_each(|w| w.join().unwrap_or(Err(millrace_client::Error::Closed)))
    })?;
    // Before this call a crash of the server may lose the data, which the client then rewrites.
    file.commit()?;

    let mut text = vec![0; file.attributes()?.size as usize];
    let len = file.read(0, &mut text)?;
    print!("{}", String::from_utf8_lossy(&text[..len]));

    let (handle, _) = client.resolve(dir)?;
    for entry in client.readdir(handle)?.iter().filter(|e| !e.is_dot()) {
        println!("{}", entry.name_lossy());
    }
    Ok(())
}

/// Writes the line of thread `n` at its offset.
fn line(n: u64, file: &File) -> Result<(), millrace_client::Error> {
    let line = format!("thread {n:02}\n");
    file.write(n * line.len() as u64, line.as_bytes())
}
