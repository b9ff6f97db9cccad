//! Writing, reading, and the attributes of files and directories.

use bytes::Bytes;
use futures::{AsyncReadExt, SinkExt, StreamExt, TryStreamExt, stream};
use opendal_core::{EntryMode, ErrorKind, Operator};

use crate::{assert_content, content, kind, on_all};

#[test]
fn attributes_are_those_of_files_and_directories() {
    on_all(|op| async move {
        op.write("dir/file", content(1000, 0)).await.unwrap();
        let file = op.stat("dir/file").await.unwrap();
        assert_eq!((file.mode(), file.content_length()), (EntryMode::FILE, 1000));
        assert!(file.last_modified().is_some() && file.etag().is_some());
        assert_eq!(op.stat("//dir/file").await.unwrap().content_length(), 1000);
        for directory in ["dir/", "dir", "/"] {
            assert_eq!(op.stat(directory).await.unwrap().mode(), EntryMode::DIR, "{directory}");
        }
        for missing in ["dir/file/", "none", "none/", "dir/file/below"] {
            assert_eq!(kind(op.stat(missing).await), ErrorKind::NotFound, "{missing}");
        }
        let special = "dir/ !@#$%^&()_+-=;',.txt";
        op.write(special, content(10, 0)).await.unwrap();
        assert_eq!(op.stat(special).await.unwrap().content_length(), 10);
        assert!(op.exists(special).await.unwrap() && !op.exists("none").await.unwrap());
    });
}

#[test]
fn directories_are_created_with_their_parents() {
    on_all(|op| async move {
        op.create_dir("a/b/c/").await.unwrap();
        op.create_dir("a/b/c/").await.unwrap();
        assert_eq!(op.stat("a/b/").await.unwrap().mode(), EntryMode::DIR);
        op.write("a/file", "x").await.unwrap();
        assert!(matches!(
            kind(op.create_dir("a/file/").await),
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory
        ));
        assert_eq!(kind(op.create_dir("a").await), ErrorKind::NotADirectory);
    });
}

#[test]
fn writes_replace_files_when_they_are_closed() {
    on_all(|op| async move {
        for len in [0, 1, 100_000, 5_000_000] {
            let written = op.write("file", content(len, 1)).await.unwrap();
            let stat = op.stat("file").await.unwrap();
            assert_eq!(written.content_length(), len as u64);
            assert_eq!((written.etag(), written.last_modified()), (stat.etag(), stat.last_modified()));
            assert_content(&op, "file", &content(len, 1)).await;
        }
        assert_eq!(kind(op.write("dir/", "x").await), ErrorKind::IsADirectory);
        assert_eq!(kind(op.write("file/below", "x").await), ErrorKind::NotADirectory);
        let reserved = op.write("dir/.x.millrace-0123456789abcdef", "x").await;
        assert_eq!(kind(reserved), ErrorKind::Unsupported);

        // Pieces, of which the first is larger than what is kept in memory.
        let pieces = [content(9_000_000, 2), content(5, 3), content(3_000_000, 4)];
        let mut writer = op.writer("pieces").await.unwrap();
        for piece in &pieces {
            writer.write(piece.clone()).await.unwrap();
            assert!(!op.exists("pieces").await.unwrap());
        }
        assert_eq!(writer.close().await.unwrap().content_length(), 12_000_005);
        assert_content(&op, "pieces", &pieces.concat()).await;

        let mut writer = op.writer_with("pieces").concurrent(3).chunk(1 << 20).await.unwrap();
        for piece in pieces.iter().rev() {
            writer.write(vec![Bytes::from(piece.clone()), Bytes::from_static(b"|")]).await.unwrap();
        }
        assert_content(&op, "pieces", &pieces.concat()).await;
        writer.close().await.unwrap();
        let expected: Vec<u8> = pieces.iter().rev().flat_map(|piece| [piece, &b"|"[..]].concat()).collect();
        assert_content(&op, "pieces", &expected).await;

        let mut sink = op.writer_with("sink").chunk(4 << 20).await.unwrap().into_bytes_sink();
        let mut source = stream::iter(pieces.clone()).map(|piece| Ok(Bytes::from(piece)));
        sink.send_all(&mut source).await.unwrap();
        sink.close().await.unwrap();
        assert_content(&op, "sink", &pieces.concat()).await;
    });
}

