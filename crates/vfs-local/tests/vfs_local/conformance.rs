//! The conformance suite of `millrace-vfs` on local directories.

use millrace_vfs::conformance::{self, Capability, Resources, Subject};
use millrace_vfs_local::{HandleMode, IoMode, KeySource, LocalConfig, LocalFs};

/// A new local directory in `parent` or else in the directory for temporary files.
fn open(resources: &Resources, handles: HandleMode, io: IoMode, parent: Option<&str>) -> Subject {
    let dir = parent.and_then(|parent| tempfile::tempdir_in(parent).ok());
    let dir = dir.unwrap_or_else(|| tempfile::tempdir().unwrap());
    let config = LocalConfig {
        handles,
        io,
        key: KeySource::Bytes([5; 16]),
        sync_metadata: false, // Tested elsewhere; slow.
        ..LocalConfig::new(dir.path(), resources.arena.clone())
    };
    let subject = Subject::new(LocalFs::open(config).unwrap()).keep(dir).stress_calls(300);
    let subject = subject.without(Capability::FineTimes);
    if rustix::process::geteuid().is_root() {
        subject
    } else {
        subject.without(Capability::Permissions).without(Capability::Devices)
    }
}

fn conforms(handles: HandleMode, io: IoMode, parent: Option<&str>) {
    let report = conformance::run(|resources| open(resources, handles, io, parent));
    println!("{report}");
    report.assert_passed();
}

#[test]
fn local_directories_conform() {
    conforms(HandleMode::Auto, IoMode::Auto, None);
}

#[test]
fn local_directories_conform_without_kernel_handles_and_io_uring() {
    conforms(HandleMode::Index, IoMode::Blocking, None);
}

/// tmpfs has other handles and cookies.
#[test]
fn local_directories_on_tmpfs_conform() {
    conforms(HandleMode::Auto, IoMode::Auto, Some("/dev/shm"));
}
