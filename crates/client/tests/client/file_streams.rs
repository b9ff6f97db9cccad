//! The stream of a file compared with a model in memory, and cancellation.

use std::{
    future::poll_fn,
    io::{ErrorKind, SeekFrom},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use millrace_client::{Client, File, OpenOptions};
use proptest::{
    prelude::*,
    test_runner::{Config, TestError, TestRunner},
};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt};

use crate::common::{self, connect, on_all};

/// An operation on one of the open files.
#[derive(Debug, Clone)]
enum Step {
    Read(usize),
    ReadExact(usize),
    /// Polled once, and dropped if pending.
    ReadOnce(usize),
    Write(usize),
    WriteAll(usize),
    /// Polled until pending, so that the window of WRITEs is full.
    WriteUntilPending(usize),
    Seek(SeekFrom),
    SetLen(u64),
    Flush,
    Sync,
    WriteAt(u64, usize),
    ReadAt(u64, usize),
    Size,
}

fn step() -> impl Strategy<Value = Step> {
    let seek = prop_oneof![
        (0_u64..60_000).prop_map(SeekFrom::Start),
        (-20_000_i64..20_000).prop_map(SeekFrom::Current),
        (-60_000_i64..5_000).prop_map(SeekFrom::End),
    ];
    prop_oneof![
        3 => (0_usize..20_000).prop_map(Step::Read),
        2 => (0_usize..20_000).prop_map(Step::ReadExact),
        2 => (0_usize..20_000).prop_map(Step::ReadOnce),
        3 => (0_usize..12_000).prop_map(Step::Write),
        3 => (0_usize..20_000).prop_map(Step::WriteAll),
        1 => (1_usize..3_000).prop_map(Step::WriteUntilPending),
        4 => seek.prop_map(Step::Seek),
        1 => (0_u64..60_000).prop_map(Step::SetLen),
        1 => Just(Step::Flush),
        1 => Just(Step::Sync),
        1 => (0_u64..50_000, 1_usize..4_096).prop_map(|(at, len)| Step::WriteAt(at, len)),
        1 => (0_u64..50_000, 1_usize..4_096).prop_map(|(at, len)| Step::ReadAt(at, len)),
        1 => Just(Step::Size),
    ]
}

/// The expected file and cursors.
#[derive(Default)]
struct Model {
    content: Vec<u8>,
    cursors: [u64; 2],
    /// Number of writes, so that the bytes of each write differ.
    writes: u8,
}

impl Model {
    fn data(&mut self, len: usize) -> Vec<u8> {
        self.writes = self.writes.wrapping_add(1);
        (0..len).map(|i| (i as u8).wrapping_mul(31) ^ self.writes.wrapping_mul(97) | 1).collect()
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        if data.is_empty() {
            return; // Also beyond the end, where it extends nothing.
        }
        let end = at as usize + data.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[at as usize..][..data.len()].copy_from_slice(data);
    }

    fn at(&self, at: u64, len: usize) -> &[u8] {
        let start = self.content.len().min(at as usize);
        &self.content[start..self.content.len().min(start + len)]
    }
}

/// Polls a write once; `None` if pending.
async fn write_once(file: &mut File, data: &[u8]) -> Option<usize> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *file).poll_write(cx, data) {
            Poll::Ready(written) => Some(written.unwrap()),
            Poll::Pending => None,
        })
    })
    .await
}

