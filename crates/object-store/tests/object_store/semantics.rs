//! What the integration tests of object_store do not cover.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use millrace_client::Identity;
use millrace_object_store::{Client, NfsStore};
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart, path::Path,
};

use crate::{files_left, on_all, store};

/// Bytes that differ at all distances up to 2^24.
fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8 ^ seed).collect()
}

async fn locations(store: &NfsStore, prefix: Option<&Path>) -> Vec<String> {
    let mut list: Vec<_> = store.list(prefix).map_ok(|m| m.location.to_string()).try_collect().await.unwrap();
    list.sort();
    list
}

#[test]
fn payloads_of_any_pieces_are_written_and_ranges_are_read() {
    on_all(|url| async move {
        let store = store(&*url, "pieces").await;
        let location = Path::from("a/object");
        let all = content(5_000_000, 3);
        let mut pieces: Vec<Bytes> = Vec::new();
        let (mut start, mut random) = (0, 12345_usize);
        while start < all.len() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let max = [1, 1000, 1 << 20, 3 << 20][random >> 40 & 3];
            let end = all.len().min(start + (random >> 33) % (max + 1));
            pieces.push(Bytes::copy_from_slice(&all[start..end]));
            start = end;
        }
        store.put(&location, PutPayload::from_iter(pieces)).await.unwrap();
        assert!(store.get(&location).await.unwrap().bytes().await.unwrap() == all);

        let size = all.len() as u64;
        let ranges: Vec<_> = (0..40).map(|n| n * 110_000..n * 110_000 + (1 << (n % 23)) + n).collect();
        let read = store.get_ranges(&location, &ranges).await.unwrap();
        assert_eq!(read.len(), ranges.len());
        for (range, bytes) in ranges.iter().zip(read) {
            let expected = &all[range.start as usize..range.end.min(size) as usize];
            assert!(bytes == expected, "{range:?}");
        }
        // As get_range: a range beyond the end, and an empty one.
        store.get_ranges(&location, &[0..1, size..size + 1]).await.unwrap_err();
        store.get_ranges(&location, &[0..1, 5..5]).await.unwrap_err();
        assert!(store.get_ranges(&location, &[]).await.unwrap().is_empty());

        let suffix = GetOptions::new().with_range(Some(GetRange::Suffix(3_000_000)));
        let suffix = store.get_opts(&location, suffix).await.unwrap().bytes().await.unwrap();
        assert!(suffix == all[2_000_000..]);
    });
}

#[test]
fn no_number_of_transfers_exhausts_the_memory_of_the_client() {
    on_all(|url| async move {
        const ARENA: usize = 64 << 20;
        let client = Client::builder(url("memory")).arena_limit(ARENA).connect().await.unwrap();
        let store = NfsStore::new(client);
        let all = content(24 << 20, 1);
        let objects: Vec<_> = (0..4).map(|n| Path::from(format!("object{n}"))).collect();
        let uploads = objects.iter().map(|location| async {
            let mut upload = WriteMultipart::new(store.put_multipart(location).await?);
            all.chunks(7_000_000).for_each(|piece| upload.write(piece));
            upload.finish().await
        });
        futures::future::try_join_all(uploads).await.unwrap();

        // Callers keep 96 MiB.
        let before = store.client().arena().stats().in_use;
        let reads = objects.iter().map(|location| async {
            store.get(location).await?.into_stream().try_collect::<Vec<Bytes>>().await
        });
        let kept = futures::future::try_join_all(reads).await.unwrap();
        let lent = store.client().arena().stats().in_use.saturating_sub(before);
        assert!((ARENA / 8..=ARENA / 4).contains(&lent), "{lent} bytes of the arena are lent");
        for pieces in &kept {
            assert!(pieces.concat() == all);
        }
        let ranges: Vec<_> = (0..24).map(|n| n << 20..(n + 1) << 20).collect();
        let read = objects.iter().map(|location| store.get_ranges(location, &ranges));
        for pieces in futures::future::try_join_all(read).await.unwrap() {
            assert!(pieces.concat() == all);
        }
        drop(kept);
        // The memory is usable again.
        let read = store.get_range(&objects[0], 5..1000).await.unwrap();
        assert!(store.client().arena().stats().in_use < before + (4 << 20));
        assert!(read == all[5..1000]);
    });
}

