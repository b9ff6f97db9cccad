//! The deadline of a call, over failures of all kinds in any order, in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_nfs::{
    v3,
    v4::{Operation, Status},
};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::{
    nfs4::{self, Fault},
    script::{Act, Script, fail, handle, nfs3},
};
use crate::{Options, Version};

const SEEDS: u64 = 200;
/// Each kind of failure lasts this long, which is less than calls are retried.
const WINDOW: Duration = Duration::from_secs(45);
/// The limit of calls to a server in its grace period: twice its lease, which the script has.
const GRACE: Duration = Duration::from_secs(180);

/// The kinds of failures with every version, and those that only NFSv4 has.
const CONNECTION: [Kind; 3] = [Kind::Lost, Kind::Refused, Kind::Mute];
const SESSION: [Kind; 6] = [
    Kind::Fails(Operation::Sequence, Status::Delay),
    Kind::Fails(Operation::Sequence, Status::BadSession),
    Kind::Fails(Operation::Sequence, Status::BadSlot),
    Kind::Fails(Operation::Sequence, Status::ConnNotBoundToSession),
    Kind::Fails(Operation::Sequence, Status::RetryUncachedRep),
    Kind::NoSession,
];
const DELAY: Kind = Kind::Fails(Operation::Lookup, Status::Delay);
const IN_GRACE: Kind = Kind::Fails(Operation::Lookup, Status::Grace);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// The connection is lost, or cannot be set up, or there is no reply.
    Lost,
    Refused,
    Mute,
    /// LOOKUP, or the SEQUENCE before it, fails.
    Fails(Operation, Status),
    /// The session is lost, and the server asks to create another one later.
    NoSession,
}

/// The failures of a server, which begin with [`Self::begin`] and do not end.
struct Failures {
    rt: RuntimeRef,
    has_begun: AtomicBool,
    seed: u64,
    kinds: Vec<Kind>,
}

impl Failures {
    fn new(rt: RuntimeRef, seed: u64, kinds: &[&[Kind]]) -> Arc<Self> {
        Arc::new(Self { rt, has_begun: AtomicBool::new(false), seed, kinds: kinds.concat() })
    }

    fn now(&self) -> Option<Kind> {
        let window = self.rt.now().as_nanos() / WINDOW.as_nanos() as u64;
        let mut random = SplitMix64::seed_from_u64(self.seed << 32 | window);
        let kind = self.kinds[random.next_u64() as usize % self.kinds.len()];
        self.has_begun.load(Ordering::Relaxed).then_some(kind)
    }

    fn begin(self: &Arc<Self>, script: &Arc<Script>) {
        self.has_begun.store(true, Ordering::Relaxed);
        let (this, script) = (Arc::clone(self), Arc::clone(script));
        let refuse = async move {
            loop {
                let refused = if this.now() == Some(Kind::Refused) { u32::MAX } else { 0 };
                script.refuse.store(refused, Ordering::Relaxed);
                this.rt.sleep(WINDOW / 100).await;
            }
        };
        self.rt.spawn("refuse connections", Box::pin(refuse));
    }

    fn of_request(&self, ops: &[Operation]) -> Fault {
        let in_recovery = !ops.contains(&Operation::Lookup);
        match self.now() {
            // The server would keep the reply to an executed request.
            Some(Kind::Lost | Kind::Refused) => Fault::LoseBefore,
            Some(Kind::Mute) => Fault::Mute,
            Some(Kind::NoSession) if ops == [Operation::CreateSession] => {
                Fault::Fail(Operation::CreateSession, Status::Delay)
            }
            Some(Kind::NoSession) if !in_recovery => Fault::Fail(Operation::Sequence, Status::BadSession),
            Some(Kind::Fails(operation, status)) if !in_recovery => Fault::Fail(operation, status),
            _ => Fault::None,
        }
    }
}

/// The longest time that a call takes to a server with failures of `kinds`, over [`SEEDS`] orders of them.
fn longest_call(version: Version, kinds: &[&[Kind]]) -> (Duration, u64) {
    let one = |seed| {
        let time = VirtualTime::new(seed);
        let rt = time.runtime();
        let failures = Failures::new(rt.clone(), seed, kinds);
        let hook = Arc::clone(&failures);
        let (script, options) = match version {
            Version::V3 => (Script::new(move |_, _| v3_reply(hook.now())), nfs3()),
            _ => (nfs4::script(move |_, ops| hook.of_request(ops)).0, Options::default().vers(Some(version))),
        };
        let path = if version == Version::V3 { "/e" } else { "/" };
        let took = time.block_on(async {
            let client = script.mount_on(rt.clone(), path, options).await.unwrap();
            failures.begin(&script);
            let start = rt.now();
            client.lookup(handle(1), "x").await.unwrap_err();
            rt.now().duration_since(start)
        });
        (took.unwrap(), seed)
    };
    (0..SEEDS).map(one).max().unwrap()
}

fn v3_reply(kind: Option<Kind>) -> Act {
    match kind {
        Some(Kind::Mute) => Act::Mute,
        Some(Kind::Lost | Kind::Refused) => Act::Lose,
        _ => fail(v3::Status::Jukebox),
    }
}

#[test]
fn a_call_ends_within_the_retry_policy_over_failures_of_all_kinds() {
    let limit = Options::default().retry.max_elapsed;
    let (took, seed) = longest_call(Version::V3, &[&CONNECTION, &[DELAY; 3]]);
    assert!(took <= limit, "NFSv3: {took:?} with seed {seed}");
    let (took, seed) = longest_call(Version::V4_2, &[&CONNECTION, &SESSION, &[DELAY]]);
    assert!(took <= limit, "NFSv4.2: {took:?} with seed {seed}");
    let (took, seed) = longest_call(Version::V4_2, &[&CONNECTION, &SESSION, &[IN_GRACE; 3]]);
    assert!(took > limit && took <= GRACE, "NFSv4.2 in the grace period: {took:?} with seed {seed}");
}
