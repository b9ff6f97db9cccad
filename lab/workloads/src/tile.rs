//! MPI Tile I/O: each process writes and reads one tile of a large picture, row by row.

use millrace_bench::{
    BenchError,
    workload::{Data, Directory, Part, Tally, Workload},
};

/// The file that all members share.
const FILE: &str = "tiles";

/// MPI-Tile-IO without collective buffering. One file contains a picture of tiles, each of `width` x `height`
/// elements, and each process accesses one tile. The rows of a tile are far apart in the file, so that the
/// access to a tile is `height` calls of `width` elements each. All processes write, then all read and check,
/// with a barrier in between.
///
/// The papers' tiles have 1024 x 768 elements of 32 bytes, and 2, 4 or 6 processes: rows of 32 KiB, tiles of
/// 24 MiB.
#[derive(Debug, Clone)]
pub struct Tile {
    /// Tiles in a row of tiles. The number of processes is `columns` x `rows`.
    pub columns: u32,
    /// Rows of tiles.
    pub rows: u32,
    /// Elements of a tile's row.
    pub width: u32,
    /// Rows of elements in a tile.
    pub height: u32,
    /// Bytes of an element.
    pub element: u32,
}

impl Tile {
    /// The number of processes, one for each tile.
    pub const fn processes(&self) -> u32 {
        self.columns * self.rows
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        u64::from(self.processes()) * self.row_bytes() * u64::from(self.height)
    }

    fn row_bytes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.element)
    }

    /// The offset of row `row` of the tile of member `rank`.
    fn offset(&self, rank: usize, row: u32) -> u64 {
        let columns = u64::from(self.columns);
        let (x, y) = (rank as u64 % columns, rank as u64 / columns);
        let line = y * u64::from(self.height) + u64::from(row);
        (line * columns + x) * self.row_bytes()
    }

    async fn run(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        if self.bytes() == 0 {
            return Err(BenchError::Parameter(
                "the picture has no tiles or the tiles have no elements; choose sizes of at least 1".into(),
            ));
        }
        if part.rank == 0 {
            directory.create(FILE).await?;
        }
        part.together().await?;
        let file = directory.open(FILE).await?;
        let mine = part.rank as u8 ^ 0x5a;
        let bytes = self.row_bytes() * u64::from(self.height);
        let data = directory.views(&vec![mine; self.row_bytes() as usize])?;
        let began = tally.begin();
        for row in 0..self.height {
            let write = file.write(self.offset(part.rank, row), &data);
            tally.one("row write", self.row_bytes(), write).await?;
        }
        file.commit().await?;
        part.together().await?;
        tally.whole("tile write", 1, bytes, &began);
        let began = tally.begin();
        for row in 0..self.height {
            let read = self.read(&file, part.rank, row, mine);
            tally.one("row read", self.row_bytes(), read).await?;
        }
        part.together().await?;
        tally.whole("tile read", 1, bytes, &began);
        Ok(())
    }

    async fn read(&self, file: &Data, rank: usize, row: u32, want: u8) -> Result<(), BenchError> {
        let mut right = true;
        let at = self.offset(rank, row);
        let check = |_, data: &[u8]| right &= data.iter().all(|b| *b == want);
        let read = file.read(at, self.row_bytes() as usize, check).await?;
        if right && read as u64 == self.row_bytes() {
            return Ok(());
        }
        Err(BenchError::Client(format!("{FILE} differs from the written data near offset {at}")))
    }
}

impl Workload for Tile {
    fn name(&self) -> &'static str {
        "tile"
    }

    fn members(&self) -> usize {
        self.processes() as usize
    }

    fn client_hosts(&self) -> usize {
        // As in the paper: one host for two processes.
        self.members().div_ceil(2).max(1)
    }

    fn bytes(&self) -> u64 {
        Self::bytes(self)
    }

    async fn member(&self, directory: &Directory, part: &Part, tally: &mut Tally) -> Result<(), BenchError> {
        self.run(directory, part, tally).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tiles_cover_the_picture_once() {
        let t = Tile { columns: 3, rows: 2, width: 4, height: 5, element: 8 };
        let mut rows: Vec<_> = (0..6).flat_map(|rank| (0..5).map(move |row| (rank, row))).collect();
        rows.sort_by_key(|(rank, row)| t.offset(*rank, *row));
        let at: Vec<_> = rows.iter().map(|(rank, row)| t.offset(*rank, *row)).collect();
        assert_eq!(at, (0..30).map(|n| n * 32).collect::<Vec<_>>());
        assert_eq!(t.bytes(), 30 * 32);
        assert_eq!(&rows[..4], [(0, 0), (1, 0), (2, 0), (0, 1)]);
    }
}
