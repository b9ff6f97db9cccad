//! The copy of one file: content, checksum, attributes, final name.

use crate::{
    Error, Metadata, Preserve, Replace,
    control::Event,
    data::{self, Content, Flow},
    tree::{Directory, Existing, FileKind, Lost, Source, Target, Xattrs},
};

/// Time limit of a call in flight when the copy is stopped.
const LAST_CALL: std::time::Duration = std::time::Duration::from_secs(5);

/// What a link or a file of a synchronised tree does not replace.
const OTHER: &str = "a device, socket or named pipe, which is not replaced";

/// Options for one file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileOptions {
    pub(crate) verify: bool,
    pub(crate) atomic: bool,
    pub(crate) preserve: Preserve,
    pub(crate) replace: Replace,
    pub(crate) dry_run: bool,
}

/// The place of a copy at the target.
#[derive(Debug, Clone)]
pub(crate) struct Place<N> {
    pub(crate) dir: Directory<N>,
    pub(crate) name: Vec<u8>,
    /// The object that exists there, if that is known already.
    pub(crate) existing: Option<Option<Existing<N>>>,
}

impl<N: Clone + Send + Sync> Place<N> {
    /// The object that exists there, which is looked up once.
    pub(crate) async fn existing<T: Target<Node = N>>(
        &mut self,
        target: &T,
    ) -> Result<Option<Existing<N>>, Error> {
        let existing = match self.existing.take() {
            Some(existing) => existing,
            None if self.dir.created => None,
            None => target.find(&self.dir.node, &self.name).await?,
        };
        Ok(self.existing.insert(existing).clone())
    }

    /// Checks that a rename or link may replace the object that exists there.
    pub(crate) async fn check_replaceable<T: Target<Node = N>>(&mut self, target: &T) -> Result<(), Error> {
        match self.existing(target).await?.map(|existing| existing.meta.kind) {
            Some(FileKind::Directory) => Err(Error::TargetIsDirectory),
            Some(FileKind::Special) => Err(Error::SpecialTarget(OTHER)),
            _ => Ok(()),
        }
    }
}

/// A copied file, or an existing one that was not replaced.
pub(crate) struct Done<N> {
    pub(crate) node: N,
    pub(crate) bytes: u64,
    pub(crate) lost: Lost,
    /// The [`Metadata::id`] of a file that was not replaced.
    pub(crate) skipped: Option<(u64, u64)>,
}

/// Whether a copy that gets the attributes `new` replaces an object with the attributes `old`.
pub(crate) fn replaces(replace: Replace, new: &Metadata, old: &Metadata) -> bool {
    match replace {
        Replace::Always => true,
        Replace::Never => false,
        Replace::Older => old.mtime < new.mtime && !old.mtime.is_rounded(new.mtime),
        Replace::Different => {
            let size = |m: &Metadata| (m.kind == FileKind::File).then_some(m.size);
            old.kind != new.kind || size(old) != size(new) || !old.mtime.is_rounded(new.mtime)
        }
    }
}

/// Whether a copy of `meta` gets other times.
pub(crate) fn loses_times<T: Target>(target: &T, meta: &Metadata, preserve: Preserve) -> bool {
    let kept = target.kept(meta, preserve);
    (kept.atime, kept.mtime) != (meta.atime, meta.mtime)
}

/// Decides whether the file is copied to `place`. If not, because of the file that exists there or in a dry run, it is done.
pub(crate) async fn without_copy<T: Target>(
    meta: &Metadata,
    (target, place): (&T, &mut Place<T::Node>),
    options: FileOptions,
) -> Result<Option<Done<T::Node>>, Error> {
    let FileOptions { preserve, replace, dry_run, .. } = options;
    match place.existing(target).await? {
        Some(Existing { meta: Metadata { kind: FileKind::Directory, .. }, .. }) => {
            Err(Error::TargetIsDirectory)
        }
        Some(Existing { node, meta: old, .. }) if !replaces(replace, &target.kept(meta, preserve), &old) => {
            if replace == Replace::Different && !dry_run {
                set_attributes(target, &node, (meta, &old), preserve).await?;
            }
            Ok(Some(Done { node, bytes: 0, lost: Lost::default(), skipped: Some(old.id) }))
        }
        // There is no new object: the node is not used.
        _ if dry_run => Ok(Some(Done {
            node: place.dir.node.clone(),
            bytes: meta.size,
            lost: Lost::default(),
            skipped: None,
        })),
        _ => Ok(None),
    }
}

/// Sets the attributes of an existing object, which has the attributes `old`, if a copy from `meta` has others.
pub(crate) async fn set_attributes<T: Target>(
    target: &T,
    node: &T::Node,
    (meta, old): (&Metadata, &Metadata),
    preserve: Preserve,
) -> Result<(), Error> {
    let new = target.kept(meta, preserve);
    let has_owner = !preserve.owner || (new.uid, new.gid) == (old.uid, old.gid);
    if has_owner && new.mode == old.mode && old.mtime.is_rounded(new.mtime) {
        return Ok(());
    }
    target.set_meta(node, meta, preserve).await
}