#[test]
fn an_upload_is_complete_only_with_all_parts() {
    on_all(|url| async move {
        let store = store(&*url, "upload").await;
        let location = Path::from("object");
        let mut upload = store.put_multipart(&location).await.unwrap();
        let first = upload.put_part("first ".into());
        upload.put_part("second".into()).await.unwrap();
        let early = upload.complete().await.unwrap_err();
        assert!(early.to_string().contains("6 of 12 bytes of object are not written"), "{early}");
        assert!(locations(&store, None).await.is_empty());
        first.await.unwrap();
        let put = upload.complete().await.unwrap();
        let head = store.head(&location).await.unwrap();
        assert_eq!((put.e_tag, head.size), (head.e_tag, 12));
        // The object cannot be changed through the upload.
        upload.put_part("third".into()).await.unwrap_err();
        upload.complete().await.unwrap_err();
        upload.abort().await.unwrap_err();
        assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), "first second");

        // A part whose future is dropped leaves the upload incomplete; dropping the upload removes its file.
        let mut upload = store.put_multipart(&location).await.unwrap();
        drop(upload.put_part("lost".into()));
        upload.complete().await.unwrap_err();
        let late = upload.put_part("late".into());
        drop(upload);
        drop(late);
        assert_eq!(files_left(&store, 1).await, ["upload/object"]);
    });
}

#[test]
fn what_is_not_an_object_is_not_listed_or_read() {
    on_all(|url| async move {
        let store = store(&*url, "kinds").await;
        let client = store.client();
        store.put(&Path::from("dir/object"), "x".into()).await.unwrap();
        client.symlink("object", "kinds/dir/link").await.unwrap();
        client.symlink("nowhere", "kinds/dir/dangling").await.unwrap();
        client.symlink(".", "kinds/dir/cycle").await.unwrap();
        client.write("kinds/dir/.object.millrace-0123456789abcdef", "part").await.unwrap();

        assert_eq!(locations(&store, None).await, ["dir/link", "dir/object"]);
        let one = store.list_with_delimiter(Some(&Path::from("dir"))).await.unwrap();
        assert_eq!((one.objects.len(), one.common_prefixes.len()), (2, 0));
        assert_eq!(one.objects[0].e_tag, one.objects[1].e_tag);
        for missing in ["dir", "dir/dangling", "dir/object/below", "none/at/all"] {
            let location = Path::from(missing);
            let results = [
                store.head(&location).await.map(drop),
                store.get(&location).await.map(drop),
                store.copy(&location, &Path::from("copy")).await,
            ];
            for result in results {
                assert!(matches!(result, Err(Error::NotFound { .. })), "{missing}: {result:?}");
            }
        }
        for directory in ["dir", "none"] {
            let deleted = store.delete(&Path::from(directory)).await;
            assert!(matches!(deleted, Err(Error::NotFound { .. })), "{deleted:?}");
            let renamed = store.rename(&Path::from(directory), &Path::from("other")).await;
            assert!(matches!(renamed, Err(Error::NotFound { .. })), "{renamed:?}");
        }
        // An object below an object, and in place of a directory.
        for impossible in ["dir/object/below", "dir"] {
            let put = store.put(&Path::from(impossible), "y".into()).await.unwrap_err();
            assert!(!matches!(put, Error::NotFound { .. }), "{put:?}");
        }
        let reserved = Path::parse("dir/.object.millrace-0123456789abcdef").unwrap();
        assert!(store.get(&reserved).await.unwrap_err().to_string().contains("reserved"));
        assert_eq!(files_left(&store, 5).await.len(), 5);

        // Another name of an object's file, which a program leaves that ends between LINK and REMOVE.
        client.hard_link("kinds/dir/object", "kinds/dir/second").await.unwrap();
        store.rename(&Path::from("dir/object"), &Path::from("dir/second")).await.unwrap();
        assert_eq!(locations(&store, None).await, ["dir/second"]);
        store.rename(&Path::from("dir/second"), &Path::from("dir/second")).await.unwrap();
        store.rename_if_not_exists(&Path::from("dir/second"), &Path::from("new/dir/object")).await.unwrap();
        store.put(&Path::from("taken"), "z".into()).await.unwrap();
        let taken = store.rename_if_not_exists(&Path::from("taken"), &Path::from("new/dir/object")).await;
        assert!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
        assert_eq!(locations(&store, None).await, ["new/dir/object", "taken"]);
    });
}