#[test]
fn aborted_writes_leave_nothing() {
    on_all(|op| async move {
        op.create_dir("dir/").await.unwrap();
        for len in [10, 20_000_000] {
            let mut writer = op.writer("dir/file").await.unwrap();
            writer.write(content(len, 0)).await.unwrap();
            writer.write(content(len, 1)).await.unwrap();
            writer.abort().await.unwrap();
            assert!(!op.exists("dir/file").await.unwrap());
        }
        // Nor does a temporary file remain: the directory is empty.
        op.delete("dir/").await.unwrap();
        assert!(!op.exists("dir/").await.unwrap());
    });
}

#[test]
fn exactly_one_of_many_writers_creates_a_file() {
    on_all(|op| async move {
        for file in 0..10 {
            let path = format!("dir{file}/file");
            let writes = (0..6_u8).map(|n| {
                let (op, path) = (op.clone(), path.clone());
                tokio::spawn(async move {
                    match op.write_with(&path, content(100_000, n)).if_not_exists(true).await {
                        Ok(_) => Some(n),
                        Err(e) if e.kind() == ErrorKind::ConditionNotMatch => None,
                        Err(e) => panic!("{e}"),
                    }
                })
            });
            let ended = futures::future::join_all(writes.collect::<Vec<_>>()).await;
            let winners: Vec<_> = ended.into_iter().filter_map(Result::unwrap).collect();
            assert_eq!(winners.len(), 1, "{winners:?}");
            assert_content(&op, &path, &content(100_000, winners[0])).await;
        }
    });
}

#[test]
fn a_write_replaces_the_version_with_the_etag() {
    on_all(|op| async move {
        let capability = op.info().capability();
        op.write("dir/other", content(10, 0)).await.unwrap();
        let first = op.write("dir/file", content(1000, 1)).await.unwrap();
        let e_tag = first.etag().unwrap();
        if !capability.write_with_if_match {
            let refused = op.write_with("dir/file", "x").if_match(e_tag).await;
            assert_eq!(kind(refused), ErrorKind::Unsupported);
            return;
        }
        let second = op.write_with("dir/file", content(20_000_000, 2)).if_match(e_tag).await.unwrap();
        let stat = op.stat("dir/file").await.unwrap();
        assert_eq!((second.etag(), second.content_length()), (stat.etag(), 20_000_000));
        assert_content(&op, "dir/file", &content(20_000_000, 2)).await;
        for len in [0, 10, 20_000_000] {
            for path in ["dir/file", "dir/none", "dir"] {
                let failed = op.write_with(path, content(len, 3)).if_match(e_tag).await;
                assert_eq!(kind(failed), ErrorKind::ConditionNotMatch, "{path}");
            }
        }
        assert_content(&op, "dir/file", &content(20_000_000, 2)).await;
        // Changed after the first data was written: the second close has no effect either.
        let mut writer = op.writer_with("dir/file").if_match(second.etag().unwrap()).await.unwrap();
        writer.write(content(20_000_000, 4)).await.unwrap();
        writer.write(content(20_000_000, 4)).await.unwrap();
        op.write("dir/file", content(5, 5)).await.unwrap();
        assert_eq!(kind(writer.close().await), ErrorKind::ConditionNotMatch);
        assert!(writer.close().await.is_err());
        assert_content(&op, "dir/file", &content(5, 5)).await;
        let e_tag = op.stat("dir/file").await.unwrap().etag().unwrap().to_owned();
        let both = op.write_with("dir/file", "x").if_match(&e_tag).if_not_exists(true).await;
        assert_eq!(kind(both), ErrorKind::Unsupported);
    });
}

