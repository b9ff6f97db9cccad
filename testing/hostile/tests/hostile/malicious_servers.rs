//! Malicious servers against a client: memory that the call did not expose stays unchanged, and the call does
//! not return wrong data.

use millrace_hostile::{
    MaliciousServer, Violation,
    victim::{self, LEN, Outcome},
};
use millrace_oncrpc::RpcError;
use millrace_rdma::registration::{Invalidation, Settings, Strategy};
use millrace_rdma_iwarp::Iwarp;
use millrace_runtime::tokio_rt::TokioRuntime;

async fn commit(violation: Violation, settings: Settings) -> Outcome {
    commit_over(violation, settings, &Iwarp::new()).await
}

async fn commit_over(violation: Violation, settings: Settings, provider: &Iwarp) -> Outcome {
    let server = MaliciousServer::start(violation).unwrap();
    let outcome =
        victim::call(&server, violation, TokioRuntime::current(), settings, provider).await.unwrap();
    tokio::task::spawn_blocking(|| server.end().unwrap()).await.unwrap();
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_violation_changes_other_memory_or_returns_wrong_data() {
    for (violation, strategy) in Violation::ALL.into_iter().flat_map(|l| Strategy::ALL.map(|s| (l, s))) {
        let outcome = commit(violation, Settings { trust_peer: true, ..Settings::new(strategy) }).await;
        assert_eq!(outcome.changed, 0, "{violation:?}, {strategy}");
        // The cache keeps its own buffers exposed, never those of the caller.
        assert!(outcome.exposed == 0 || strategy == Strategy::Cache, "{violation:?}, {strategy}");
        match violation {
            Violation::WritesBeyond
            | Violation::WritesBefore
            | Violation::WritesElsewhere
            | Violation::Reads
            | Violation::InvalidatesOther => {
                let Err(RpcError::Disconnected { reason, .. }) = &outcome.result else {
                    panic!("{violation:?}, {strategy}: {:?}", outcome.result);
                };
                assert!(reason.contains("protocol violation") || reason.contains("another call"), "{reason}");
            }
            Violation::ClaimsMore | Violation::NamesOther | Violation::ExposesItself => {
                let bad = matches!(outcome.result, Err(RpcError::BadReply { .. }));
                assert!(bad, "{violation:?}, {strategy}: {:?}", outcome.result);
            }
            Violation::ClaimsOther => assert_eq!(outcome.data(), None),
            Violation::WritesLate => {
                assert!(outcome.data() == Some(vec![0x66; LEN]), "the late write changed the data")
            }
        }
    }
}

/// The window of vulnerability of TR06 and Designing 2007 exists only with batched invalidation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_succeeds_only_with_batched_invalidation() {
    let fast = |invalidation| Settings { invalidation, ..Settings::new(Strategy::Fast) };
    let batched = commit(Violation::WritesLate, fast(Invalidation::Batched(16))).await;
    assert!(batched.late() > 0 && batched.exposed == 1, "{batched:?}");
    assert_eq!(batched.changed, 0);
    let at_once = commit(Violation::WritesLate, fast(Invalidation::AtOnce)).await;
    assert_eq!((at_once.late(), at_once.exposed, at_once.changed), (0, 0, 0));
}

/// The risk that `--i-trust-the-server` accepts (TR06: "unfettered access"), with a provider whose global tag
/// permits the access that an adapter's would. The calls succeed, and other memory has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malicious_server_changes_other_memory_with_an_unrestricted_global_tag() {
    let weak = Iwarp::insecure_with_whole_spans();
    for violation in [Violation::WritesBeyond, Violation::WritesBefore] {
        let settings = Settings { trust_peer: true, ..Settings::new(Strategy::AllPhysical) };
        let outcome = commit_over(violation, settings, &weak).await;
        assert!(outcome.changed > 0 && outcome.data().is_some(), "{violation:?}: {outcome:?}");
        // The other strategies do not use the global tag.
        for strategy in [Strategy::Dynamic, Strategy::Fast, Strategy::Cache] {
            let outcome = commit_over(violation, Settings::new(strategy), &weak).await;
            assert!(
                outcome.changed == 0 && outcome.result.is_err(),
                "{violation:?}, {strategy}: {outcome:?}"
            );
        }
    }
}
