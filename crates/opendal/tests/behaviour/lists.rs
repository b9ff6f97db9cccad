//! Lists.

use opendal_core::{EntryMode, Operator};

use crate::on_all;

/// The sorted paths of a list.
async fn list(op: &Operator, path: &str, recursive: bool) -> Vec<String> {
    let entries = op.list_with(path).recursive(recursive).await.unwrap();
    let mut paths = Vec::new();
    for entry in entries {
        let is_directory = entry.path().ends_with('/');
        assert_eq!(entry.metadata().mode(), if is_directory { EntryMode::DIR } else { EntryMode::FILE });
        if !is_directory {
            let stat = op.stat(entry.path()).await.unwrap();
            assert_eq!(entry.metadata().content_length(), stat.content_length());
            assert_eq!(entry.metadata().etag(), stat.etag());
        }
        paths.push(entry.path().to_owned());
    }
    paths.sort();
    paths
}

#[test]
fn directories_are_listed() {
    on_all(|op| async move {
        assert!(list(&op, "none/", false).await.is_empty());
        assert!(list(&op, "none/", true).await.is_empty());
        op.check().await.unwrap();
        for path in ["x/x/x/y", "x/x/y", "x/y", "x/yy", "y", "yy"] {
            op.write(path, path.to_owned()).await.unwrap();
        }
        op.create_dir("x/x/x/x/").await.unwrap();
        op.create_dir("empty/").await.unwrap();

        assert_eq!(list(&op, "x/", false).await, ["x/", "x/x/", "x/y", "x/yy"]);
        assert_eq!(list(&op, "x/x/x/", false).await, ["x/x/x/", "x/x/x/x/", "x/x/x/y"]);
        assert_eq!(list(&op, "/", false).await, ["/", "empty/", "x/", "y", "yy"]);
        assert_eq!(list(&op, "empty/", false).await, ["empty/"]);
        assert_eq!(list(&op, "empty/", true).await, ["empty/"]);
        assert!(list(&op, "y/", false).await.is_empty());

        // Prefixes that are no directories.
        assert_eq!(list(&op, "empty", false).await, ["empty/"]);
        assert_eq!(list(&op, "y", false).await, ["y", "yy"]);
        assert_eq!(list(&op, "x/y", true).await, ["x/y", "x/yy"]);

        let tree = ["x/", "x/x/", "x/x/x/", "x/x/x/x/", "x/x/x/y", "x/x/y", "x/y", "x/yy"];
        assert_eq!(list(&op, "x/", true).await, tree);
        assert_eq!(list(&op, "x", true).await, tree);
        let all = [&["/", "empty/"], &tree[..], &["y", "yy"]].concat();
        assert_eq!(list(&op, "/", true).await, all);
    });
}

#[test]
fn large_directories_are_listed_without_incomplete_files() {
    on_all(|op| async move {
        let writes = (0..500).map(|n| {
            let op = op.clone();
            async move { op.write(&format!("many/file-{n:03}"), "x").await }
        });
        futures::future::try_join_all(writes).await.unwrap();
        let mut incomplete = op.writer("many/incomplete").await.unwrap();
        incomplete.write(vec![0; 9 << 20]).await.unwrap();
        incomplete.write(vec![0; 1]).await.unwrap(); // Writes the first piece.

        let expected: Vec<_> =
            std::iter::once("many/".into()).chain((0..500).map(|n| format!("many/file-{n:03}"))).collect();
        assert_eq!(list(&op, "many/", false).await, expected);
        incomplete.close().await.unwrap();
        assert_eq!(list(&op, "many/", true).await.len(), 502);
    });
}