/// Copies one regular file to its place. Removes the temporary file of a new file after an error.
pub(crate) async fn copy<S: Source, T: Target>(
    (source, node, meta): (&S, &S::Node, &Metadata),
    (target, place): (&T, &mut Place<T::Node>),
    options: FileOptions,
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    let stopped = || flow.control.stopped();
    let from = tokio::select! {
        from = source.open(node) => from?,
        () = stopped() => return Err(Error::Stopped),
    };
    let content = Content::of(source, &from, meta).await?;
    let xattrs = source.xattrs(node, options.preserve.xattrs).await?;
    if let Some(existing) = in_place(place.existing(target).await?, meta, options)? {
        let is_file = existing.meta.kind == FileKind::File;
        let written = async {
            let to = target.open_existing(&existing).await?;
            fill((source, &from, meta), (target, &to), (content, &xattrs, options), flow).await
        };
        flow.control.check()?;
        let outcome = tokio::select! {
            outcome = written => outcome,
            () = stopped() => Err(Error::Stopped),
        };
        return outcome
            .map_err(|e| if is_file && matches!(e, Error::Stopped) { Error::Incomplete } else { e });
    }
    let (dir, name) = (&place.dir.node, place.name.as_slice());
    let is_small = (1..=target.put_limit().min(flow.record as u64)).contains(&meta.size);
    if !options.verify && is_small && content.is_whole() && xattrs.kept.is_empty() {
        let mut put = std::pin::pin!(put((source, &from, meta), (target, dir, name), options, flow));
        let outcome = tokio::select! {
            outcome = &mut put => outcome,
            // A call in flight removes its temporary file if it fails. The server may be unreachable.
            () = stopped() => tokio::time::timeout(LAST_CALL, put).await.unwrap_or(Err(Error::Stopped)),
        };
        if let Some(done) = outcome? {
            return Ok(Done { lost: xattrs.lost, ..done });
        }
    }
    let to = target.create(dir, name).await?;
    let outcome = tokio::select! {
        outcome = fill((source, &from, meta), (target, &to), (content, &xattrs, options), flow) => outcome,
        () = stopped() => Err(Error::Stopped),
    };
    match outcome {
        Ok(done) => Ok(done),
        Err(e) => {
            target.discard(&to).await;
            Err(e)
        }
    }
}

/// Returns `existing` if a copy of the file `source` is written into it, and `None` if a new file gets its name.
fn in_place<N>(
    existing: Option<Existing<N>>,
    source: &Metadata,
    options: FileOptions,
) -> Result<Option<Existing<N>>, Error> {
    let Some(existing) = existing else { return Ok(None) };
    match existing.meta.kind {
        FileKind::Directory => Err(Error::TargetIsDirectory),
        // Below a copied directory, where the source determines the names, a link is not followed.
        FileKind::Symlink => Ok(None),
        FileKind::File if options.atomic && existing.through_link => {
            Err(Error::SpecialTarget("a symbolic link, which an atomic replacement does not follow"))
        }
        FileKind::File if options.atomic => Ok(None),
        FileKind::File if is_same(source, &existing.meta) => Err(Error::SameFile),
        FileKind::Special if options.replace == Replace::Different => Err(Error::SpecialTarget(OTHER)),
        FileKind::File | FileKind::Special => Ok(Some(existing)),
    }
}

/// Whether the attributes are those of one file, also if one of them is local and the other one from a server that exports
/// it, so that the IDs of the file system differ. No user can set the change time.
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    let of = |m: &Metadata| (m.kind, m.id.1, m.size, m.mtime, m.ctime);
    of(a) == of(b)
}

/// Copies a small file in one step, if the target can do so.
async fn put<S: Source, T: Target>(
    (source, from, meta): (&S, &S::Reader, &Metadata),
    (target, dir, name): (&T, &T::Node, &[u8]),
    options: FileOptions,
    flow: &Flow,
) -> Result<Option<Done<T::Node>>, Error> {
    let _permit = flow.permit().await?;
    let data = source.read(from, 0, meta.size as usize).await?;
    if (data.len() as u64) < meta.size {
        return Err(Error::Shrunk);
    }
    flow.control.check()?;
    let node = target.put(dir, name, &data, (meta, options.preserve)).await?;
    Ok(node.map(|node| {
        flow.control.report(Event::Written { bytes: data.len() });
        Done { node, bytes: meta.size, lost: Lost::default(), skipped: None }
    }))
}

async fn fill<S: Source, T: Target>(
    (source, from, meta): (&S, &S::Reader, &Metadata),
    (target, to): (&T, &T::Writer),
    (mut content, xattrs, options): (Content, &Xattrs, FileOptions),
    flow: &Flow,
) -> Result<Done<T::Node>, Error> {
    if target.is_written_in_order(to) {
        if options.verify {
            return Err(Error::SpecialTarget("a device or pipe, whose data cannot be verified"));
        }
        content = Content::whole(content.size);
    }
    let (from, into) = ((source, from), (target, to));
    // The checksum is that of the data that was read from the source.
    let within = match options.verify {
        true => None,
        false => data::copy_within(from, into, &content, flow).await?,
    };
    let copied = match within {
        Some(copied) => copied,
        None => data::transfer(from, into, &content, options.verify, flow).await?,
    };
    if let Some(sent) = copied.checksum {
        let back = target.read_back(to).await?;
        if content.size == 0 {
            content = Content::whole(copied.bytes);
        }
        if !data::is_equal(target, &back, (&content, sent), flow).await? {
            return Err(Error::Mismatch);
        }
    }
    let mut lost = xattrs.lost;
    if !xattrs.kept.is_empty() {
        lost.xattrs |= !target.set_xattrs(to, &xattrs.kept).await?;
    }
    let node = target.publish(to, meta, options.preserve).await?;
    Ok(Done { node, bytes: copied.bytes, lost, skipped: None })
}
