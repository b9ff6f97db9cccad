//! `millrace bench servers`.

use std::{fs::File, io::Write as _};

use millrace_bench::servers::{EMBEDDED, Place, Servers, json};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};

use super::warn_of_debug_build;
use crate::{
    args::ServersArgs,
    session::{self, parse},
};

pub(super) fn run(args: &ServersArgs) -> CommandResult {
    warn_of_debug_build();
    let bench = Servers {
        places: places(args)?,
        embedded: args.self_server,
        options: session::options(),
        runs: args.runs.into(),
        size: args.size.0,
        random_ops: args.random_ops,
        items: args.items,
    };
    let cannot = |what: &str, e: std::io::Error| {
        let path = args.plot.as_deref().unwrap_or("".as_ref());
        Failure::new(format!("cannot {what} {}: {e}", path.display()))
    };
    // Before the measurement, which takes minutes.
    let plot = args.plot.as_ref().map(File::create).transpose().map_err(|e| cannot("create", e))?;
    let (mut transports, mut printed) = (Vec::new(), Ok(()));
    let found = bench.run(|server, figure| {
        let transport = figure.provider.as_ref().map_or_else(
            || format!("{server} over {}", figure.proto),
            |p| format!("{server} over {} ({p})", figure.proto),
        );
        if !transports.contains(&transport) {
            transports.push(transport);
        }
        if args.json && printed.is_ok() {
            printed = output::line(&json(server, figure));
        }
        Ok(())
    })?;
    printed?;
    let runs = if args.runs == 1 { "one run".to_owned() } else { format!("medians of {} runs", args.runs) };
    let conditions = format!("{}; {runs}, file of {}", transports.join(", "), args.size.human());
    if let Some(mut plot) = plot {
        plot.write_all(found.svg(&conditions).as_bytes()).map_err(|e| cannot("write", e))?;
    }
    if !args.json {
        output::write(format!("{conditions}.\n\n{}", found.table()).as_bytes())?;
    }
    Ok(Outcome::Done)
}

/// The servers of the command line, whose names differ.
fn places(args: &ServersArgs) -> Result<Vec<Place>, Failure> {
    let mut places: Vec<Place> = Vec::new();
    for text in &args.servers {
        let place = place(text)?;
        let is_taken = args.self_server && place.name == EMBEDDED;
        if is_taken || places.iter().any(|other| other.name == place.name) {
            let name = &place.name;
            return Err(Failure::usage(format!(
                "two servers are called {name}; write NAME={text} with another name"
            )));
        }
        places.push(place);
    }
    Ok(places)
}

/// Parses `[NAME=]URL[,PID]`. Without a name, it is the host with the port.
fn place(text: &str) -> Result<Place, Failure> {
    let (name, rest) = match text.split_once('=') {
        // Another `=` belongs to an option of the URL.
        Some((name, rest)) if !name.contains("://") => (Some(name), rest),
        _ => (None, text),
    };
    let (url, pid) = match rest.rsplit_once(',') {
        Some((url, pid)) if !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit()) => {
            let pid = pid.parse().map_err(|_| Failure::usage(format!("{pid} is not the ID of a process")))?;
            (url, Some(pid))
        }
        _ => (rest, None),
    };
    let url = parse(url)?;
    let address = || url.port.map_or_else(|| url.host.clone(), |port| format!("{}:{port}", url.host));
    Ok(Place { name: name.map_or_else(address, str::to_owned), pid, url })
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn names_and_processes_are_apart_from_urls() {
        let parsed = |text: &str| {
            let place = place(text).unwrap();
            (place.name, place.url.to_string(), place.pid)
        };
        let url = "nfs://h:2049/a?proto=tcp";
        assert_eq!(parsed(&format!("one={url},4711")), ("one".into(), url.into(), Some(4711)));
        assert_eq!(parsed(url), ("h:2049".into(), url.into(), None));
        assert_eq!(parsed("nfs://h/a,b"), ("h".into(), "nfs://h/a%2Cb".into(), None));
        assert!(place("one=h:/a").is_err());
    }
}
