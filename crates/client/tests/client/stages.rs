//! Latency breakdown of calls at both ends of a connection.

use std::time::{Duration, Instant};

use millrace_client::{
    Options, Proto, Strategy, Url, Version,
    handles::Client,
    ops::{CreateHow, SetAttributes, StableHow},
};
use millrace_oncrpc::{
    CallClass, Stage,
    stages::{StageStats, StageSums},
};
use millrace_runtime::tokio_rt::TokioRuntime;
use millrace_server::{Config, Running, Server, StageSampling};

/// Larger than the inline threshold, so that each transfer takes one RDMA Read or Write.
const BYTES: usize = 64 << 10;
const CALLS: u64 = 5;

struct Case {
    proto: Proto,
    registration: Strategy,
}

fn start(sample: u32) -> Running {
    Server::start(Config {
        exports: vec!["/data=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        stages: StageSampling { sample },
        ..Config::default()
    })
    .unwrap()
}

/// Writes and reads [`CALLS`] times; returns the stage sums of client and server.
fn measured(case: &Case, sample: u32) -> (StageStats, StageStats) {
    let server = start(sample);
    let addr = match case.proto {
        Proto::Rdma => server.rdma_addr().unwrap(),
        Proto::Tcp => server.tcp_addr().unwrap(),
    };
    let url = Url { port: Some(addr.port()), ..Url::new(addr.ip().to_string(), "/data") };
    let (proto, registration) = (case.proto, case.registration);
    let options = Options::default()
        .vers(Some(Version::V3))
        .proto(Some(proto))
        .registration(registration)
        .trust_server(true)
        .sample_stages(sample);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = tokio.block_on(async {
        let client = Client::connect(TokioRuntime::current(), &url, options).await.unwrap();
        let file = client
            .create(client.root(), "f", CreateHow::Unchecked(SetAttributes::default()))
            .await
            .unwrap()
            .handle;
        for i in 0..CALLS {
            let mut data = client.buffer(BYTES).unwrap();
            data.fill(i as u8);
            let written =
                client.write_from(file, 0, data.freeze().into(), StableHow::Unstable).await.unwrap();
            assert_eq!(written.count, BYTES);
            let read = client.read_into(file, 0, client.buffer(BYTES).unwrap()).await.unwrap();
            assert_eq!((read.count, read.buffer[BYTES - 1]), (BYTES, i as u8));
        }
        let stats = client.stats().stages;
        client.close();
        stats
    });
    drop(tokio);
    let stats = server.stop_blocking(Duration::from_secs(5));
    (client, if proto == Proto::Tcp { stats.tcp_stages } else { stats.rdma_stages })
}

fn cases() -> impl Iterator<Item = Case> {
    let rdma = Strategy::ALL.into_iter().map(|registration| Case { proto: Proto::Rdma, registration });
    let tcp = Case { proto: Proto::Tcp, registration: Strategy::Fast };
    rdma.chain([tcp])
}

/// Asserts that the calls of `sums` spent time in the stages `some` and in no others.
fn assert_stages(sums: &StageSums, some: &[Stage], what: &str) {
    assert_eq!(sums.calls, CALLS, "{what}");
    for stage in Stage::ALL {
        assert_eq!(sums.time(stage) > Duration::ZERO, some.contains(&stage), "{what}: {stage} of {sums:?}");
    }
    assert_eq!(Stage::ALL.map(|s| sums.time(s)).iter().sum::<Duration>(), sums.total(), "{what}");
}

#[test]
fn reads_and_writes_spend_time_in_the_stages_of_their_transport() {
    use Stage::*;
    for case in cases() {
        let began = Instant::now();
        let (client, server) = measured(&case, 1);
        let most = began.elapsed();
        let Case { proto, registration } = &case;
        let what = |end, class: CallClass| format!("{proto} {registration} {} at the {end}", class.name());
        let client_always = [Encode, Queue, Send, Wait, Decode, Delivery];
        let server_always = [Receive, Decode, Execution, Reply, Completion];
        let lends = [Registration, Deregistration];
        let (read_c, read_s, write_c, write_s): (&[Stage], &[Stage], &[Stage], &[Stage]) = match proto {
            Proto::Tcp => (&[], &[], &[], &[]),
            Proto::Rdma => (&lends, &[WritePost], &lends, &[Buffer, ReadWait]),
        };
        // TCP does not deliver records in batches.
        let server_always = if *proto == Proto::Tcp { &server_always[1..] } else { &server_always[..] };
        for (class, c, s) in [(CallClass::Read, read_c, read_s), (CallClass::Write, write_c, write_s)] {
            assert_stages(client.of(class), &[&client_always, c].concat(), &what("client", class));
            assert_stages(server.of(class), &[server_always, s].concat(), &what("server", class));
            for sums in [client.of(class), server.of(class)] {
                assert!(sums.total() <= most, "{sums:?}"); // Calls are sequential, so no time is counted twice.
            }
        }
        assert!(client.of(CallClass::Other).calls > 0 && server.of(CallClass::Other).calls > 0);
    }
}

#[test]
fn without_sampling_no_stage_is_timed() {
    let case = Case { proto: Proto::Rdma, registration: Strategy::Fast };
    assert_eq!(measured(&case, 0), (StageStats::default(), StageStats::default()));
}
