//! A server that lies, against the client's end of a connection: its memory beyond what it gave is untouched, and the
//! call does not end in wrong data.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

use millrace_hostile::{
    Liar, Lie,
    victim::{self, LEN, Outcome},
};
use millrace_oncrpc::RpcError;
use millrace_rdma_iwarp::Iwarp;
use millrace_rpcrdma::registration::{Invalidation, Settings, Strategy};
use millrace_runtime::tokio_rt::TokioRuntime;

async fn tell(lie: Lie, settings: Settings) -> Outcome {
    tell_over(lie, settings, &Iwarp::new()).await
}

async fn tell_over(lie: Lie, settings: Settings, provider: &Iwarp) -> Outcome {
    let liar = Liar::start(lie).unwrap();
    let outcome = victim::call(&liar, lie, TokioRuntime::current(), settings, provider).await.unwrap();
    tokio::task::spawn_blocking(|| liar.end().unwrap()).await.unwrap();
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lie_reaches_memory_that_was_not_given_or_passes_for_data() {
    for (lie, strategy) in Lie::ALL.into_iter().flat_map(|l| Strategy::ALL.map(|s| (l, s))) {
        let outcome = tell(lie, Settings { trust_peer: true, ..Settings::new(strategy) }).await;
        assert_eq!(outcome.changed, 0, "{lie:?}, {strategy}");
        // The cache keeps its own buffers exposed, and never the caller's.
        assert!(outcome.exposed == 0 || strategy == Strategy::Cache, "{lie:?}, {strategy}");
        match lie {
            Lie::WritesBeyond
            | Lie::WritesBefore
            | Lie::WritesElsewhere
            | Lie::Reads
            | Lie::InvalidatesOther => {
                let Err(RpcError::Disconnected { reason, .. }) = &outcome.result else {
                    panic!("{lie:?}, {strategy}: {:?}", outcome.result);
                };
                assert!(reason.contains("protocol violation") || reason.contains("another call"), "{reason}");
            }
            Lie::ClaimsMore | Lie::NamesOther | Lie::ExposesItself => {
                let bad = matches!(outcome.result, Err(RpcError::BadReply { .. }));
                assert!(bad, "{lie:?}, {strategy}: {:?}", outcome.result);
            }
            Lie::ClaimsOther => assert_eq!(outcome.data(), None),
            Lie::WritesLate => assert!(outcome.data() == Some(vec![0x66; LEN]), "the late write has landed"),
        }
    }
}

/// The window of vulnerability of TR06 and Designing 2007, and that it is closed unless somebody asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_lands_with_batched_invalidation_and_is_refused_with_invalidation_at_once() {
    let fast = |invalidation| Settings { invalidation, ..Settings::new(Strategy::Fast) };
    let batched = tell(Lie::WritesLate, fast(Invalidation::Batched(16))).await;
    assert!(batched.late() > 0 && batched.exposed == 1, "{batched:?}");
    assert_eq!(batched.changed, 0);
    let at_once = tell(Lie::WritesLate, fast(Invalidation::AtOnce)).await;
    assert_eq!((at_once.late(), at_once.exposed, at_once.changed), (0, 0, 0));
}

/// What `--i-trust-the-server` stands for (TR06: "unfettered access"), on a provider that lets the tag reach what an
/// adapter's would. The calls end well, and other memory has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lying_server_writes_elsewhere_where_the_global_tag_reaches_more_than_open_calls() {
    let weak = Iwarp::insecure_with_whole_spans();
    for lie in [Lie::WritesBeyond, Lie::WritesBefore] {
        let settings = Settings { trust_peer: true, ..Settings::new(Strategy::AllPhysical) };
        let outcome = tell_over(lie, settings, &weak).await;
        assert!(outcome.changed > 0 && outcome.data().is_some(), "{lie:?}: {outcome:?}");
        // The other strategies have no such tag.
        for strategy in [Strategy::Dynamic, Strategy::Fast, Strategy::Cache] {
            let outcome = tell_over(lie, Settings::new(strategy), &weak).await;
            assert!(outcome.changed == 0 && outcome.result.is_err(), "{lie:?}, {strategy}: {outcome:?}");
        }
    }
}
