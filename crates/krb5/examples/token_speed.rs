//! Measures the tokens of each encryption type on one processor: `cargo run --release -p millrace-krb5 --example
//! token_speed`. Prints the median of nine runs, in processor time, so that other programs matter little.

#![allow(clippy::print_stdout, clippy::expect_used)]

use std::{hint::black_box, time::Duration};

use millrace_krb5::{Context, Enctype, PLAIN_AT, Parameters, Role};
use rustix::time::{ClockId, clock_gettime};

const RUNS: usize = 9;
const MEBIBYTE: usize = 1 << 20;

/// The processor time of this thread.
fn now() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("the time is positive")
}

/// Median of the time of one call.
fn time(calls: u32, mut call: impl FnMut()) -> Duration {
    call();
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = now();
            (0..calls).for_each(|_| call());
            (now() - start) / calls
        })
        .collect();
    times.sort();
    times[RUNS / 2]
}

fn megabytes_per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e6
}

fn main() {
    println!("{} bytes of memory for a context", size_of::<Context>());
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "MIC 4 B", "MIC 124 B", "wrap 128 B", "wrap 4 KiB", "MIC 1 MiB", "wrap 1 MiB", "unwrap"
    );
    for enctype in Enctype::ALL {
        let key = &[7; 32][..enctype.key_len()];
        let [initiator, acceptor] = [Role::Initiator, Role::Acceptor].map(|role| {
            let end = Duration::ZERO;
            let parameters = Parameters { role, enctype, key, acceptor_subkey: true, sequence: 0, end };
            Context::new(&parameters).expect("the key has the length of keys")
        });
        let message = vec![0x5a; MEBIBYTE];
        let mic = |len: usize| {
            time(1_000_000 / len as u32 + 100, || {
                black_box(initiator.mic([&message[..len]]));
            })
        };
        let mut token = vec![0x5a; PLAIN_AT + MEBIBYTE + initiator.wrap_tail()];
        let mut wrap = |len: usize, calls| {
            let token = &mut token[..PLAIN_AT + len + initiator.wrap_tail()];
            time(calls, || initiator.wrap(&mut [token], [1; 16]).expect("the token is long enough"))
        };
        let small = wrap(128, 10_000);
        let page = wrap(4096, 2000);
        let whole = wrap(MEBIBYTE, 10);
        // An unwrapped token must be copied again before the next run; the time of the copy is subtracted.
        let original = token.clone();
        let copy = time(10, || token.copy_from_slice(black_box(&original)));
        let open = time(10, || {
            token.copy_from_slice(black_box(&original));
            acceptor.unwrap(&mut [&mut token]).expect("the token is intact");
        });
        println!(
            "{enctype:<28} {:>7.2} us {:>7.2} us {:>7.2} us {:>7.2} us {:>6.0} MB/s {:>6.0} MB/s {:>6.0} MB/s",
            mic(4).as_secs_f64() * 1e6,
            mic(124).as_secs_f64() * 1e6,
            small.as_secs_f64() * 1e6,
            page.as_secs_f64() * 1e6,
            megabytes_per_second(MEBIBYTE, mic(MEBIBYTE)),
            megabytes_per_second(MEBIBYTE, whole),
            megabytes_per_second(MEBIBYTE, open - copy),
        );
    }
}
