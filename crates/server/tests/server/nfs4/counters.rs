//! Counters of the operations.

use millrace_nfs::v4::*;
use millrace_server::{ProcedureStats, Server};

use super::compound::*;
use crate::common::{Caller, Proto, config, run};

#[test]
fn operations_are_counted_with_their_failures_and_times() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        run(async {
            let server = Server::start(config(&["/x=memory:8MiB"])).unwrap();
            let c = Caller::connect(&server, proto).await;
            let s = Session::new(&c, b"client").await;
            let root = s.path(&c, "/x").await.unwrap();
            let of = |operation| -> ProcedureStats {
                let stats = server.stats();
                stats.nfs4_operations.iter().find(|(o, _)| *o == operation).unwrap().1
            };
            let counted = |operation| {
                let stats = of(operation);
                (stats.calls, stats.failures, stats.latency.count())
            };
            let measured = [Operation::Lookup, Operation::Getattr, Operation::ExchangeId].map(of);
            let missing = s.status(&c, [putfh(&root), lookup("none"), getattr(&[Attribute::Size])]).await;
            assert_eq!(missing, Status::NoEnt);
            assert_eq!(s.status(&c, [putfh(&root), getattr(&[Attribute::Size])]).await, Status::Ok);
            assert_eq!(s.status(&c, [putfh(b"no handle")]).await, Status::BadHandle);
            let lookups = of(Operation::Lookup);
            assert_eq!(lookups.calls, measured[0].calls + 1);
            assert_eq!((lookups.failures, lookups.latency.count()), (1, lookups.calls));
            let getattrs = of(Operation::Getattr);
            assert_eq!(getattrs.calls, measured[1].calls + 1, "the one after the failure is not executed");
            assert_eq!((getattrs.failures, getattrs.latency.count()), (0, getattrs.calls));
            let (calls, failures, times) = counted(Operation::Putfh);
            assert_eq!((calls >= 3, failures, times), (true, 1, 0), "not measured");
            assert_eq!(counted(Operation::ExchangeId), (measured[2].calls, 0, measured[2].calls));
            let stale =
                send(&c, 2, &[sequence(SequenceArgs { session: SessionId([7; 16]), ..s.sequence(false) })])
                    .await;
            assert_eq!(stale.status, Status::BadSession);
            let (calls, failures, times) = counted(Operation::Sequence);
            assert_eq!((calls >= 5, failures, times), (true, 1, 0));
        });
    }
}
