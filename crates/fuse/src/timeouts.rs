//! Attribute and dentry cache timeouts.

use std::time::Duration;

use millrace_client::ops::{Attributes, FileType, WccAttr};
use millrace_runtime::{Instant, RuntimeRef};

use crate::options::{LookupCache, MountOptions};

/// Cache timeouts from the mount options, and the clock that measures them.
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

    pub(crate) fn now(&self) -> Instant {
        self.rt.now()
    }

    fn range(&self, kind: FileType) -> (Duration, Duration) {
        if kind == FileType::Directory { self.directory } else { self.regular }
    }

    /// Whether attributes of files are cached at all.
    pub(crate) fn caches_file_attrs(&self) -> bool {
        !self.regular.0.is_zero()
    }

    /// Timeout of a name in a directory with these attributes.
    pub(crate) fn name_timeout(&self, dir: &CachedAttrs) -> Duration {
        if self.names == LookupCache::None { Duration::ZERO } else { dir.timeout }
    }

    /// Timeout of a negative entry in a directory with these attributes.
    pub(crate) fn negative_timeout(&self, dir: &CachedAttrs) -> Duration {
        if self.names == LookupCache::All { dir.timeout } else { Duration::ZERO }
    }
}

/// Cached attributes and their timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedAttrs {
    pub(crate) attributes: Attributes,
    fetched: Instant,
    timeout: Duration,
    /// Time of the last change of `timeout`.
    unchanged_since: Instant,
    /// No change is known since the attributes were fetched.
    valid: bool,
}

impl CachedAttrs {
    pub(crate) fn new(attributes: Attributes, timeouts: &CacheTimeouts) -> Self {
        let now = timeouts.now();
        let timeout = timeouts.range(attributes.file_type).0;
        Self { attributes, fetched: now, timeout, unchanged_since: now, valid: true }
    }

    /// Caches newer attributes. The timeout doubles if the attributes are unchanged for a whole timeout.
    pub(crate) fn update(&mut self, attributes: Attributes, timeouts: &CacheTimeouts) {
        let (min, max) = timeouts.range(attributes.file_type);
        let now = timeouts.now();
        if WccAttr::from(&self.attributes) != WccAttr::from(&attributes) {
            (self.timeout, self.unchanged_since) = (min, now);
        } else if now.duration_since(self.unchanged_since) >= self.timeout {
            (self.timeout, self.unchanged_since) = ((self.timeout * 2).clamp(min, max), now);
        }
        (self.attributes, self.fetched, self.valid) = (attributes, now, true);
    }

    /// Stores attributes that may already be outdated.
    pub(crate) fn update_stale(&mut self, attributes: Attributes, timeouts: &CacheTimeouts) {
        (self.attributes, self.fetched, self.valid) = (attributes, timeouts.now(), false);
    }

    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Makes the timeout begin again, unless a change is known. Returns whether it does.
    pub(crate) fn renew(&mut self, timeouts: &CacheTimeouts) -> bool {
        if self.valid {
            self.fetched = timeouts.now();
        }
        self.valid
    }

    /// Makes the attributes expire at once.
    pub(crate) fn expire(&mut self) {
        (self.timeout, self.valid) = (Duration::ZERO, false);
    }

    /// Whether the timeout has passed since the attributes were fetched.
    pub(crate) fn is_expired(&self, timeouts: &CacheTimeouts) -> bool {
        timeouts.now().duration_since(self.fetched) >= self.timeout
    }

    /// Remaining validity; `None` if the attributes are invalid or expired.
    pub(crate) fn remaining(&self, timeouts: &CacheTimeouts) -> Option<Duration> {
        if !self.valid {
            return None;
        }
        self.timeout.checked_sub(timeouts.now().duration_since(self.fetched)).filter(|d| !d.is_zero())
    }
}
