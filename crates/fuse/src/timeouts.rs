//! How long attributes and names are believed.

use std::time::Duration;

use millrace_nfs::v3::{Fattr, FileType, WccAttr};
use millrace_runtime::{Instant, RuntimeRef};

use crate::options::{LookupCache, MountOptions};

/// The times of mount(8), and the clock that they are measured with.
#[derive(Clone)]
pub(crate) struct CacheTimeouts {
    rt: RuntimeRef,
    regular: (Duration, Duration),
    directory: (Duration, Duration),
    names: LookupCache,
}

impl CacheTimeouts {
    pub(crate) fn new(rt: RuntimeRef, o: &MountOptions) -> Self {
        let s = Duration::from_secs;
        let range = |min: u32, max: u32| (s(min.into()), s(max.max(min).into()));
        Self {
            rt,
            regular: range(o.acregmin, o.acregmax),
            directory: range(o.acdirmin, o.acdirmax),
            names: o.lookupcache,
        }
    }

    /// The present time.
    pub(crate) fn now(&self) -> Instant {
        self.rt.now()
    }

    fn range(&self, kind: FileType) -> (Duration, Duration) {
        if kind == FileType::Directory { self.directory } else { self.regular }
    }

    /// Whether attributes of files are believed at all.
    pub(crate) fn caches_file_attrs(&self) -> bool {
        !self.regular.0.is_zero()
    }

    /// How long a name in a directory with these attributes is believed.
    pub(crate) fn name_timeout(&self, dir: &CachedAttrs) -> Duration {
        if self.names == LookupCache::None { Duration::ZERO } else { dir.timeout }
    }

    /// How long it is believed that a name is not there.
    pub(crate) fn negative_timeout(&self, dir: &CachedAttrs) -> Duration {
        if self.names == LookupCache::All { dir.timeout } else { Duration::ZERO }
    }
}

/// Attributes and how long they hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedAttrs {
    pub(crate) attributes: Fattr,
    fetched: Instant,
    timeout: Duration,
    /// Since when they hold so long.
    unchanged_since: Instant,
    /// Nothing has changed since that we know of.
    valid: bool,
}

impl CachedAttrs {
    pub(crate) fn new(attributes: Fattr, timeouts: &CacheTimeouts) -> Self {
        let now = timeouts.now();
        let timeout = timeouts.range(attributes.file_type).0;
        Self { attributes, fetched: now, timeout, unchanged_since: now, valid: true }
    }

    /// Takes newer attributes; they hold twice as long when they have held once.
    pub(crate) fn update(&mut self, attributes: Fattr, timeouts: &CacheTimeouts) {
        let (min, max) = timeouts.range(attributes.file_type);
        let now = timeouts.now();
        if WccAttr::from(&self.attributes) != WccAttr::from(&attributes) {
            (self.timeout, self.unchanged_since) = (min, now);
        } else if now.duration_since(self.unchanged_since) >= self.timeout {
            (self.timeout, self.unchanged_since) = ((self.timeout * 2).clamp(min, max), now);
        }
        (self.attributes, self.fetched, self.valid) = (attributes, now, true);
    }

    /// Takes attributes that may be old already.
    pub(crate) fn update_stale(&mut self, attributes: Fattr, timeouts: &CacheTimeouts) {
        (self.attributes, self.fetched, self.valid) = (attributes, timeouts.now(), false);
    }

    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Whether the server was asked so long ago that they would no longer hold.
    pub(crate) fn is_expired(&self, timeouts: &CacheTimeouts) -> bool {
        timeouts.now().duration_since(self.fetched) >= self.timeout
    }

    /// How much longer they hold; `None`: no longer.
    pub(crate) fn remaining(&self, timeouts: &CacheTimeouts) -> Option<Duration> {
        if !self.valid {
            return None;
        }
        self.timeout.checked_sub(timeouts.now().duration_since(self.fetched)).filter(|d| !d.is_zero())
    }
}
