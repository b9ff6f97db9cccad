//! Settings of NFSv4.

use std::time::Duration;

use millrace_nfs::v4::OPAQUE_LIMIT;

use crate::error::InvalidSetting;

/// Settings of NFSv4.1 and 4.2.
///
/// Servers with the same [`server_owner`](Self::server_owner) and [`server_scope`](Self::server_scope) are one server for
/// clients. Of those, at most one may run at a time, and each start must have a larger epoch than all earlier ones: the
/// servers share a state directory, or have different [`boot_epoch`](Self::boot_epoch)s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nfs4Settings {
    /// Duration of a lease in seconds, 1 to 3600. A client that is silent for longer loses its locks and opens when another
    /// client needs what they exclude. After a restart the server waits for as long, at most, until its earlier clients
    /// have reclaimed their locks and opens.
    pub lease: u64,
    /// Major ID of the server owner, of 1 to 1024 bytes. By default it is derived from the secret in the state directory,
    /// and random without one.
    pub server_owner: Option<String>,
    /// The server scope, of 1 to 1024 bytes. By default it is the server owner.
    pub server_scope: Option<String>,
    /// Number of this start, from which client IDs are derived together with a random secret. With a state directory, a start
    /// gets the next larger number that no earlier start had. By default it is the time of the start in seconds since 1970.
    pub boot_epoch: Option<u32>,
}

impl Default for Nfs4Settings {
    fn default() -> Self {
        Self { lease: 90, server_owner: None, server_scope: None, boot_epoch: None }
    }
}

impl Nfs4Settings {
    /// [`Self::lease`] as a duration.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.lease)
    }

    /// The settings that are out of range.
    pub(crate) fn invalid(&self) -> Vec<InvalidSetting> {
        let mut invalid = Vec::new();
        let mut add = |key: &str, what| invalid.push(InvalidSetting::new(format!("nfs4.{key}"), what));
        if !(1..=3600).contains(&self.lease) {
            add("lease", format!("nfs4.lease is {}; it must be 1 to 3600 seconds", self.lease));
        }
        for (key, value) in [("server_owner", &self.server_owner), ("server_scope", &self.server_scope)] {
            let length = value.as_ref().map_or(1, String::len);
            if !(1..=OPAQUE_LIMIT).contains(&length) {
                add(key, format!("nfs4.{key} has {length} bytes; it must have 1 to {OPAQUE_LIMIT}"));
            }
        }
        invalid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_rejected_with_their_key() {
        let default = Nfs4Settings::default;
        let long = Some("x".repeat(OPAQUE_LIMIT + 1));
        for (settings, key) in [
            (Nfs4Settings { lease: 0, ..default() }, "nfs4.lease"),
            (Nfs4Settings { lease: 3601, ..default() }, "nfs4.lease"),
            (Nfs4Settings { server_owner: Some(String::new()), ..default() }, "nfs4.server_owner"),
            (Nfs4Settings { server_scope: long, ..default() }, "nfs4.server_scope"),
        ] {
            let [invalid] = settings.invalid().try_into().unwrap();
            assert_eq!(invalid.field, key);
            assert!(invalid.reason.contains(key), "{invalid}");
        }
        let widest = Some("x".repeat(OPAQUE_LIMIT));
        let all =
            Nfs4Settings { lease: 3600, server_owner: widest.clone(), server_scope: widest, ..default() };
        assert_eq!((default().invalid(), all.invalid()), (vec![], vec![]));
    }
}
