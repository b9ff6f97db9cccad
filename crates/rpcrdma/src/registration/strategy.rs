//! The names of the strategies, and their settings.

use std::{fmt, path::PathBuf, str::FromStr};

pub(super) const NOT_TRUSTED: &str = "registration all-physical lets the server reach all memory for buffers at any \
     time; say that you trust it (--i-trust-the-server), or use another strategy";

pub(super) const NEVER_HERE: &str = "registration all-physical would let every client read all memory of the server \
     in the Read-Read design; choose another strategy";

/// How the memory of calls becomes reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Registers for each operation and deregisters after it. Works with any memory and keeps nothing. The peer reaches
    /// the bytes of a call, with the one right that the call needs, from its Send until its reply is taken apart.
    Dynamic,
    /// Binds a window out of a pool that is allocated when the connection is made, and invalidates it after the
    /// operation; registers as [`Self::Dynamic`] does when no window is free or the memory is larger than one. The peer
    /// reaches what it reaches with [`Self::Dynamic`], for as long; [`Invalidation::Batched`] says what that adds. A
    /// window's tag keeps its 24 bits of index for the connection's life and changes its 8 bits of key each time.
    Fast,
    /// Keeps buffers registered, by size class, and copies data into and out of them. The peer reaches these buffers as
    /// long as they are kept, but never memory of the caller. A buffer holds nothing but data of calls of the same
    /// connection in the same direction: what this peer was sent, or sent itself. One that it may read holds zeros at
    /// first.
    Cache,
    /// One tag for the whole arena, no registration at all; segments end at borders of pages. The peer reaches, with
    /// both rights and for the life of the connection, *all memory for buffers of this process*, other connections'
    /// included; for peers that are trusted alone. (The iWARP provider limits it to the bytes of open calls.)
    AllPhysical,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dynamic, Self::Fast, Self::Cache, Self::AllPhysical];

    /// Its name: `dynamic`, `fast`, `cache`, `all-physical`.
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

/// When [`Strategy::Fast`] invalidates a window whose call is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Invalidation {
    /// Before the caller has its memory back.
    #[default]
    AtOnce,
    /// Together with others, once so many are done (at least 1) or none is free. Until then **a peer can still write to
    /// memory that has a new owner**: the window of vulnerability of the vendors' variant in TR06 and Designing 2007.
    /// It is limited in number, not in time. Windows that the peer may only read are invalidated at once.
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
        known.ok_or_else(|| format!("{s:?} is no way to invalidate: use at-once or batched:N with N above 0"))
    }
}

/// A strategy's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Which strategy.
    pub strategy: Strategy,
    /// `fast`: when windows are invalidated.
    pub invalidation: Invalidation,
    /// `fast`: windows of each connection.
    pub windows: usize,
    /// `fast`: bytes of the largest region that a window takes.
    pub window_bytes: usize,
    /// `cache`: the most bytes that stay registered, over all connections. From seven eighths of it on, what is not in
    /// use is let go down to half of it.
    pub cache_limit: usize,
    /// `cache`: where the kernel says how much processes wait for memory (Linux PSI). While more than a tenth of the
    /// last ten seconds was such waiting, all that is not in use is let go.
    pub pressure: PathBuf,
    /// `all-physical`: the peer may reach all memory for buffers. Without this the strategy is refused.
    pub trust_peer: bool,
}

impl Settings {
    /// A strategy with the settings that it has where nothing else is said: 512 windows of 1 MiB (TR06), 256 MiB of
    /// kept buffers, no trust.
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
    fn names_are_read_and_written() {
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
