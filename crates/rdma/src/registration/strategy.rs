//! Registration strategies and their settings.

use std::{fmt, path::PathBuf, str::FromStr};

pub(super) const TRUST_REQUIRED: &str = "registration all-physical permits the server access to all buffer memory \
     at any time: state that the peer is trusted (`trust_server` of the client's options), or use another strategy";

/// When memory is registered and invalidated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Registers memory for each operation and deregisters it afterwards. Works with any memory. The peer can
    /// access the bytes of a call, with the access right that the call needs, from the call's Send until its
    /// reply is processed.
    Dynamic,
    /// Binds a window from a pool that is allocated at connection setup, and invalidates it after the
    /// operation. Registers as [`Self::Dynamic`] if no window is free or the memory is larger than a window.
    /// Exposure is that of [`Self::Dynamic`], plus that of [`Invalidation::Batched`]. The tag of a window
    /// keeps its index (24 bits) for the lifetime of the connection and gets a new key (8 bits) at each
    /// binding.
    Fast,
    /// Keeps buffers registered, by size class, and copies data into and out of them. The peer can access
    /// these buffers while they are cached, and never the caller's memory. A buffer only contains data of
    /// calls of one connection in one direction, which the peer sent or received. Buffers that the peer may
    /// read are zeroed first.
    Cache,
    /// One tag for the whole arena, without registrations; segments end at page boundaries. The peer can read
    /// and write, for the lifetime of the connection, *all buffer memory of this process*, including that of
    /// other connections. Use it with trusted peers only. (The iWARP provider limits access to the bytes of
    /// open calls.)
    AllPhysical,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Self; 4] = [Self::Dynamic, Self::Fast, Self::Cache, Self::AllPhysical];

    /// The name: `dynamic`, `fast`, `cache` or `all-physical`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Fast => "fast",
            Self::Cache => "cache",
            Self::AllPhysical => "all-physical",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let unknown =
            || format!("unknown registration strategy {s:?}: use dynamic, fast, cache or all-physical");
        Self::ALL.into_iter().find(|k| k.name() == s).ok_or_else(unknown)
    }
}

/// When [`Strategy::Fast`] invalidates the memory window of a completed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Invalidation {
    /// Before the caller gets its memory back.
    #[default]
    AtOnce,
    /// In batches, after N calls (at least 1) or when no window is free. Until then **a peer can still write
    /// to memory that has a new owner**, the vulnerability of the vendors' variant in TR06 and Designing 2007.
    /// The number of these memory windows is limited, the duration is not. Memory windows that the peer may
    /// only read are invalidated at once.
    Batched(usize),
}

impl fmt::Display for Invalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtOnce => f.write_str("at-once"),
            Self::Batched(n) => write!(f, "batched:{n}"),
        }
    }
}

impl FromStr for Invalidation {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let batched = || s.strip_prefix("batched:")?.parse().ok().filter(|n| *n > 0).map(Self::Batched);
        let known = if s == "at-once" { Some(Self::AtOnce) } else { batched() };
        known.ok_or_else(|| {
            format!("unknown invalidation mode {s:?}: use at-once or batched:N with N above 0")
        })
    }
}

/// Settings of a strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The strategy.
    pub strategy: Strategy,
    /// `fast`: when windows are invalidated.
    pub invalidation: Invalidation,
    /// `fast`: number of windows per connection.
    pub windows: usize,
    /// `fast`: bytes of the largest region that one window covers.
    pub window_bytes: usize,
    /// `cache`: maximum bytes that stay registered, over all connections. Above seven eighths of the limit,
    /// idle memory is released down to half of the limit.
    pub cache_limit: usize,
    /// `cache`: path of the kernel's memory pressure report (Linux PSI). While tasks stall on memory in more
    /// than a tenth of the last ten seconds, all idle memory is released.
    pub pressure: PathBuf,
    /// `all-physical`: permits the peer access to all buffer memory. The strategy is rejected otherwise.
    pub trust_peer: bool,
}

impl Settings {
    /// The default settings of a strategy: 512 windows of 1 MiB (TR06), 256 MiB of cached buffers, an
    /// untrusted peer.
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            invalidation: Invalidation::AtOnce,
            windows: 512,
            window_bytes: 1 << 20,
            cache_limit: 256 << 20,
            pressure: "/proc/pressure/memory".into(),
            trust_peer: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_as_text() {
        for s in Strategy::ALL {
            assert_eq!(s.to_string().parse(), Ok(s));
        }
        assert!("fmr".parse::<Strategy>().unwrap_err().contains("all-physical"));
        for i in [Invalidation::AtOnce, Invalidation::Batched(7)] {
            assert_eq!(i.to_string().parse(), Ok(i));
        }
        for bad in ["batched", "batched:0", "batched:x", "never"] {
            assert!(bad.parse::<Invalidation>().unwrap_err().contains("batched:N"));
        }
    }
}