#[test]
fn errors_have_their_kind_and_cause() {
    on_all(|url| async move {
        let missing = NfsStore::connect(url("missing")).await;
        assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
        let store = store(&*url, "owned").await;
        let location = Path::from("object");
        store.put(&location, "x".into()).await.unwrap();
        NfsStore::connect(url("owned")).await.unwrap();

        let other = Identity { uid: 54321, gid: 54321, ..Identity::default() };
        let stranger = NfsStore::new(store.client().as_caller(&other));
        let denied = stranger.put(&location, "y".into()).await;
        assert!(matches!(denied, Err(Error::PermissionDenied { .. })), "{denied:?}");
        let denied = stranger.delete(&location).await;
        assert!(matches!(denied, Err(Error::PermissionDenied { .. })), "{denied:?}");

        let long = Path::from("n".repeat(256));
        let long = store.put(&long, "x".into()).await.unwrap_err().to_string();
        assert!(long.contains("NAMETOOLONG"), "{long}");
        let longest = Path::from("n".repeat(255));
        store.put(&longest, "x".into()).await.unwrap();
        assert_eq!(locations(&store, None).await.len(), 2);

        let text = store.to_string();
        assert!(text.starts_with("NfsStore(nfs://127.0.0.1:") && text.ends_with("/data/owned)"), "{text}");
    });
}

#[test]
fn a_stream_of_a_replaced_object_fails_instead_of_mixing_versions() {
    on_all(|url| async move {
        let store = store(&*url, "replaced").await;
        let location = Path::from("object");
        let (old, new) = (content(24 << 20, 1), content(24 << 20, 2));
        store.put(&location, old.clone().into()).await.unwrap();
        let mut stream = store.get(&location).await.unwrap().into_stream();
        let mut read = stream.next().await.unwrap().unwrap().to_vec();
        store.put(&location, new.clone().into()).await.unwrap();
        let error = loop {
            match stream.next().await.unwrap() {
                Ok(bytes) => read.extend_from_slice(&bytes),
                Err(e) => break e.to_string(),
            }
        };
        assert!(error.contains("was replaced, removed or truncated while it was read"), "{error}");
        assert!(old.starts_with(&read));
        assert!(store.get(&location).await.unwrap().bytes().await.unwrap() == new);
    });
}

#[test]
fn lists_of_many_objects_end_at_each_offset() {
    on_all(|url| async move {
        let store = store(&*url, "many").await;
        let mut all: Vec<_> = (0..300).map(|n| Path::from(format!("d{}/e{}/{n:03}", n % 3, n % 7))).collect();
        let puts = all.iter().map(|location| store.put(location, "x".into()));
        futures::future::try_join_all(puts).await.unwrap();
        all.sort();
        for offset in [0, 1, 57, 150, 298, 299].map(|n: usize| all[n].clone()).into_iter().chain([
            Path::from("d1"),
            Path::from("d1/e3"),
            Path::from("d1/e3x"),
            Path::from("a"),
            Path::from("z"),
        ]) {
            for prefix in [None, Some(Path::from("d1")), Some(Path::from("d1/e3"))] {
                let list = store.list_with_offset(prefix.as_ref(), &offset).map_ok(|m| m.location);
                let mut list: Vec<_> = list.try_collect().await.unwrap();
                list.sort();
                let matches = |l: &&Path| prefix.as_ref().is_none_or(|p| l.prefix_matches(p)) && **l > offset;
                assert!(list.iter().eq(all.iter().filter(matches)), "{prefix:?} {offset}");
            }
        }
    });
}