#[test]
fn no_conditional_write_of_many_is_lost() {
    on_all(|op| async move {
        if !op.info().capability().write_with_if_match {
            return;
        }
        op.write("counter", "0").await.unwrap();
        let writes = (0..4).map(|_| {
            let op = op.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    loop {
                        let e_tag = op.stat("counter").await.unwrap().etag().unwrap().to_owned();
                        let Ok(read) = op.read("counter").await else { continue };
                        let next = String::from_utf8(read.to_vec()).unwrap().parse::<u32>().unwrap() + 1;
                        // A version that was read after the ETag has another one.
                        match op.write_with("counter", next.to_string()).if_match(&e_tag).await {
                            Ok(_) => break,
                            Err(e) => assert_eq!(e.kind(), ErrorKind::ConditionNotMatch, "{e}"),
                        }
                    }
                }
            })
        });
        for write in futures::future::join_all(writes.collect::<Vec<_>>()).await {
            write.unwrap();
        }
        assert_content(&op, "counter", b"40").await;
    });
}

#[test]
fn reads_return_ranges() {
    on_all(|op| async move {
        let all = content(3_300_000, 5);
        op.write("file", all.clone()).await.unwrap();
        for range in [0..1, 0..3_300_000, 1_048_575..1_048_577, 5..3_000_000, 3_299_999..3_300_000] {
            let read = op.read_with("file").range(range.clone()).await.unwrap();
            assert!(read.to_vec() == all[range.start as usize..range.end as usize], "{range:?}");
        }
        let read = op.read_with("file").range(1_000_000..).await.unwrap();
        assert!(read.to_vec() == all[1_000_000..]);
        let beyond = op.read_with("file").range(3_299_999..3_300_001).await;
        assert_eq!(kind(beyond), ErrorKind::RangeNotSatisfied);

        let reader = op.reader_with("file").chunk(700_000).concurrent(4).await.unwrap();
        assert!(reader.read(..).await.unwrap().to_vec() == all);
        let fetched = reader.fetch(vec![0..10, 2_000_000..2_500_000, 5..20]).await.unwrap();
        assert!(fetched[1].to_vec() == all[2_000_000..2_500_000] && fetched[2].to_vec() == all[5..20]);
        let stream = op.reader("file").await.unwrap().into_bytes_stream(100..3_200_000).await.unwrap();
        let streamed: Vec<Bytes> = stream.try_collect().await.unwrap();
        assert!(streamed.concat() == all[100..3_200_000]);
        let mut asynchronous =
            op.reader("file").await.unwrap().into_futures_async_read(0..3_300_000).await.unwrap();
        let mut read = Vec::new();
        asynchronous.read_to_end(&mut read).await.unwrap();
        assert!(read == all);

        op.create_dir("dir/").await.unwrap();
        assert_eq!(kind(op.read("dir/").await), ErrorKind::IsADirectory);
        assert_eq!(kind(op.read("dir").await), ErrorKind::IsADirectory);
        for missing in ["none", "none/file", "file/below"] {
            assert_eq!(kind(op.read(missing).await), ErrorKind::NotFound, "{missing}");
        }
    });
}

/// A reader of a replaced file fails, and returns no data of the new one.
#[test]
fn a_reader_reads_one_version() {
    on_all(|op: Operator| async move {
        let (old, new) = (content(20 << 20, 1), content(20 << 20, 2));
        op.write("file", old.clone()).await.unwrap();
        let reader = op.reader("file").await.unwrap();
        assert!(reader.read(0..100).await.unwrap().to_vec() == old[..100]);
        op.write("file", new.clone()).await.unwrap();
        let replaced = reader.read(100..200).await.err().unwrap();
        assert_eq!(replaced.kind(), ErrorKind::Unexpected);
        assert_content(&op, "file", &new).await;
    });
}
