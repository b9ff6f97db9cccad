//! The cases of a group and their results.

use std::{fmt::Debug, panic::AssertUnwindSafe};

use futures::FutureExt;
use millrace_nfs::v4::{Operation, SequenceOk, Stateid, Status};

use crate::{
    compound::{Call, Op, Results, Session, open, putfh, send, send_for_data, sequence},
    operations::{close, create, mkdir, opened, special, write},
};

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The result that Millrace has.
    pub expected: String,
    /// The result of the server.
    pub got: String,
}

/// The kinds of objects other than files and directories.
pub(crate) const OTHERS: [&str; 5] = ["link", "block", "character", "socket", "fifo"];

/// Names that no object can have, with the status of a request.
pub(crate) fn bad_names() -> [(&'static str, Status, String); 6] {
    [
        ("an empty name", Status::Inval, String::new()),
        (".", Status::BadName, ".".to_owned()),
        ("..", Status::BadName, "..".to_owned()),
        ("a name with a slash", Status::BadChar, "a/b".to_owned()),
        ("a name with a zero byte", Status::BadChar, "a\0b".to_owned()),
        ("a name of 256 bytes", Status::NameTooLong, "n".repeat(256)),
    ]
}

/// The status of an operation on the data of an object that is not a file (RFC 8881 sections 18.3, 18.22, 18.32).
pub(crate) fn not_a_file(kind: &str) -> Status {
    match kind {
        "dir" => Status::IsDir,
        "link" => Status::Symlink,
        _ => Status::WrongType,
    }
}

/// Executes cases. The error is the message of the panic that ended them.
async fn executed(cases: impl Future<Output = ()>) -> Result<(), String> {
    AssertUnwindSafe(cases).catch_unwind().await.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

/// A group of cases in progress.
pub(crate) struct Group<'c, C> {
    name: &'static str,
    pub(crate) c: &'c C,
    /// A session of the client with the name of the group.
    pub(crate) s: Session,
    /// The export.
    pub(crate) root: Vec<u8>,
    /// A directory for the group.
    pub(crate) dir: Vec<u8>,
    rows: Vec<Row>,
}

impl<'c, C: Call> Group<'c, C> {
    /// Creates the session and the directory of a group in an export.
    pub(crate) async fn start(c: &'c C, export: &str, name: &'static str) -> Self {
        let s = Session::new(c, name.as_bytes()).await;
        let root = s.path(c, export).await.unwrap();
        assert_eq!(s.status(c, [putfh(&root), mkdir(name)]).await, Status::Ok, "the directory of {name}");
        let dir = s.path(c, &format!("{export}/{name}")).await.unwrap();
        Self { name, c, s, root, dir, rows: Vec::new() }
    }

    /// Creates an object of each kind, with the name of the kind: those of [`OTHERS`], an empty directory `dir`, and a
    /// `file` of 1,000 bytes, whose handle is returned.
    pub(crate) async fn populate(&self) -> Vec<u8> {
        for (name, what) in special(self.c) {
            assert_eq!(self.send([create(name, what)]).await.status, Status::Ok, "{name}");
        }
        assert_eq!(self.send([mkdir("dir")]).await.status, Status::Ok);
        let (stateid, file) = self.open("file", 3).await;
        let ops = [putfh(&file), write(self.c, stateid, 0, &[7; 1000]), close(stateid)];
        assert_eq!(self.s.status(self.c, ops).await, Status::Ok);
        file
    }

    /// Opens a file of the directory, which is created if it does not exist.
    pub(crate) async fn open(&self, name: &str, access: u32) -> (Stateid, Vec<u8>) {
        opened(self.c, &self.s, &self.dir, open(b"owner", name, access, 0, true)).await.unwrap()
    }

    /// Executes a part of the cases. If a result makes the next cases of the part impossible, they are missing, and the
    /// reason is recorded.
    pub(crate) async fn part(&mut self, name: &str, cases: impl AsyncFnOnce(&mut Self)) {
        if let Err(reason) = executed(cases(self)).await {
            self.record(&format!("all cases of {name}"), "executed", reason);
        }
    }

    pub(crate) fn finish(self) -> Vec<Row> {
        self.rows
    }

    /// Records the result of a case.
    pub(crate) fn record(&mut self, case: &str, expected: impl Debug, got: impl Debug) {
        let case = format!("{}: {case}", self.name);
        self.rows.push(Row { case, expected: format!("{expected:?}"), got: format!("{got:?}") });
    }

    /// Sends operations after SEQUENCE in the directory of the group, and records the status.
    pub(crate) async fn check(&mut self, case: &str, expected: Status, ops: impl IntoIterator<Item = Op>) {
        let ops = std::iter::once(putfh(&self.dir)).chain(ops);
        let got = self.s.status(self.c, ops).await;
        self.record(case, expected, got);
    }

    /// As [`Self::check`], with memory for data that the transport places.
    pub(crate) async fn check_data(
        &mut self,
        case: &str,
        expected: Status,
        ops: impl IntoIterator<Item = Op>,
    ) {
        let all = std::iter::once(sequence(self.s.sequence(false))).chain([putfh(&self.dir)]).chain(ops);
        let got = send_for_data(self.c, &all.collect::<Vec<_>>()).await.status;
        self.record(case, expected, got);
    }

    /// As [`Self::check`], in minor version 1.
    pub(crate) async fn check_minor_1(&mut self, case: &str, expected: Status, on: Op) {
        let ops = [sequence(self.s.sequence(false)), putfh(&self.dir), on];
        let got = send(self.c, 1, &ops).await.status;
        self.record(case, expected, got);
    }

    /// Sends operations after SEQUENCE in the directory of the group. The results of SEQUENCE and PUTFH are skipped.
    pub(crate) async fn send(&self, ops: impl IntoIterator<Item = Op>) -> Results {
        let all = [sequence(self.s.sequence(false)), putfh(&self.dir)].into_iter().chain(ops);
        let results = send(self.c, 2, &all.collect::<Vec<_>>()).await;
        let _: SequenceOk = results.take(Operation::Sequence);
        results.skip(&[Operation::Putfh]);
        results
    }

    /// Records the status of a COMPOUND without SEQUENCE.
    pub(crate) async fn check_alone(&mut self, case: &str, expected: Status, ops: &[Op]) {
        let got = send(self.c, 1, ops).await.status;
        self.record(case, expected, got);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_cases_with_its_message() {
        let ended = |cases: bool| {
            millrace_runtime::tokio_rt::run_shard(executed(async move {
                let status: Result<u32, &str> = if cases { Ok(1) } else { Err("NFS4ERR_IO") };
                assert_eq!(status, Ok(1), "the status");
            }))
        };
        assert_eq!(ended(true).unwrap(), Ok(()));
        let reason = ended(false).unwrap().unwrap_err();
        assert!(reason.contains("the status") && reason.contains("NFS4ERR_IO"), "{reason}");
    }
}
