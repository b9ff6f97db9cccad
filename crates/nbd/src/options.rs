//! Options of servers.

/// Options of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whether clients may only read. A device that is write-protected is always served so. Default: no.
    pub read_only: bool,
    /// Maximum number of connections at a time; further ones are closed at once. Default: 16.
    pub connections: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { read_only: false, connections: 16 }
    }
}
