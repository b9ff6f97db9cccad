//! The limit of memory of the control group of this process (cgroups(7)), which containers have.

use std::{fs, path::Path};

use millrace_buffer::ByteSize;
use millrace_server::{Backend, Config};

/// The warning that the server may need more memory than the control group allows.
pub(crate) fn warning(config: &Config) -> Option<String> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    excess(config, limit(Path::new("/sys/fs/cgroup"), &membership)?)
}

/// Writes the [`warning`] to the log.
pub(crate) fn warn_of_limit(config: &Config) {
    if let Some(warning) = warning(config) {
        tracing::warn!("{warning}");
    }
}

/// Says that the server may need more than `limit` bytes, if it may.
fn excess(config: &Config, limit: u64) -> Option<String> {
    let buffers = config.limits.memory.0;
    let exports: Vec<u64> = config.exports.iter().filter_map(|e| capacity(&e.backend)).collect();
    // Memory exports have an eighth of the buffers for WRITEs that are placed in their final location.
    let placed = if exports.is_empty() { 0 } else { buffers / 8 };
    let needed = exports.into_iter().fold(buffers.saturating_add(placed), u64::saturating_add);
    (needed > limit).then(|| {
        format!(
            "network buffers (limits.memory) and exports in memory may take {}, and the control group of this process \
             has a limit of {}, above which the kernel kills it: raise that limit, or lower limits.memory or the \
             sizes of the exports",
            ByteSize(needed).human(),
            ByteSize(limit).human()
        )
    })
}

/// The size of an export in memory.
fn capacity(backend: &Backend) -> Option<u64> {
    match backend {
        Backend::Memory { capacity } => Some(capacity.0),
        Backend::Local { .. } => None,
    }
}

/// The lowest limit of the groups in `membership` (/proc/self/cgroup) and of those that contain them, in bytes.
/// `hierarchy` is where the hierarchies of both versions are mounted.
fn limit(hierarchy: &Path, membership: &str) -> Option<u64> {
    let groups = membership.lines().filter_map(|line| {
        let (_, group) = line.split_once(':')?;
        let (controllers, path) = group.split_once(':')?;
        match controllers {
            "" => Some((hierarchy.to_owned(), "memory.max", path)),
            _ if controllers.split(',').any(|name| name == "memory") => {
                Some((hierarchy.join("memory"), "memory.limit_in_bytes", path))
            }
            _ => None,
        }
    });
    groups
        .flat_map(|(root, file, path)| {
            // A path in another namespace does not exist here, and its root is that of this process.
            let below = Path::new(path.trim_start_matches('/'));
            below.ancestors().map(|group| root.join(group).join(file)).collect::<Vec<_>>()
        })
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use millrace_server::ExportConfig;

    use super::*;

    #[test]
    fn the_lowest_limit_of_the_groups_above_a_process_holds() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let limit = |membership: &str| limit(dir.path(), membership);
        assert_eq!(limit("0::/pods/a\n"), None);
        write("pods/a/memory.max", "max\n");
        write("pods/memory.max", "2147483648\n");
        write("memory.max", "4294967296\n");
        assert_eq!(limit("0::/pods/a\n"), Some(2 << 30));
        // As in a container, whose group is the root of its namespace, or has a path outside of it.
        assert_eq!(limit("0::/\n"), Some(4 << 30));
        assert_eq!(limit("0::/../other\n"), Some(4 << 30));
        write("memory/x/memory.limit_in_bytes", "1048576\n");
        assert_eq!(limit("9:name=systemd:/x\n4:cpu,memory:/x\n0::/\n"), Some(1 << 20));
        assert_eq!(limit(""), None);
    }

    #[test]
    fn exports_and_buffers_above_the_limit_are_reported() {
        let gib = 1 << 30;
        let mut config = Config::default();
        config.limits.memory = ByteSize(gib);
        assert_eq!(excess(&config, gib), None);
        assert!(excess(&config, gib - 1).is_some());
        let memory = |bytes| Backend::Memory { capacity: ByteSize(bytes) };
        config.exports = vec![ExportConfig::new("/a", memory(gib)), ExportConfig::new("/b", memory(gib))];
        assert_eq!(excess(&config, 3 * gib + gib / 8), None);
        let warning = excess(&config, 3 * gib).unwrap();
        assert!(warning.contains("3.1 GiB") && warning.contains("limit of 3 GiB"), "{warning}");
    }
}
