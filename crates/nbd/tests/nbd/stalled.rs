//! Clients that stop: their connections end, and release their memory.

use std::{future::pending, sync::Arc, time::Duration};

use futures::future::join;
use millrace_iscsi_initiator::BlockDevice;
use millrace_nbd::{ConnectionError, Export, Options};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime,
};

use crate::{
    client::{READ, WRITE, option, request},
    virtual_device::{device, read_exact, write_all},
};

const MIB: u64 = 1 << 20;
/// Memory of the device: that of one request of the maximum length, and a little more.
const MEMORY: usize = 40 << 20;
/// Client flags and the default export.
const HANDSHAKE_REPLY: usize = 18 + 10;

/// Serves a client in virtual time. Returns how its connection ended, and after how many seconds.
fn serve<F: Future<Output = MemoryStream>>(
    client: impl FnOnce(RuntimeRef, MemoryStream) -> F,
) -> (Result<(), ConnectionError>, u64) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    let work = async {
        let disk = device(&rt, 64 * MIB, MEMORY).await;
        let export = Export::new(disk.clone(), Arc::clone(&rt), &Options::default());
        let (mut ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let start = rt.now();
        let served = async {
            let ended = export.serve(Box::new(theirs), pending()).await;
            (ended, rt.now().duration_since(start).as_secs())
        };
        let conversation = async {
            let hello = [&3_u32.to_be_bytes()[..], &option(1, &[])].concat();
            write_all(&mut ours, &hello).await;
            read_exact(&rt, &mut ours, HANDSHAKE_REPLY).await.unwrap();
            client(Arc::clone(&rt), ours).await
        };
        let (ended, _stream) = join(served, conversation).await;
        // Operations of the connection may be in progress.
        rt.sleep(Duration::from_secs(1)).await;
        assert_memory_is_free(&disk);
        ended
    };
    time.block_on(work).unwrap()
}

fn assert_memory_is_free(disk: &BlockDevice) {
    let all: Vec<_> = (0..MEMORY >> 22).map(|_| disk.buffer(4 << 20)).collect();
    assert!(all.iter().all(Result::is_ok), "memory is not released");
}

#[test]
fn a_client_that_stops_within_a_request_loses_its_connection_and_memory() {
    let write = request(0, WRITE, 1, 0, 32 << 20);
    let refused = request(0, WRITE, 1, 1, 32 << 20);
    for sent in [
        // A part of a header; a write without data, and with a part of it; a write that is refused, and its data awaited.
        request(0, READ, 1, 0, 512)[..27].to_vec(),
        write.clone(),
        [&write[..], &[7; 100_000]].concat(),
        [&refused[..], &[7; 100_000]].concat(),
    ] {
        let length = sent.len();
        let (ended, seconds) = serve(async move |_, mut stream| {
            write_all(&mut stream, &sent).await;
            stream
        });
        assert!(matches!(ended, Err(ConnectionError::Stalled)), "{length} bytes: {ended:?}");
        assert!((60..=120).contains(&seconds), "{length} bytes: after {seconds} s");
    }
}

#[test]
fn a_client_that_does_not_receive_replies_loses_its_connection_and_memory() {
    let (ended, seconds) = serve(async |_, mut stream| {
        let reads: Vec<u8> = (0..40).flat_map(|i| request(0, READ, i, 0, 1 << 20)).collect();
        write_all(&mut stream, &reads).await;
        stream
    });
    assert!(matches!(ended, Err(ConnectionError::Stalled)), "{ended:?}");
    assert!((60..=120).contains(&seconds), "after {seconds} s");
}

#[test]
fn progress_restarts_the_limit() {
    let (ended, seconds) = serve(async |rt, mut stream| {
        let data = [0x5a; 4096];
        write_all(&mut stream, &request(0, WRITE, 1, 0, 4096)).await;
        for piece in data.chunks(512) {
            rt.sleep(Duration::from_secs(55)).await;
            write_all(&mut stream, piece).await;
        }
        read_exact(&rt, &mut stream, 16).await.expect("the reply to the write");
        write_all(&mut stream, &request(0, READ, 2, 0, 1 << 20)).await;
        for _ in 0..8 {
            rt.sleep(Duration::from_secs(55)).await;
            read_exact(&rt, &mut stream, ((1 << 20) + 16) / 8).await.expect("an eighth of the reply");
        }
        // Between requests there is no limit.
        rt.sleep(Duration::from_secs(10_000)).await;
        write_all(&mut stream, &request(0, READ, 3, 0, 4096)).await;
        let reply = read_exact(&rt, &mut stream, 16 + 4096).await.expect("the reply to a late read");
        assert_eq!(reply[16..], data);
        stream.shutdown();
        stream
    });
    assert!(matches!(ended, Ok(())), "{ended:?}");
    assert!(seconds > 10_000, "{seconds} s");
}
