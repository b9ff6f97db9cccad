//! Copying, renaming and deleting.

use opendal_core::{ErrorKind, Operator};

use crate::{assert_content, content, kind, on_all};

#[test]
fn files_are_copied() {
    on_all(|op| async move {
        let (one, other) = (content(2_500_000, 1), content(1000, 2));
        op.write("🐂中文.docx", one.clone()).await.unwrap();
        op.write("other", other.clone()).await.unwrap();
        let copied = op.copy("🐂中文.docx", "new/dir/Français.docx").await.unwrap();
        assert_eq!(copied.content_length(), 2_500_000);
        assert_content(&op, "new/dir/Français.docx", &one).await;
        op.copy("🐂中文.docx", "other").await.unwrap();
        assert_content(&op, "other", &one).await;
        // The copy is another file.
        op.write("🐂中文.docx", other.clone()).await.unwrap();
        assert_content(&op, "other", &one).await;

        let mut copier = op.copier("other", "by copier").await.unwrap();
        while copier.next().await.unwrap().is_some() {}
        assert!(copier.next().await.unwrap().is_none());
        assert_content(&op, "by copier", &one).await;
        let mut aborted = op.copier("other", "aborted").await.unwrap();
        aborted.abort().await.unwrap();

        op.copy_with("other", "fresh").if_not_exists(true).await.unwrap();
        assert_content(&op, "fresh", &one).await;
        let existing = op.copy_with("🐂中文.docx", "fresh").if_not_exists(true).await;
        assert_eq!(kind(existing), ErrorKind::ConditionNotMatch);
        assert_content(&op, "fresh", &one).await;
        refuse_impossible(&op, async |from, to| op.copy(from, to).await.map(drop)).await;
    });
}

#[test]
fn files_are_renamed() {
    on_all(|op| async move {
        let (one, other) = (content(2_500_000, 1), content(1000, 2));
        op.write("one", one.clone()).await.unwrap();
        op.write("other", other.clone()).await.unwrap();
        op.rename("one", "new/dir/one").await.unwrap();
        assert_eq!(kind(op.stat("one").await), ErrorKind::NotFound);
        assert_content(&op, "new/dir/one", &one).await;
        op.rename("new/dir/one", "other").await.unwrap();
        assert_content(&op, "other", &one).await;
        assert!(!op.exists("new/dir/one").await.unwrap());

        op.rename_with("other", "fresh/file").if_not_exists(true).await.unwrap();
        assert!(!op.exists("other").await.unwrap());
        op.write("second", other.clone()).await.unwrap();
        let existing = op.rename_with("second", "fresh/file").if_not_exists(true).await;
        assert_eq!(kind(existing), ErrorKind::ConditionNotMatch);
        assert_content(&op, "second", &other).await;
        assert_content(&op, "fresh/file", &one).await;
        refuse_impossible(&op, async |from, to| op.rename(from, to).await).await;
    });
}

/// A copy or rename of what is no file, to what cannot be a file, and to itself.
async fn refuse_impossible(op: &Operator, change: impl AsyncFn(&str, &str) -> opendal_core::Result<()>) {
    op.create_dir("directory/").await.unwrap();
    op.write("file", "content").await.unwrap();
    for (from, to, expected) in [
        ("none", "target", ErrorKind::NotFound),
        ("none/file", "target", ErrorKind::NotFound),
        ("directory/", "target", ErrorKind::IsADirectory),
        ("directory", "target", ErrorKind::IsADirectory),
        ("file", "directory/", ErrorKind::IsADirectory),
        ("file", "file", ErrorKind::IsSameFile),
        ("file", "file/below", ErrorKind::NotADirectory),
    ] {
        assert_eq!(kind(change(from, to).await), expected, "{from} {to}");
        assert!(!op.exists("target").await.unwrap());
        assert_content(op, "file", b"content").await;
    }
}

#[test]
fn files_and_directories_are_deleted() {
    on_all(|op| async move {
        for missing in ["none", "none/", "none/file"] {
            op.delete(missing).await.unwrap();
        }
        op.write("dir/ !@#$%^&()_+-=;',.txt", "x").await.unwrap();
        op.delete("dir/ !@#$%^&()_+-=;',.txt").await.unwrap();
        op.delete("dir/").await.unwrap();
        assert!(!op.exists("dir/").await.unwrap());

        let paths: Vec<_> = (0..50).map(|n| format!("many/{n}")).collect();
        for path in &paths {
            op.write(path, "x").await.unwrap();
        }
        op.delete("many/").await.unwrap_err(); // Not empty.
        op.delete_iter(paths.clone()).await.unwrap();
        for path in &paths {
            assert!(!op.exists(path).await.unwrap(), "{path}");
        }

        for recursive in ["tree/", "tree", "/"] {
            for path in ["tree/a/b", "tree/a/c", "tree/d/e/f", "tree/g"] {
                op.write(path, "x").await.unwrap();
            }
            op.delete_with(recursive).recursive(true).await.unwrap();
            assert!(!op.exists("tree/").await.unwrap(), "{recursive}");
        }
        op.write("file", "x").await.unwrap();
        op.delete_with("file").recursive(true).await.unwrap();
        op.delete_with("none/").recursive(true).await.unwrap();
        assert!(!op.exists("file").await.unwrap());
    });
}
