//! Several clients of one server, each with its own large file.

use millrace_bench::{
    BenchError,
    workload::{Directory, Part, Tally, Workload},
};

/// IOzone's cluster mode as in Designing 2007 (section 5.3, figure 10): each client host writes its own file.
/// After all have finished, all read their files sequentially and concurrently, record after record. The
/// result of interest is the total rate as a function of the number of clients, for files that fit into the
/// server's memory and for files that do not.
///
/// In the paper 1 to 8 processes, each on its own host, have 1 GB each with records of 1 MB, and the server
/// has 4 or 8 GB of memory and eight disks. As in the paper, each client has one record in flight. Each
/// client has its own connection.
#[derive(Debug, Clone)]
pub struct Clients {
    /// Number of clients.
    pub clients: u32,
    /// Bytes of each file, rounded down to whole records.
    pub size: u64,
    /// Bytes of a record. A record that exceeds the size of a READ or WRITE is transferred in several
    /// concurrent calls.
    pub record: u32,
}

impl Clients {
    /// Number of records of each file.
    fn records(&self) -> u64 {
        self.size / u64::from(self.record.max(1))
    }

    async fn run(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        let (records, record) = (self.records(), u64::from(self.record));
        if records == 0 || record == 0 {
            return Err(BenchError::Parameter(format!(
                "a file of {} bytes is smaller than a record of {record} bytes; choose a larger file or a smaller record",
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
                return Err(BenchError::Client(format!(
                    "a READ returned {read} bytes at offset {}",
                    n * record
                )));
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
