//! RPC-over-RDMA: transport headers (RFC 8166) and private data (RFC 8797).

use millrace_rdma::{Segment, SteeringTag};
use millrace_rpcrdma::{
    Body, DEFAULT_INLINE, Header, HeaderError, Lists, MAX_INLINE, PrivateData, ReadSegment, Thresholds,
    TransportError,
};

use crate::{bytes::Input, heap::bounded};

/// Input: a limit of segments, and a header.
pub(super) mod header {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let limit = usize::from(input.u8());
        let bytes = input.rest();
        match bounded(bytes.len(), || Header::decode(bytes, limit)) {
            Ok((header, used)) => accepted(&header, &bytes[..used], limit),
            Err(HeaderError::Short(len)) => assert_eq!(len, bytes.len()),
            Err(
                HeaderError::Version { xid, .. }
                | HeaderError::Malformed { xid, .. }
                | HeaderError::UnknownError { xid },
            ) => assert_eq!(xid.to_be_bytes(), bytes[..4]),
        }
    }

    fn accepted(header: &Header, bytes: &[u8], limit: usize) {
        if let Body::Msg(lists) | Body::NoMsg(lists) = &header.body {
            assert!(lists.segments().count() <= limit, "more segments than the limit");
            assert!(lists.segments().all(|s| s.offset.checked_add(s.length.into()).is_some()));
        }
        assert_eq!(header.encoded_len(), bytes.len());
        let mut again = vec![0; bytes.len()];
        assert_eq!(header.encode(&mut again), bytes.len());
        assert_eq!(again, bytes, "{header}");
    }

    /// Headers of each procedure, with each list.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let segment =
            |handle| Segment { handle: SteeringTag(handle), length: 5000, offset: 0x7f00_0000_1000 };
        let write = [segment(0x502), segment(0x503)].into_iter().collect();
        let mut lists = Lists::default();
        lists.reads.push(ReadSegment { position: 72, segment: segment(0x501) });
        lists.writes.push(write);
        lists.reply = Some([segment(0x504)].into_iter().collect());
        let bodies = [
            Body::Msg(Lists::default()),
            Body::Msg(lists.clone()),
            Body::NoMsg(lists),
            Body::Done,
            Body::Error(TransportError::Version { low: 1, high: 1 }),
            Body::Error(TransportError::Chunk),
        ];
        let seed = |body| {
            let header = Header::new(0x1122_3345, 32, body);
            let mut out = vec![16; header.encoded_len() + 1];
            header.encode(&mut out[1..]);
            out
        };
        bodies.map(seed).into()
    }
}

/// The private data of both ends.
pub(super) mod private_data {
    use super::*;

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let (ours, theirs) = input.split_at(input.len().min(8));
        let [ours, theirs] = [ours, theirs].map(|bytes| bounded(bytes.len(), || PrivateData::decode(bytes)));
        for data in [&ours, &theirs].into_iter().flatten() {
            assert_eq!(PrivateData::decode(&data.encode()), Some(*data));
        }
        if let Some(ours) = ours {
            let Thresholds { send, receive } = Thresholds::negotiate(&ours, theirs.as_ref());
            assert!(
                (DEFAULT_INLINE..=MAX_INLINE).contains(&send) && send <= ours.send_size.max(DEFAULT_INLINE)
            );
            assert!((DEFAULT_INLINE..=MAX_INLINE).contains(&receive));
        }
    }

    /// Private data of requesters and responders, and of other programs.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let data = |send_size, receive_size| {
            PrivateData { remote_invalidate: true, send_size, receive_size }.encode()
        };
        let ours = data(4096, 4096);
        [&ours[..], &data(1024, MAX_INLINE), &[], b"\0\0\0\0siw"]
            .map(|theirs| [&ours, theirs].concat())
            .into()
    }
}