async fn execute(file: &mut File, model: &mut Model, who: usize, step: &Step) {
    let cursor = model.cursors[who];
    match *step {
        Step::Read(len) | Step::ReadOnce(len) => {
            let mut out = vec![0; len];
            let read = file.read(&mut out);
            let count = match step {
                Step::Read(_) => Some(read.await.unwrap()),
                _ => match futures::poll!(Box::pin(read)) {
                    Poll::Ready(count) => Some(count.unwrap()),
                    Poll::Pending => None,
                },
            };
            let Some(count) = count else { return };
            let expected = model.at(cursor, len);
            assert!(
                count > 0 || expected.is_empty(),
                "end of file at {cursor}, expected {} bytes",
                expected.len()
            );
            assert!(count <= expected.len() && out[..count] == expected[..count], "read at {cursor} differs");
            model.cursors[who] += count as u64;
        }
        Step::ReadExact(len) => {
            let mut out = vec![0; len];
            let expected = model.at(cursor, len).to_vec();
            match file.read_exact(&mut out).await {
                Ok(_) => {
                    assert!(out == expected, "read at {cursor} differs");
                    model.cursors[who] += len as u64;
                }
                Err(e) => {
                    assert!(e.kind() == ErrorKind::UnexpectedEof && expected.len() < len, "{e}");
                    model.cursors[who] += expected.len() as u64;
                }
            }
        }
        Step::Write(len) => {
            let data = model.data(len);
            let count = file.write(&data).await.unwrap();
            assert!(count > 0 || len == 0);
            model.write(cursor, &data[..count]);
            model.cursors[who] += count as u64;
        }
        Step::WriteAll(len) => {
            let data = model.data(len);
            file.write_all(&data).await.unwrap();
            model.write(cursor, &data);
            model.cursors[who] += len as u64;
        }
        Step::WriteUntilPending(len) => {
            for _ in 0..40 {
                let data = model.data(len);
                let Some(count) = write_once(file, &data).await else { break };
                model.write(model.cursors[who], &data[..count]);
                model.cursors[who] += count as u64;
            }
        }
        Step::Seek(to) => {
            let target = match to {
                SeekFrom::Start(at) => Some(at),
                SeekFrom::Current(by) => cursor.checked_add_signed(by),
                SeekFrom::End(by) => (model.content.len() as u64).checked_add_signed(by),
            };
            match (file.seek(to).await, target) {
                (Ok(at), Some(target)) => {
                    assert_eq!(at, target);
                    model.cursors[who] = at;
                }
                (sought, None) => assert_eq!(sought.unwrap_err().kind(), ErrorKind::InvalidInput),
                (Err(e), Some(_)) => unreachable!("{e}"),
            }
        }
        Step::SetLen(size) => {
            file.set_len(size).await.unwrap();
            model.content.resize(size as usize, 0);
        }
        Step::Flush => file.flush().await.unwrap(),
        Step::Sync => file.sync_all().await.unwrap(),
        Step::WriteAt(at, len) => {
            let data = model.data(len);
            let view = file.client().arena().copy_from(&data).unwrap();
            file.write_at_from(at, view.into()).await.unwrap();
            model.write(at, &data);
        }
        Step::ReadAt(at, len) => {
            let read = file.read_at_into(at, file.client().buffer(len).unwrap()).await.unwrap();
            assert!(read.buffer[..] == *model.at(at, len), "read_at_into at {at} differs");
        }
        Step::Size => assert_eq!(file.metadata().await.unwrap().len(), model.content.len() as u64),
    }
}

/// Two open files of one path alternate; each flushes at the end of its turn.
async fn run(client: &Client, steps: &[(usize, Step)]) {
    drop(client.remove_file("f").await);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let mut files = [options.open(client, "f").await.unwrap(), options.open(client, "f").await.unwrap()];
    let mut model = Model::default();
    let mut last = 0;
    for (who, step) in steps {
        if *who != last {
            files[last].flush().await.unwrap();
            last = *who;
        }
        execute(&mut files[*who], &mut model, *who, step).await;
        assert_eq!(files[*who].stream_position().await.unwrap(), model.cursors[*who], "{step:?}");
    }
    files[last].shutdown().await.unwrap();
    assert_eq!(files[last].by_handle().retained_bytes(), 0);
    assert!(client.read("f").await.unwrap() == model.content, "the content differs");
}

