//! Several clients, each with a large file of its own, on one server.

use millrace_bench::{
    BenchError,
    workload::{Directory, Part, Tally, Workload},
};

/// IOzone's cluster mode as Designing 2007 has it (section 5.3, figure 10): each client host writes a file of its own,
/// and when all have written theirs, all read them from start to end together, record after record. What is of
/// interest is all clients' rate over their number, when the files fit into the server's memory and when they do not.
///
/// In the paper 1 to 8 processes, each on a host, have 1 GB each with records of 1 MB, and the server has 4 or 8 GB before
/// eight disks. As there, one record is in flight at a time for each client; each has a connection of its own.
#[derive(Debug, Clone)]
pub struct Clients {
    /// Clients.
    pub clients: u32,
    /// Bytes of each file; rounded down to whole records.
    pub size: u64,
    /// Bytes of a record. One that a single READ or WRITE does not carry goes in several at once.
    pub record: u32,
}

impl Clients {
    /// Records of each file.
    fn records(&self) -> u64 {
        self.size / u64::from(self.record.max(1))
    }

    async fn run(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        let (records, record) = (self.records(), u64::from(self.record));
        if records == 0 || record == 0 {
            return Err(BenchError::Parameter(format!(
                "a file of {} bytes has no record of {record} bytes; choose a larger file or a smaller record",
                self.size
            )));
        }
        let file = directory.create(&format!("client-{}", part.rank)).await?;
        let data = directory.views(&vec![part.rank as u8; record as usize])?;
        part.together().await?;
        let began = tally.begin();
        for n in 0..records {
            tally.one("record write", record, file.write(n * record, &data)).await?;
        }
        file.commit().await?;
        part.together().await?;
        tally.whole("write", records, records * record, &began);
        let began = tally.begin();
        for n in 0..records {
            let read = file.read(n * record, record as usize, |_, _| ());
            let read = tally.one("record read", record, read).await?;
            if read as u64 != record {
                return Err(BenchError::Client(format!("a file ends {read} bytes after {}", n * record)));
            }
        }
        part.together().await?;
        tally.whole("read", records, records * record, &began);
        Ok(())
    }
}

impl Workload for Clients {
    fn name(&self) -> &'static str {
        "clients"
    }

    fn members(&self) -> usize {
        self.clients as usize
    }

    fn client_hosts(&self) -> usize {
        self.members().max(1)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.clients) * self.size
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, part, tally).await
    }
}
