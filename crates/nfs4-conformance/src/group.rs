//! The cases of a group and their results.

use std::fmt::Debug;

use millrace_nfs::v4::{Operation, SequenceOk, Status};

use crate::{
    compound::{Call, Op, Results, Session, putfh, send, send_for_data, sequence},
    operations::mkdir,
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