#[test]
fn streams_match_a_file_in_memory() {
    on_all(|url| async move {
        // Small transfers, so that few bytes need many calls.
        let client =
            Client::builder(url("data")).rsize(Some(4096)).wsize(Some(4096)).connect().await.unwrap();
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
        let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
        let steps = prop::collection::vec((0_usize..2, step()), 1..60);
        let handle = tokio::runtime::Handle::current();
        let tested = tokio::task::block_in_place(|| {
            runner.run(&steps, |steps| {
                handle.block_on(run(&client, &steps));
                Ok(())
            })
        });
        if let Err(TestError::Fail(why, steps)) = tested {
            unreachable!("{why}\n{steps:#?}");
        }
        tested.unwrap();
    });
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn large_files_are_copied_with_tokio_io_copy() {
    on_all(|url| async move {
        let c = connect(&url).await;
        let data = pattern(20_000_003);
        let mut file = c.create("big").await.unwrap();
        assert_eq!(tokio::io::copy(&mut &data[..], &mut file).await.unwrap(), data.len() as u64);
        // `copy` flushes: the data is visible to all clients.
        assert!(connect(&url).await.read("big").await.unwrap() == data);
        let calls = c.stats().calls;
        let mut back = Vec::new();
        tokio::io::copy(&mut c.open("big").await.unwrap(), &mut back).await.unwrap();
        assert!(back == data);
        let reads = c.stats().calls - calls;
        assert!(reads < 100, "{reads} calls for 20 MB");
    });
}

#[test]
fn small_reads_and_writes_take_few_calls() {
    on_all(|url| async move {
        let c = connect(&url).await;
        let mut file = c.create("lines").await.unwrap();
        let before = c.stats().calls;
        for n in 0..10_000 {
            file.write_all(format!("line {n:06}\n").as_bytes()).await.unwrap();
        }
        file.shutdown().await.unwrap();
        assert!(c.stats().calls - before < 10);
        let mut file = c.open("lines").await.unwrap();
        let before = c.stats().calls;
        let mut line = [0; 12];
        for n in 0..10_000 {
            file.read_exact(&mut line).await.unwrap();
            assert_eq!(line, *format!("line {n:06}\n").as_bytes());
        }
        assert_eq!(file.read(&mut line).await.unwrap(), 0);
        assert!(c.stats().calls - before < 10);
        // No read-ahead for random reads.
        let before = c.stats().bytes_read;
        for n in [90_000, 30, 50_000, 7] {
            file.seek(SeekFrom::Start(n)).await.unwrap();
            file.read_exact(&mut line).await.unwrap();
        }
        assert!(c.stats().bytes_read - before <= 4 * 4096);
    });
}

#[test]
fn a_reader_at_the_end_sees_appended_data() {
    on_all(|url| async move {
        let (c, other) = (connect(&url).await, connect(&url).await);
        let append = OpenOptions::new().append(true).create(true).clone();
        let mut log = append.open(&c, "log").await.unwrap();
        log.write_all(b"one ").await.unwrap();
        log.flush().await.unwrap();
        let mut tail = other.open("log").await.unwrap();
        let mut text = String::new();
        tail.read_to_string(&mut text).await.unwrap();
        // An append ignores the cursor, and follows data of other writers.
        log.seek(SeekFrom::Start(0)).await.unwrap();
        append.open(&other, "log").await.unwrap().write_all(b"two ").await.unwrap();
        while other.metadata("log").await.unwrap().len() < 8 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        log.write_all(b"three").await.unwrap();
        log.write_all(b"!").await.unwrap();
        assert_eq!(log.stream_position().await.unwrap(), 14);
        log.flush().await.unwrap();
        tail.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one two three!");
        assert_eq!(tail.read_to_string(&mut text).await.unwrap(), 0);
    });
}

#[test]
fn a_pending_write_that_is_dropped_accepts_no_data() {
    on_all(|url| async move {
        let c = Client::builder(url("data")).wsize(Some(4096)).connect().await.unwrap();
        let mut file = c.create("f").await.unwrap();
        let (mut accepted, mut waited) = (Vec::new(), 0);
        for n in 0..2_000_u32 {
            let piece = n.to_be_bytes().repeat(300);
            // Dropped if pending.
            match write_once(&mut file, &piece).await {
                Some(count) => accepted.extend_from_slice(&piece[..count]),
                None => {
                    waited += 1;
                    tokio::task::yield_now().await;
                }
            }
            assert_eq!(file.stream_position().await.unwrap(), accepted.len() as u64);
        }
        assert!(waited > 0);
        // A dropped flush also leaves the data in flight.
        drop(futures::poll!(Box::pin(file.flush())));
        file.shutdown().await.unwrap();
        assert!(c.read("f").await.unwrap() == accepted);
    });
}

#[test]
fn the_last_write_to_a_range_wins() {
    let server = common::server();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    tokio.block_on(async {
        let url = common::url(&server, millrace_client::Proto::Tcp, "data");
        let c = Client::builder(url).wsize(Some(4096)).nconnect(4).connect().await.unwrap();
        let mut file = c.create("f").await.unwrap();
        for n in 0..2_000_u32 {
            file.seek(SeekFrom::Start(u64::from(n % 3) * 1_000)).await.unwrap();
            file.write_all(&n.to_be_bytes().repeat(1024)).await.unwrap();
        }
        file.flush().await.unwrap();
        let content = c.read("f").await.unwrap();
        let n = |n: u32| n.to_be_bytes().repeat(1024);
        assert!(content[1_000..5_096] == n(1_999));
        assert!(content[..1_000] == n(1_998)[..1_000] && content[5_096..] == n(1_997)[3_096..]);
    });
    drop(tokio);
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_lost_write_is_reported_once() {
    on_all(|url| async move {
        let c = Client::connect(url("small")).await.unwrap();
        let data = pattern(4 << 20);
        let mut file = c.create("f").await.unwrap();
        let mut failed = file.write_all(&data).await;
        if failed.is_ok() {
            failed = file.shutdown().await;
        }
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::StorageFull);
        file.set_len(0).await.unwrap();
        // A WRITE in flight may cause a second error.
        drop(file.flush().await);
        file.seek(SeekFrom::Start(0)).await.unwrap();
        file.write_all(b"fits").await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(c.read("f").await.unwrap(), b"fits");
    });
}

#[test]
fn a_dropped_file_is_closed_in_the_background() {
    on_all(|url| async move {
        let (c, other) = (connect(&url).await, connect(&url).await);
        let data = pattern(3_000_000);
        let mut file = c.create("f").await.unwrap();
        file.write_all(&data).await.unwrap();
        drop((file, c));
        while other.metadata("f").await.unwrap().len() < data.len() as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(other.read("f").await.unwrap() == data);
    });
}

#[test]
fn operations_require_the_access_mode_of_the_file() {
    on_all(|url| async move {
        let c = connect(&url).await;
        c.write("f", "x").await.unwrap();
        let mut file = c.open("f").await.unwrap();
        assert_eq!(file.write(b"y").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(0).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let mut file = c.create("f").await.unwrap();
        assert_eq!(file.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let read = file.read_at_into(0, c.buffer(1).unwrap()).await;
        assert_eq!(read.unwrap_err().kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn concurrent_tasks_read_and_write_one_file_at_offsets() {
    on_all(|url| async move {
        let c = connect(&url).await;
        let file = OpenOptions::new().read(true).write(true).create(true).open(&c, "f").await.unwrap();
        let file = std::sync::Arc::new(file);
        let data = pattern(64 << 14);
        let mut tasks = tokio::task::JoinSet::new();
        for (n, piece) in data.chunks(1 << 14).enumerate() {
            let (file, view) = (std::sync::Arc::clone(&file), c.arena().copy_from(piece).unwrap());
            tasks.spawn(async move {
                let at = (n as u64) << 14;
                file.write_at_from(at, view.clone().into()).await.unwrap();
                let read = file.read_at_into(at, file.client().buffer(1 << 14).unwrap()).await.unwrap();
                assert!(read.buffer[..] == view[..]);
            });
        }
        tasks.join_all().await;
        file.sync_all().await.unwrap();
        assert!(c.read("f").await.unwrap() == data);
    });
}

#[test]
fn the_blocking_file_reads_writes_and_seeks() {
    use std::io::{BufRead, BufReader, Read, Seek, Write};
    for proto in [millrace_client::Proto::Tcp, millrace_client::Proto::Rdma] {
        let server = common::server();
        let c = millrace_client::blocking::Client::connect(common::url(&server, proto, "data")).unwrap();
        c.create_dir_all("a/b").unwrap();
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).open_blocking(&c, "a/b/f").unwrap();
        for n in 0..1000 {
            writeln!(file, "line {n}").unwrap();
        }
        file.rewind().unwrap();
        let lines: Vec<_> = BufReader::new(&mut file).lines().map(Result::unwrap).collect();
        assert_eq!((lines.len(), lines[999].as_str()), (1000, "line 999"));
        file.seek(SeekFrom::End(-4)).unwrap();
        let mut end = String::new();
        file.read_to_string(&mut end).unwrap();
        assert_eq!(end, "999\n");
        // Drop closes the file, so the data is on the server.
        file.write_all(b"end").unwrap();
        drop(file);
        assert!(c.read_to_string("a/b/f").unwrap().ends_with("line 999\nend"));
        assert_eq!(c.read_dir("a/b").unwrap().map(Result::unwrap).count(), 1);
        c.remove_dir_all("a").unwrap();
        assert_eq!(c.metadata("a").unwrap_err().kind(), ErrorKind::NotFound);
        drop(c);
        server.stop_blocking(Duration::from_secs(1));
    }
}
