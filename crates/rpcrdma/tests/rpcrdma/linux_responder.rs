//! Replies of the NFS server of Linux 7.3 over siw, byte for byte except XIDs, steering tags and tagged
//! offsets.

use std::sync::Arc;

use millrace_oncrpc::{AcceptError, Reply, RpcError, Transport};
use millrace_rdma::Segment;
use millrace_rpcrdma::{Body, Header, Requester, RequesterConfig};

use crate::support::{Ask, arena, fabric, raw::Raw, request, rt};

/// States no support of remote invalidation, but invalidates.
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];

struct Linux {
    client: Arc<Requester>,
    raw: Raw,
}

impl Linux {
    fn new() -> Self {
        let (arena, config) = (arena(), RequesterConfig { credits: 64, ..RequesterConfig::default() });
        let params =
            millrace_rdma::ConnectParams { private_data: PRIVATE_DATA.to_vec(), ..Default::default() };
        let (c, s) = fabric::pair(usize::MAX, &config.connect_params(), &params);
        let raw = Raw::new(Box::new(s), &arena);
        Self { client: Requester::from_queue_pair(Box::new(c), rt(), arena, config).unwrap(), raw }
    }

    fn call(&self, ask: Ask) -> tokio::task::JoinHandle<Result<Reply, RpcError>> {
        tokio::spawn(self.client.submit(request(&self.raw.arena, ask)))
    }

    /// Sends `words` as [`hex`] reads them, and invalidates the segment's tag.
    fn send(&mut self, words: &str, call: &Header, segment: Segment) {
        let bytes = hex(words, call, segment);
        self.raw.send_invalidating(&bytes, Some(segment.handle));
    }
}

/// `words` with the call's XID for `75892dd1`, the segment's tag for `5703c301` and its offset for `offset`.
fn hex(words: &str, call: &Header, segment: Segment) -> Vec<u8> {
    let bytes = |w| match w {
        "75892dd1" => call.xid.to_be_bytes().to_vec(),
        "5703c301" => segment.handle.0.to_be_bytes().to_vec(),
        "offset" => segment.offset.to_be_bytes().to_vec(),
        _ => u32::from_str_radix(w, 16).unwrap().to_be_bytes().to_vec(),
    };
    words.split_whitespace().flat_map(bytes).collect()
}

#[tokio::test]
async fn an_error_of_24_bytes_is_conveyed_in_the_reply_chunk_and_invalidates_its_tag() {
    let mut linux = Linux::new();
    let waiting = linux.call(Ask { reply_head: 6000, ..Ask::default() });
    let (call, _) = linux.raw.receive_header().await;
    let Body::Msg(lists) = &call.body else { panic!("{call}") };
    let segment = lists.reply.as_ref().unwrap()[0];
    // The port does not offer MOUNT: PROG_UNAVAIL.
    let reply = hex("75892dd1 00000001 00000000 00000000 00000000 00000001", &call, segment);
    linux.raw.write(&reply, segment);
    let sent = "75892dd1 00000001 00000080 00000001 00000000 00000000 \
                00000001 00000001 5703c301 00000018 offset";
    linux.send(sent, &call, segment);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, RpcError::Accept(AcceptError::ProgUnavail)), "{error}");
    let stats = linux.client.stats();
    assert_eq!((stats.long_replies, stats.remote_invalidations, stats.credits_granted), (1, 1, 128));
}

#[tokio::test]
async fn reads_return_the_written_length_and_invalidate_the_tag_of_an_unused_chunk() {
    for data in [&b""[..], b"abc"] {
        let mut linux = Linux::new();
        let waiting = linux.call(Ask { receive: 5000, ..Ask::default() });
        let (call, _) = linux.raw.receive_header().await;
        let Body::Msg(lists) = &call.body else { panic!("{call}") };
        let segment = lists.writes[0][0];
        if !data.is_empty() {
            linux.raw.write(data, segment);
        }
        // NFS3_OK, attributes, count, end of file and length of the data; the bytes and padding are in the
        // chunk.
        let n = data.len();
        let sent = format!(
            "75892dd1 00000001 00000080 00000000 00000000 00000001 00000001 5703c301 {n:08x} offset \
             00000000 00000000 75892dd1 00000001 00000000 00000000 00000000 00000000 00000000 00000001 00000001 \
             000001a4 00000001 00000000 00000000 00000000 {n:08x} 00000000 00001000 00000000 00000000 00000000 \
             00000000 00000000 00000005 6b01101e 21db09da 6b01101e 21d8d3da 6b01101e 21d8d3da \
             {n:08x} 00000001 {n:08x}"
        );
        linux.send(&sent, &call, segment);
        let reply = waiting.await.unwrap().unwrap();
        let mut d = reply.results();
        d.raw(4 + 88).unwrap();
        assert_eq!((d.u32().unwrap(), d.u32().unwrap()), (n as u32, 1));
        assert_eq!(d.payload(5000).unwrap().to_vec(), data);
        assert_eq!(linux.client.stats().remote_invalidations, 1);
        assert_eq!(linux.client.exposed(), (0, 0));
    }
}
