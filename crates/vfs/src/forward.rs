//! Forwarding of calls to another file system.

/// Implements methods of [`FileSystem`](crate::FileSystem) that call the same method of a field: for a file
/// system that changes some calls of another one. A method that is neither written nor listed has its default,
/// which does not forward.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use millrace_vfs::{FileSystem, FileSystemRef, Handle, Identity, Op, Read};
///
/// /// A read-only view of a file system, which counts READs.
/// struct Counting {
///     inner: FileSystemRef,
///     reads: AtomicU64,
/// }
///
/// impl FileSystem for Counting {
///     fn read(&self, caller: &Identity, file: &Handle, offset: u64, count: u32) -> Op<Read> {
///         self.reads.fetch_add(1, Ordering::Relaxed);
///         self.inner.read(caller, file, offset, count)
///     }
///
///     millrace_vfs::forward!(inner: root getattr lookup readdir readlink stat seek);
/// }
/// ```
#[macro_export]
macro_rules! forward {
    (@ $to:tt $name:ident($($arg:ident: $type:ty),*) -> $out:ty) => {
        fn $name(&self, $($arg: $type),*) -> $out {
            self.$to.$name($($arg),*)
        }
    };
    // The calls of a caller on a file or directory.
    (@call $to:tt $name:ident($($arg:ident: $type:ty),*) -> $out:ty) => {
        $crate::forward!(@ $to $name(caller: &$crate::Identity, on: &$crate::Handle $(, $arg: $type)*) -> $crate::Op<$out>);
    };
    (@root $to:tt) => { $crate::forward!(@ $to root() -> $crate::Handle); };
    (@info $to:tt) => { $crate::forward!(@ $to info() -> $crate::FsInfo); };
    (@stat $to:tt) => { $crate::forward!(@ $to stat() -> $crate::Op<$crate::FsStat>); };
    (@write_verifier $to:tt) => { $crate::forward!(@ $to write_verifier() -> [u8; 8]); };
    (@getattr $to:tt) => { $crate::forward!(@ $to getattr(file: &$crate::Handle) -> $crate::Op<$crate::Attr>); };
    (@setattr $to:tt) => {
        $crate::forward!(@call $to setattr(set: &$crate::SetAttr, guard: Option<$crate::Time>) -> $crate::Wcc);
    };
    (@lookup $to:tt) => { $crate::forward!(@call $to lookup(name: &[u8]) -> ($crate::Handle, $crate::Attr)); };
    (@access $to:tt) => {
        $crate::forward!(@call $to access(wanted: $crate::Access) -> ($crate::Access, $crate::Attr));
    };
    (@readlink $to:tt) => { $crate::forward!(@call $to readlink() -> (Vec<u8>, $crate::Attr)); };
    (@read $to:tt) => { $crate::forward!(@call $to read(offset: u64, count: u32) -> $crate::Read); };
    (@write $to:tt) => {
        $crate::forward!(@call $to write(at: u64, data: $crate::Views, stable: $crate::Stability) -> $crate::Written);
    };
    (@commit $to:tt) => { $crate::forward!(@call $to commit(offset: u64, count: u32) -> $crate::Wcc); };
    (@allocate $to:tt) => { $crate::forward!(@call $to allocate(offset: u64, length: u64) -> $crate::Wcc); };
    (@deallocate $to:tt) => { $crate::forward!(@call $to deallocate(offset: u64, length: u64) -> $crate::Wcc); };
    (@zero $to:tt) => { $crate::forward!(@call $to zero(offset: u64, length: u64) -> $crate::Wcc); };
    (@seek $to:tt) => {
        $crate::forward!(@call $to seek(range: std::ops::Range<u64>, target: $crate::SeekTarget) -> Option<u64>);
    };
    (@copy $to:tt) => {
        $crate::forward!(
            @call $to copy(offset: u64, destination: &$crate::Handle, at: u64, length: u64) -> $crate::Copied
        );
    };
    (@clone_range $to:tt) => {
        $crate::forward!(
            @call $to clone_range(offset: u64, destination: &$crate::Handle, at: u64, length: u64) -> $crate::Wcc
        );
    };
    (@xattr $to:tt) => { $crate::forward!(@call $to xattr(name: &[u8]) -> Vec<u8>); };
    (@set_xattr $to:tt) => {
        $crate::forward!(@call $to set_xattr(name: &[u8], value: &[u8], how: $crate::SetXattr) -> $crate::Wcc);
    };
    (@list_xattrs $to:tt) => { $crate::forward!(@call $to list_xattrs() -> Vec<Vec<u8>>); };
    (@remove_xattr $to:tt) => { $crate::forward!(@call $to remove_xattr(name: &[u8]) -> $crate::Wcc); };
    (@hold $to:tt) => {
        $crate::forward!(@ $to hold(file: &$crate::Handle) -> $crate::Op<Option<$crate::Hold>>);
    };
    (@create $to:tt) => {
        $crate::forward!(@call $to create(name: &[u8], how: &$crate::CreateHow) -> $crate::Created);
    };
    (@create_node $to:tt) => {
        $crate::forward!(
            @call $to create_node(name: &[u8], node: &$crate::NewNode, set: &$crate::SetAttr) -> $crate::Created
        );
    };
    (@remove $to:tt) => { $crate::forward!(@call $to remove(name: &[u8]) -> $crate::Wcc); };
    (@rmdir $to:tt) => { $crate::forward!(@call $to rmdir(name: &[u8]) -> $crate::Wcc); };
    (@rename $to:tt) => {
        $crate::forward!(
            @call $to rename(from: &[u8], to_dir: &$crate::Handle, to: &[u8]) -> ($crate::Wcc, $crate::Wcc)
        );
    };
    (@link $to:tt) => {
        $crate::forward!(@call $to link(dir: &$crate::Handle, name: &[u8]) -> ($crate::Attr, $crate::Wcc));
    };
    (@readdir $to:tt) => {
        $crate::forward!(
            @call $to readdir(cookie: u64, verifier: [u8; 8], limits: $crate::ReadDirLimits) -> $crate::DirPage
        );
    };
    ($to:tt: $($method:ident)*) => { $($crate::forward!(@$method $to);)* };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{
        FileSystem, FileSystemRef,
        conformance::{self, Subject},
        memory::{MemoryConfig, MemoryFs},
    };

    struct Forwarding(FileSystemRef);

    impl FileSystem for Forwarding {
        forward!(0: root info stat getattr setattr lookup access readlink read write commit allocate deallocate zero
            seek copy clone_range xattr set_xattr list_xattrs remove_xattr hold write_verifier create create_node remove rmdir rename link readdir);
    }

    #[test]
    fn a_file_system_that_forwards_all_calls_conforms() {
        let report = conformance::run(|resources| {
            let config = MemoryConfig::new(resources.arena.clone(), Arc::clone(&resources.runtime));
            Subject::new(Arc::new(Forwarding(MemoryFs::new(config)))).stress_calls(100)
        });
        report.assert_passed();
        assert!(report.skipped().is_empty(), "{:?}", report.skipped());
    }
}
