//! How long attributes and names are believed.

use std::time::Duration;

use millrace_nfs::v3::{Fattr, FileType, WccAttr};
use millrace_runtime::{Instant, RuntimeRef};

use crate::options::{LookupCache, MountOptions};

/// The times of mount(8), and the clock that they are measured with.
#[derive(Clone)]
pub(crate) struct Times {
    rt: RuntimeRef,
    regular: (Duration, Duration),
    directory: (Duration, Duration),
    names: LookupCache,
}

impl Times {
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
    pub(crate) fn believes_files(&self) -> bool {
        !self.regular.0.is_zero()
    }

    /// How long a name in a directory with these attributes is believed.
    pub(crate) fn name(&self, dir: &Cached) -> Duration {
        if self.names == LookupCache::None { Duration::ZERO } else { dir.life }
    }

    /// How long it is believed that a name is not there.
    pub(crate) fn absence(&self, dir: &Cached) -> Duration {
        if self.names == LookupCache::All { dir.life } else { Duration::ZERO }
    }
}

/// Attributes and how long they hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cached {
    pub(crate) attributes: Fattr,
    since: Instant,
    life: Duration,
    /// Since when they hold so long.
    steady: Instant,
    /// Nothing has changed since that we know of.
    valid: bool,
}

impl Cached {
    pub(crate) fn new(attributes: Fattr, times: &Times) -> Self {
        let now = times.now();
        let life = times.range(attributes.file_type).0;
        Self { attributes, since: now, life, steady: now, valid: true }
    }

    /// Takes newer attributes; they hold twice as long when they have held once.
    pub(crate) fn update(&mut self, attributes: Fattr, times: &Times) {
        let (min, max) = times.range(attributes.file_type);
        let now = times.now();
        if WccAttr::from(&self.attributes) != WccAttr::from(&attributes) {
            (self.life, self.steady) = (min, now);
        } else if now.duration_since(self.steady) >= self.life {
            (self.life, self.steady) = ((self.life * 2).clamp(min, max), now);
        }
        (self.attributes, self.since, self.valid) = (attributes, now, true);
    }

    /// Takes attributes that may be old already.
    pub(crate) fn doubt(&mut self, attributes: Fattr, times: &Times) {
        (self.attributes, self.since, self.valid) = (attributes, times.now(), false);
    }

    pub(crate) fn invalidate(&mut self) {
        self.valid = false;
    }

    /// Whether the server was asked so long ago that they would no longer hold.
    pub(crate) fn is_due(&self, times: &Times) -> bool {
        times.now().duration_since(self.since) >= self.life
    }

    /// How much longer they hold; `None`: no longer.
    pub(crate) fn left(&self, times: &Times) -> Option<Duration> {
        if !self.valid {
            return None;
        }
        self.life.checked_sub(times.now().duration_since(self.since)).filter(|d| !d.is_zero())
    }
}
