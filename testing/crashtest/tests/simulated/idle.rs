//! Clients whose idle connections the server closes.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use millrace_client::{Proto, Strategy, handles::Client, ops::SetAttributes};
use millrace_rdma_sim::Profile;
use millrace_runtime::{RuntimeExt, virtual_time::VirtualTime};
use millrace_server::Stats;
use tracing::Level;

use millrace_crashtest::cluster::{Cluster, mount, options};

/// A network with a server of the protocol of these tests.
fn cluster(time: &VirtualTime) -> Cluster {
    let mut cluster = Cluster::new(time, Profile::named("gige-2003").expect("unknown profile"));
    cluster.config.rdma_protocol = crate::protocol();
    cluster
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `test` and returns the warnings and errors that were logged.
fn warnings_of(test: impl FnOnce()) -> String {
    let lines = Lines::default();
    let to = lines.clone();
    let logs = tracing_subscriber::fmt().with_max_level(Level::WARN).with_writer(move || to.clone());
    tracing::subscriber::with_default(logs.with_ansi(false).finish(), test);
    let text = lines.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}

fn of(proto: Proto, stats: &Stats) -> millrace_server::ConnectionStats {
    if proto == Proto::Tcp { stats.tcp } else { stats.rdma }
}

async fn make(client: &Client, name: &str) {
    let made = client.mkdir(client.root(), name, SetAttributes::default()).await;
    made.unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn a_call_after_an_idle_timeout_reconnects_without_a_warning() {
    for proto in [Proto::Tcp, Proto::Rdma] {
        let warnings = warnings_of(|| {
            let time = VirtualTime::new(7);
            let mut cluster = cluster(&time);
            cluster.start(&time);
            let rt = time.runtime();
            let done = time.block_on(async {
                let options = options(Strategy::Cache).rdma_protocol(crate::protocol()).nconnect(2);
                let client = mount(&cluster.world, &rt, 0, proto, options).await.expect("cannot mount");
                for hour in 1..=3 {
                    rt.sleep(Duration::from_secs(3600)).await;
                    let seen = of(proto, &cluster.stats());
                    // Connections that the client has not used have a shorter time limit for the first call.
                    let closed = seen.idle + seen.no_call;
                    assert_eq!((seen.open, closed), (0, 2 * hour), "{proto}");
                    make(&client, &format!("a{hour}")).await;
                    make(&client, &format!("b{hour}")).await;
                    assert_eq!(client.stats().reconnects, 2 * hour);
                }
                assert_eq!(client.stats().retransmits, 0);
                assert_eq!(of(proto, &cluster.stats()).failed, 0);
            });
            done.expect("the run made no progress");
        });
        assert_eq!(warnings, "", "{proto}");
    }
}

/// Non-idempotent calls are sent at all times around the moment at which the server closes the connection.
#[test]
fn calls_at_the_end_of_an_idle_connection_are_executed_once() {
    const LOOK: Duration = Duration::from_micros(100);
    const STEP: Duration = Duration::from_micros(4);
    for proto in [Proto::Tcp, Proto::Rdma] {
        let warnings = warnings_of(|| {
            let time = VirtualTime::new(7);
            let mut cluster = cluster(&time);
            cluster.config.limits.idle_timeout = 1;
            cluster.start(&time);
            let rt = time.runtime();
            let done = time.block_on(async {
                let client = mount(
                    &cluster.world,
                    &rt,
                    0,
                    proto,
                    options(Strategy::Cache).rdma_protocol(crate::protocol()),
                )
                .await;
                let client = client.expect("cannot mount");
                let closed = || of(proto, &cluster.stats()).idle;
                // Measure the time from the first call of a new connection to its end.
                while closed() == 0 {
                    rt.sleep(LOOK).await;
                }
                make(&client, "first").await;
                let started = rt.now();
                while closed() == 1 {
                    rt.sleep(LOOK).await;
                }
                let lasts = rt.now().duration_since(started);
                let (mut met, mut made) = (0, 0);
                for step in 0..200 {
                    make(&client, &format!("new{step}")).await;
                    rt.sleep(lasts + STEP * step - STEP * 100).await;
                    let before = client.stats().retransmits;
                    make(&client, &format!("meets{step}")).await;
                    met += client.stats().retransmits - before;
                    made += 2;
                    let now = closed();
                    while closed() == now {
                        rt.sleep(Duration::from_millis(100)).await;
                    }
                }
                assert!(met > 0, "{proto}: no call was sent at the end of a connection");
                println!("{proto}: {met} of {made} calls were retransmitted");
                // The server executed none of them twice: it does not start calls that arrive while it
                // closes.
                assert_eq!(cluster.stats().calls_of(millrace_client::ops::Procedure::Mkdir), made + 1);
            });
            done.expect("the run made no progress");
        });
        assert_eq!(warnings, "", "{proto}");
    }
}
