//! Measurements over a wide area network: distance x message size x block size x outstanding RDMA Reads.

use millrace_bench::{
    BenchError, Figure,
    iozone::{Run, Test},
};
use serde::Serialize;

use crate::{Machines, Operation, Raw, SimulatedIozone};

/// The measurements of WAN 2008 (sections 2.2 and 2.3, figures 2 to 4) between two distant hosts. They exist
/// only in simulation, which provides the distance. For each distance and number of outstanding RDMA Reads:
/// plain RDMA Writes and Reads of each message size, then NFS, which writes and reads a file in blocks of
/// each size.
///
/// The original uses IOzone with direct I/O and requests of 16 MB. The kernel divides them into blocks of
/// `rsize` and `wsize` and has as many in flight as there are slots: 32 here, as in Linux's RPC-over-RDMA
/// (assumed). Here a record is a block. The original's kernels register nothing (`all-physical`) and so
/// transfer pages of 4 KB; `machines` should select the same.
#[derive(Debug, Clone)]
pub struct Wan {
    /// The machines. The fields below replace distance and outstanding reads.
    pub machines: Machines,
    /// Miles between the hosts.
    pub miles: Vec<f64>,
    /// Numbers of outstanding RDMA Reads; empty for that of the profile.
    pub outstanding_reads: Vec<u16>,
    /// Bytes of the plain messages.
    pub messages: Vec<usize>,
    /// Bytes of the blocks of NFS.
    pub blocks: Vec<usize>,
    /// Bytes of the file; 128 MB in the original.
    pub size: u64,
}

/// One figure with its parameters.
#[derive(Debug, Clone, Serialize)]
pub struct WanFigure {
    /// Miles between the hosts.
    pub miles: f64,
    /// Outstanding RDMA Reads.
    pub outstanding_reads: u16,
    /// The figure, with the test `RDMA Write`, `RDMA Read`, or NFS's `write` and `read`.
    #[serde(flatten)]
    pub figure: Figure,
}

impl WanFigure {
    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Maximum number of blocks in flight.
const SLOTS: usize = 32;
/// Bytes of one request of the original.
const REQUEST: usize = 16 << 20;
/// Approximate bytes of a stream of plain messages, unless the limits of its length apply.
const STREAM: usize = 64 << 20;

impl Wan {
    /// Runs all measurements and passes each figure to `each`. A block that exceeds the size of a READ or
    /// WRITE has no values.
    ///
    /// # Errors
    /// When a value is out of range, or a run fails.
    pub fn run(&self, mut each: impl FnMut(&WanFigure) -> Result<(), BenchError>) -> Result<(), BenchError> {
        let own = [self.machines.profile.adapter.outstanding_reads];
        let reads = if self.outstanding_reads.is_empty() { &own[..] } else { &self.outstanding_reads };
        for &miles in &self.miles {
            for &outstanding_reads in reads {
                let mut machines = self.machines.clone();
                machines.profile.adapter.outstanding_reads = outstanding_reads;
                let placed = machines.profile.at_distance(miles);
                machines.profile = placed.map_err(|e| BenchError::Parameter(e.to_string()))?;
                let mut show = |figure| each(&WanFigure { miles, outstanding_reads, figure });
                for &message in &self.messages {
                    for operation in [Operation::Write, Operation::Read] {
                        show(raw(&machines, operation, message)?)?;
                    }
                }
                self.nfs(machines)?.into_iter().try_for_each(show)?;
            }
        }
        Ok(())
    }

    fn nfs(&self, machines: Machines) -> Result<Vec<Figure>, BenchError> {
        let what = SimulatedIozone { machines, threads: 1, shared_mount: false, size: self.size };
        let runs = self.blocks.iter().flat_map(|&record| {
            let outstanding = (REQUEST / record.max(1)).clamp(1, SLOTS);
            [Test::Write, Test::Read].map(|test| Run { test, record, outstanding, passes: 1, random_ops: 0 })
        });
        what.run_feasible(&runs.collect::<Vec<_>>())
    }
}

/// Measures a stream that is many times longer than the data in flight, so that its start and end have little
/// influence.
fn raw(machines: &Machines, operation: Operation, message: usize) -> Result<Figure, BenchError> {
    let adapter = &machines.profile.adapter;
    let flight = match operation {
        Operation::Write => adapter.send_queue as usize,
        Operation::Read => adapter.outstanding_reads.into(),
    };
    let count = (STREAM / message.max(1)).clamp(4 * flight, 50 * flight);
    Raw { profile: machines.profile.clone(), operation, message, count }.run()
}

#[cfg(test)]
mod tests {
    use millrace_client::{Options, Strategy};
    use millrace_rdma_sim::Profile;

    use super::*;

    #[test]
    fn every_combination_of_distance_reads_message_and_block_is_measured() {
        let options = Options::default().registration(Strategy::AllPhysical);
        let profile = Profile::named("wan-infinihost").unwrap();
        let wan = Wan {
            machines: Machines { options, ..Machines::new(profile) },
            miles: vec![0.2, 100.0],
            outstanding_reads: vec![4, 16],
            messages: vec![16 << 10],
            blocks: vec![32 << 10, 1 << 20],
            size: 2 << 20,
        };
        let mut all = Vec::new();
        wan.run(|f| {
            all.push(f.clone());
            Ok(())
        })
        .unwrap();
        assert_eq!(all.len(), 2 * 2 * (2 + 4));
        let rate = |miles, reads, test: &str, record| {
            let of = |f: &&WanFigure| {
                (f.miles, f.outstanding_reads, f.figure.test.as_str(), f.figure.record)
                    == (miles, reads, test, record)
            };
            all.iter().find(of).unwrap().figure.mb_per_s
        };
        let block = 32 << 10;
        // Reads of pages, of which NFS WRITEs consist, gain from more outstanding Reads.
        assert!(rate(100.0, 16, "write", block) > rate(100.0, 4, "write", block));
        assert!(rate(100.0, 4, "read", block) > rate(100.0, 4, "write", block));
        assert!(rate(0.2, 4, "RDMA Read", 16 << 10) > rate(100.0, 4, "RDMA Read", 16 << 10));
        // The pages of 1 MiB do not fit into one call.
        assert_eq!(rate(0.2, 4, "read", 1 << 20), None);
        let far = Wan { miles: vec![1e6], ..wan };
        assert!(far.run(|_| Ok(())).unwrap_err().to_string().contains("link.miles"));
    }
}
