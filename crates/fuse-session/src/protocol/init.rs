//! The negotiation of a session: FUSE_INIT.

use std::ops::RangeInclusive;

use crate::protocol::{DecodeError, fields::Fields};

/// Minor versions of the protocol that this crate implements; the major version is 7.
pub const MINOR_VERSIONS: RangeInclusive<u32> = 31..=46;
const MAJOR_VERSION: u32 = 7;

bitflags::bitflags! {
    /// Capabilities, which the kernel offers and the file system enables (`flags`, with `flags2` in the upper half).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InitFlags: u64 {
        /// Reads of a file run in parallel (`FUSE_ASYNC_READ`).
        const ASYNC_READ = 1 << 0;
        /// fcntl(2) locks are those of the file system (`FUSE_POSIX_LOCKS`).
        const POSIX_LOCKS = 1 << 1;
        /// Lookups of "." and ".." (`FUSE_EXPORT_SUPPORT`).
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes of more than 4096 bytes (`FUSE_BIG_WRITES`).
        const BIG_WRITES = 1 << 5;
        /// flock(2) locks are those of the file system (`FUSE_FLOCK_LOCKS`).
        const FLOCK_LOCKS = 1 << 10;
        /// The kernel drops cached pages when size or mtime change (`FUSE_AUTO_INVAL_DATA`).
        const AUTO_INVAL_DATA = 1 << 12;
        /// Lists with attributes (`FUSE_DO_READDIRPLUS`).
        const DO_READDIRPLUS = 1 << 13;
        /// Lists with attributes only where programs use them (`FUSE_READDIRPLUS_AUTO`).
        const READDIRPLUS_AUTO = 1 << 14;
        /// Parts of a direct read or write run in parallel (`FUSE_ASYNC_DIO`).
        const ASYNC_DIO = 1 << 15;
        /// The kernel caches writes (`FUSE_WRITEBACK_CACHE`).
        const WRITEBACK_CACHE = 1 << 16;
        /// Lookups and lists of a directory run in parallel (`FUSE_PARALLEL_DIROPS`).
        const PARALLEL_DIROPS = 1 << 18;
        /// The file system clears set-ID bits (`FUSE_HANDLE_KILLPRIV`).
        const HANDLE_KILLPRIV = 1 << 19;
        /// The reply has `max_pages` (`FUSE_MAX_PAGES`).
        const MAX_PAGES = 1 << 22;
        /// The kernel caches targets of symbolic links (`FUSE_CACHE_SYMLINKS`).
        const CACHE_SYMLINKS = 1 << 23;
        /// As [`Self::HANDLE_KILLPRIV`], version 2 (`FUSE_HANDLE_KILLPRIV_V2`, 7.33).
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// `flags2` is valid (`FUSE_INIT_EXT`, 7.36).
        const INIT_EXT = 1 << 30;
        /// Files opened for direct I/O can be mapped (`FUSE_DIRECT_IO_ALLOW_MMAP`, 7.39).
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests are sent over io_uring (`FUSE_OVER_IO_URING`, 7.42).
        const OVER_IO_URING = 1 << 41;

        const _ = !0;
    }
}

/// The kernel's version and capabilities (`fuse_init_in`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Largest read-ahead of the kernel, in bytes.
    pub max_readahead: u32,
    /// Capabilities that the kernel offers.
    pub flags: InitFlags,
}

impl InitRequest {
    pub(crate) fn decode(f: &mut Fields<'_>) -> Result<Self, DecodeError> {
        let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
        let flags = InitFlags::from_bits_retain(low.into());
        let high = if flags.contains(InitFlags::INIT_EXT) { f.u32()? } else { 0 };
        let flags = flags | InitFlags::from_bits_retain(u64::from(high) << 32);
        Ok(Self { major, minor, max_readahead, flags })
    }

    /// Whether this crate implements a version that the kernel supports.
    pub fn is_supported(&self) -> bool {
        self.major == MAJOR_VERSION && self.minor >= *MINOR_VERSIONS.start()
    }
}

/// The parameters of a session (`fuse_init_out`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitReply {
    /// Minor version: at most that of the kernel.
    pub minor: u32,
    /// Largest read-ahead, in bytes.
    pub max_readahead: u32,
    /// Capabilities that the file system enables.
    pub flags: InitFlags,
    /// Largest number of background requests of the kernel.
    pub max_background: u16,
    /// Number of background requests from which the kernel considers the file system congested.
    pub congestion_threshold: u16,
    /// Largest write, in bytes.
    pub max_write: u32,
    /// Largest request, in pages of memory.
    pub max_pages: u16,
}

impl InitReply {
    /// Times have a resolution of 1 ns.
    const TIME_GRANULARITY: u32 = 1;

    pub(crate) fn encode(&self, out: &mut crate::protocol::message::Head) {
        out.u32(MAJOR_VERSION).u32(self.minor).u32(self.max_readahead).u32(self.flags.bits() as u32);
        out.u16(self.max_background).u16(self.congestion_threshold).u32(self.max_write);
        out.u32(Self::TIME_GRANULARITY).u16(self.max_pages).u16(0);
        out.u32((self.flags.bits() >> 32) as u32).zeros::<28>();
    }
}
