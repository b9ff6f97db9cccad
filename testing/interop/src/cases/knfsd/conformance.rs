//! The conformance cases of NFSv4 on the Linux kernel's server and on Millrace.

use std::net::SocketAddr;

use anyhow::{Context, Result, anyhow, ensure};
use millrace_nfs4_conformance::{Connection, GROUPS, Row, run};
use millrace_runtime::tokio_rt::run_shard;

use super::{Case, START_V4_ONLY};
use crate::{
    guest::GuestOptions,
    lab::Lab,
    network::HOST,
    server::{ServerOptions, TCP_PORT},
};

/// Answers of the kernel's server that differ from those of Millrace: a part of the case, and the answer.
/// `docs/dev/nfs4-conformance.md` has the reasons.
const DIFFERENCES: [(&str, &str); 48] = [
    ("protocol: RENEW of minor version 0", "StaleClientid"),
    ("protocol: RESTOREFH without saved file handle", "RestoreFh"),
    ("values than its mask", "NotSame"),
    ("RECLAIM_COMPLETE with a boolean of 7", "Ok"),
    ("sessions: the principal confirms its client", "Err(ClidInuse)"),
    ("sessions: another principal adds a session", "Err(ClidInuse)"),
    ("sessions: fewer slots than 500 requested ones", "Ok(false)"),
    ("BIND_CONN_TO_SESSION Back", "Err(Inval)"),
    ("BIND_CONN_TO_SESSION BackOrBoth", "Ok(7)"),
    ("BIND_CONN_TO_SESSION in no direction", "Inval"),
    ("BIND_CONN_TO_SESSION after SEQUENCE", "Inval"),
    ("PUTFH of no bytes", "NoFileHandle"),
    ("GETATTR of a removed file", "Ok"),
    ("a name with a slash", "BadName"),
    ("a name with a zero byte", "Access"),
    ("LOOKUPP of an export", "NoEnt"),
    ("CREATE in a link", "Symlink"),
    ("REMOVE in a link", "Symlink"),
    ("a directory that is a link", "Symlink"),
    ("LINK in a link", "Symlink"),
    ("READLINK of a dir", "Inval"),
    ("the unsupported attribute 84", "BadStateid"),
    ("the unsupported attribute 85", "BadStateid"),
    ("the unsupported attribute 200", "BadXdr"),
    ("a mode with the bits of a type", "Ok"),
    ("attributes: VERIFY of a", "NotSame"),
    ("attributes: NVERIFY of a", "Ok"),
    ("VERIFY of the undefined attribute 200", "NotSame"),
    ("VERIFY of the undefined attribute 200", "Ok"),
    ("OPEN without access", "BadXdr"),
    ("OPEN with access 4", "BadXdr"),
    ("OPEN with deny", "BadXdr"),
    ("OPEN_DOWNGRADE without access", "BadXdr"),
    ("OPEN_DOWNGRADE to access 4", "BadXdr"),
    ("OPEN_DOWNGRADE to deny 4", "BadXdr"),
    ("a READ at the end of a COMPOUND", "(false, true)"),
    ("the current stateid: OPEN, LOCK, WRITE and LOCKU", "BadStateid"),
    ("IO_ADVISE", "NotSupp"),
    ("beyond the end", "Ok"),
    ("ranges: COPY to an open for reading", "OpenMode"),
    ("LISTXATTRS with maxcount 1", "Inval"),
    ("of an empty name", "BadXdr"),
    ("SETXATTR with an undefined option", "Inval"),
    ("delegations: OPEN for writing with WANT_READ_DELEG", "\"write\""),
    ("delegations: OPEN for both with WANT_READ_DELEG", "\"write\""),
    ("delegations: OPEN for reading with WANT_WRITE_DELEG", "\"read\""),
    ("with WANT_CANCEL", "\"not wanted\""),
    ("delegations: OPEN of a file that another client has open for writing", "\"resource\""),
];

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("knfsd/tcp/nfs4-conformance", conformance)]
}

/// Executes groups of cases on a server.
fn execute(server: &str, export: &str, groups: &[&'static str]) -> Result<Vec<Row>> {
    let server: SocketAddr = server.parse().context("the address of a server")?;
    let mut rows = Vec::new();
    for group in groups {
        rows.extend(run_shard(async {
            let connection = Connection::connect(server).await.map_err(|e| anyhow!("{server}: {e}"))?;
            Ok::<_, anyhow::Error>(run(&connection, export, group).await)
        })??);
    }
    Ok(rows)
}

/// Both servers execute these cases, and answer the same, except for [`DIFFERENCES`].
fn conformance(lab: &mut Lab) -> Result<()> {
    lab.expect_log("NFSD: ");
    lab.expect_log("nfsd: nfsv4 idmapping failing");
    let mut guest = lab.guest(&GuestOptions { memory: 1024, ..GuestOptions::default() })?;
    guest.must(START_V4_ONLY)?;
    // Without leases the kernel grants no delegations, which would change the answers of the other groups.
    guest.must("echo 0 > /proc/sys/fs/leases-enable")?;
    let options = ServerOptions::default().memory("/x", "256MiB");
    let options = options.memory_with("/delegated", "256MiB", "delegations = \"write\"");
    let mut millrace = lab.server(&options)?;
    let (theirs, ours) = (format!("{}:{TCP_PORT}", guest.address()), format!("{HOST}:{TCP_PORT}"));
    let (last, first): (Vec<_>, Vec<_>) = GROUPS.into_iter().partition(|group| *group == "delegations");
    let mut kernel = execute(&theirs, "/", &first)?;
    guest.must("echo 1 > /proc/sys/fs/leases-enable")?;
    kernel.extend(execute(&theirs, "/", &last)?);
    let ours = [execute(&ours, "/x", &first)?, execute(&ours, "/delegated", &last)?].concat();
    ensure!(!ours.is_empty() && kernel.len() == ours.len(), "{} and {} cases", kernel.len(), ours.len());
    let (mut unexpected, mut differences) = (Vec::new(), 0);
    for (theirs, row) in kernel.iter().zip(&ours) {
        ensure!(theirs.case == row.case, "{} is not {}", theirs.case, row.case);
        println!("{}: kernel {}, Millrace {}", row.case, theirs.got, row.got);
        let known = |(part, answer): &(&str, &str)| row.case.contains(part) && theirs.got == *answer;
        let differs = theirs.got != theirs.expected;
        differences += usize::from(differs);
        if row.got != row.expected || (differs && !DIFFERENCES.iter().any(known)) {
            unexpected.push(format!("{}: kernel {}, Millrace {}", row.case, theirs.got, row.got));
        }
    }
    println!("{differences} of {} answers differ", ours.len());
    ensure!(unexpected.is_empty(), "unexpected answers: {unexpected:#?}");
    // The cases leave files open, which occupy memory until their leases expire.
    millrace.stop("TERM")?;
    lab.finish(vec![guest], &[&millrace])
}
