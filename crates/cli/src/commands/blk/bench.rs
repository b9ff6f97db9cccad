//! `millrace blk bench`.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use futures::{TryStreamExt, stream::FuturesUnordered};
use millrace_bench::stats::Latencies;
use millrace_iscsi_initiator::{BlockDevice, Error};
use millrace_program::{
    executor,
    failure::{CommandResult, Failure, Outcome},
    output,
    table::{Align, Table},
    units::{ByteSize, grouped, mb_per_s, short},
    warn_of_debug_build,
};
use rand_xoshiro::{
    Xoshiro256PlusPlus,
    rand_core::{Rng, SeedableRng},
};
use serde_json::json;

use super::{failed, open};
use crate::args::{BlkBenchArgs, BlkTest};

/// A measurement in progress.
struct Run<'a> {
    disk: &'a BlockDevice,
    test: BlkTest,
    block: usize,
    /// Number of blocks that are used.
    blocks: u64,
    end: Instant,
    /// The next block in order.
    next: Cell<u64>,
    random: RefCell<Xoshiro256PlusPlus>,
    latencies: RefCell<Latencies>,
}

impl BlkTest {
    const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Randwrite)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
        }
    }
}

pub(super) fn run(args: &BlkBenchArgs) -> CommandResult {
    warn_of_debug_build("millrace");
    if args.test.writes() && !args.destroy_data {
        return Err(Failure::usage(format!(
            "the test {} overwrites the content of the disk; add --destroy-data to permit that",
            args.test.name()
        )));
    }
    executor::small()?.block_on(async {
        let disk = open(&args.url, &args.options).await?;
        let (took, latencies) = measure(&disk, args).await?;
        disk.close().await;
        report(args, took, &latencies)?;
        Ok(Outcome::Done)
    })
}

async fn measure(disk: &BlockDevice, args: &BlkBenchArgs) -> Result<(Duration, Latencies), Failure> {
    let invalid = || {
        let block = disk.block_size();
        Failure::usage(format!(
            "--block must be a multiple of {block} bytes, up to 4M and the used part of the disk"
        ))
    };
    let span = args.span.map_or(disk.capacity(), |s| s.0.min(disk.capacity()));
    let block = args.block.0;
    if block == 0 || block > 4 << 20 || !block.is_multiple_of(disk.block_size().into()) || block > span {
        return Err(invalid());
    }
    let start = Instant::now();
    let run = Run {
        disk,
        test: args.test,
        block: usize::try_from(block).map_err(|_| invalid())?,
        blocks: span / block,
        end: start + Duration::from_secs(args.seconds),
        next: Cell::new(0),
        random: RefCell::new(Xoshiro256PlusPlus::seed_from_u64(1)),
        latencies: RefCell::default(),
    };
    // `try_join_all` would poll all workers at each wake-up.
    let workers: FuturesUnordered<_> = (0..args.depth).map(|_| run.worker()).collect();
    workers.try_collect::<()>().await.map_err(|e| failed(&e))?;
    if args.test.writes() {
        disk.flush().await.map_err(|e| failed(&e))?;
    }
    Ok((start.elapsed(), run.latencies.into_inner()))
}

impl Run<'_> {
    /// One operation after another until the end.
    async fn worker(&self) -> Result<(), Error> {
        let mut buffer = self.disk.buffer(self.block)?;
        // Random bytes, which no target stores as zeros.
        self.random.borrow_mut().fill_bytes(&mut buffer);
        let (data, mut buffer) = match self.test.writes() {
            true => (Some(buffer.freeze()), None),
            false => (None, Some(buffer)),
        };
        loop {
            let start = Instant::now();
            if start >= self.end {
                return Ok(());
            }
            let offset = self.next_block() * self.block as u64;
            if let Some(data) = &data {
                self.disk.write_at_from(offset, data.clone().into()).await?;
            } else if let Some(free) = buffer.take() {
                buffer = Some(self.disk.read_at_into(offset, free).await?);
            }
            self.latencies.borrow_mut().record(start.elapsed());
        }
    }

    fn next_block(&self) -> u64 {
        if matches!(self.test, BlkTest::Randread | BlkTest::Randwrite) {
            return self.random.borrow_mut().next_u64() % self.blocks;
        }
        let block = self.next.get();
        self.next.set((block + 1) % self.blocks);
        block
    }
}

fn report(args: &BlkBenchArgs, took: Duration, latencies: &Latencies) -> Result<(), Failure> {
    let operations = latencies.len();
    let iops = operations as f64 / took.as_secs_f64();
    let rate = mb_per_s(operations * args.block.0, took);
    let percentile = |p| latencies.percentile_us(p);
    if args.json {
        return output::line(
            &json!({
                "test": args.test.name(),
                "block": args.block.0,
                "depth": args.depth,
                "seconds": took.as_secs_f64(),
                "operations": operations,
                "iops": iops,
                "mb_per_s": rate,
                "mean_us": latencies.mean_us(),
                "p50_us": percentile(50.0),
                "p99_us": percentile(99.0),
                "p999_us": percentile(99.9),
            })
            .to_string(),
        );
    }
    let right = |name| (name, Align::Right);
    let mut table = Table::new(&[
        ("test", Align::Left),
        right("block"),
        right("depth"),
        right("IOPS"),
        right("MB/s"),
        right("mean us"),
        right("p50 us"),
        right("p99 us"),
        right("p99.9 us"),
    ]);
    table.row([
        args.test.name().to_owned(),
        ByteSize(args.block.0).human().to_string(),
        args.depth.to_string(),
        grouped(iops as u64),
        short(rate),
        short(latencies.mean_us()),
        short(percentile(50.0)),
        short(percentile(99.0)),
        short(percentile(99.9)),
    ]);
    output::write(table.to_string().as_bytes())
}
