//! Executes the conformance cases on an NFSv4 server, and prints the results that differ from those of Millrace.
//!
//! ```sh
//! cargo run -p millrace-nfs4-conformance --example conformance -- ADDRESS:PORT EXPORT [GROUP]...
//! ```
//!
//! The export must be writable for the superuser (`squash=none` of Millrace; `no_root_squash` and `insecure` of the
//! Linux kernel's server, whose root export has `fsid=0` and the path `/`), and contain no directory with the name of
//! a group.

use std::{env::args, net::SocketAddr, process::ExitCode};

use millrace_nfs4_conformance::{Connection, GROUPS, run};
use millrace_runtime::tokio_rt::run_shard;

fn main() -> ExitCode {
    let mut args = args().skip(1);
    let (Some(Ok(server)), Some(export)) = (args.next().map(|a| a.parse::<SocketAddr>()), args.next()) else {
        eprintln!("usage: conformance ADDRESS:PORT EXPORT [GROUP]...");
        return ExitCode::FAILURE;
    };
    let wanted: Vec<String> = args.collect();
    let executed = run_shard(async {
        let connection = Connection::connect(server).await.map_err(|e| e.to_string())?;
        let (mut cases, mut differences) = (0, 0);
        for group in GROUPS.into_iter().filter(|g| wanted.is_empty() || wanted.iter().any(|w| w == g)) {
            for row in run(&connection, &export, group).await {
                cases += 1;
                if row.got != row.expected {
                    differences += 1;
                    println!("{}: {} instead of {}", row.case, row.got, row.expected);
                }
            }
        }
        println!("{differences} of {cases} cases differ");
        Ok::<_, String>(())
    });
    match executed {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("cannot connect to {server}: {error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("cannot start an executor: {error}");
            ExitCode::FAILURE
        }
    }
}
