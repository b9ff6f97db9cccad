//! Executes a target on its seeds and on deterministic mutations of them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::{Duration, Instant},
};

use crate::{
    Target,
    mutate::{Random, mutate},
};

/// Number of mutated inputs that are kept for further mutation.
const KEPT: usize = 256;
/// Of this number of executed inputs, one is kept.
const KEEP_ONE_IN: usize = 16;
/// An execution that does not end within this time is reported as a hang.
const HANG: Duration = Duration::from_secs(300);

/// Executes `target` on every seed, and then on mutations, until there were `executions` in total. Returns
/// the duration. `seed` determines the mutations.
///
/// # Panics
/// When an execution panics, after printing the input. An execution that hangs aborts the process.
pub fn run(target: &Target, executions: u64, seed: u64) -> Duration {
    let mut pool = (target.seeds)();
    let seeds = pool.len();
    let mut random = Random::new(seed);
    let watch = Watch::start(target);
    let begun = Instant::now();
    for n in 0..executions {
        let input = match pool.get(n as usize).filter(|_| n < seeds as u64) {
            Some(seed) => seed.clone(),
            None => {
                let mut input = pool[random.below(pool.len())].clone();
                mutate(&mut input, &pool[random.below(pool.len())], &mut random);
                input
            }
        };
        watch.begin(&input);
        execute(target, &input);
        if n >= seeds as u64 && random.below(KEEP_ONE_IN) == 0 {
            if pool.len() < seeds + KEPT {
                pool.push(input);
            } else {
                pool[seeds + random.below(KEPT)] = input;
            }
        }
    }
    begun.elapsed()
}

/// Executes `target` once and prints the input if that panics.
pub fn execute(target: &Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        print("panicked", target, input);
        resume_unwind(panic);
    }
}

#[allow(clippy::print_stderr)]
fn print(what: &str, target: &Target, input: &[u8]) {
    let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
    let name = target.name;
    eprintln!(
        "fuzz target {name} {what}; to reproduce:\n  cargo run -p millrace-fuzz --bin millrace-fuzz -- {name} --input {hex}"
    );
}

/// Reports an execution that does not end.
struct Watch {
    input: Arc<Mutex<(u64, Vec<u8>)>>,
    _end: mpsc::Sender<()>,
}

impl Watch {
    fn start(target: &Target) -> Self {
        let input = Arc::new(Mutex::new((0, Vec::new())));
        let (end, ended) = mpsc::channel();
        let (watched, target) = (Arc::clone(&input), target.clone());
        std::thread::spawn(move || {
            let mut last = u64::MAX;
            while ended.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout) {
                let now = watched.lock().unwrap_or_else(PoisonError::into_inner);
                if now.0 == last {
                    print("does not end", &target, &now.1);
                    std::process::abort();
                }
                last = now.0;
            }
        });
        Self { input, _end: end }
    }

    fn begin(&self, input: &[u8]) {
        let mut now = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        now.0 += 1;
        now.1.clear();
        now.1.extend(input);
    }
}
