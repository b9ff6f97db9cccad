//! Requests and replies in the memory of an entry: the layouts of `include/uapi/linux/fuse.h` byte by byte.

use millrace_fuse_session::protocol::{
    DecodeError, Header, Operation, ROOT, Reply, RingCommand, RingEntry, RingRequest, WriteRequest,
};

const PAYLOAD: usize = 8192;

/// The header of a request (`fuse_in_header`).
fn header(length: u32, opcode: u32) -> Vec<u8> {
    let mut bytes = [length, opcode].map(u32::to_ne_bytes).as_flattened().to_vec();
    bytes.extend([77, ROOT].map(u64::to_ne_bytes).as_flattened());
    bytes.extend([1, 2, 3, 0_u32].map(u32::to_ne_bytes).as_flattened());
    bytes
}

/// An entry after the kernel has written a request.
fn entry(header: &[u8], operation: &[u8], payload: &[u8]) -> RingEntry {
    let mut entry = RingEntry::new(PAYLOAD);
    let [head, data] = entry.parts();
    assert_eq!((head.len(), data.len(), data.as_ptr() as usize % 4096), (288, PAYLOAD, 0));
    head[..40].copy_from_slice(header);
    head[128..128 + operation.len()].copy_from_slice(operation);
    head[264..272].copy_from_slice(&99_u64.to_ne_bytes());
    head[272..276].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
    data[..payload.len()].copy_from_slice(payload);
    entry
}

#[test]
fn commands_have_the_layout_of_the_kernel() {
    assert_eq!((RingCommand::Register as u32, RingCommand::CommitAndFetch as u32), (1, 2));
    let mut expected = [0; 80];
    expected[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
    expected[16..18].copy_from_slice(&300_u16.to_ne_bytes());
    assert_eq!(RingCommand::argument(300, 0x0102_0304_0506_0708), expected);
}

#[test]
fn requests_become_messages_of_the_device() {
    // FUSE_WRITE: `fuse_write_in`, then the data.
    let operation =
        [[5_u64, 4096].map(u64::to_ne_bytes).as_flattened(), &4_u32.to_ne_bytes(), &[0; 20]].concat();
    let header = header(40 + 40 + 4, 16);
    let mut written = entry(&header, &operation, b"data");
    let RingRequest { commit, message } = written.request().unwrap();
    assert_eq!((commit, message), (99, &[&header[..], &operation, b"data"].concat()[..]));
    let (header, body) = Header::decode(message).unwrap();
    let Operation::Write(write) = Operation::decode(&header, body).unwrap() else { panic!("not a write") };
    assert_eq!((header.unique, write.handle, write.offset, write.size), (77, 5, 4096, 4));
    assert_eq!(&message[WriteRequest::DATA..], b"data");
}

#[test]
fn names_follow_without_a_fixed_part() {
    let mut lookup = entry(&header(40 + 5, 1), &[], b"name\0");
    let message = lookup.request().unwrap().message;
    let (header, body) = Header::decode(message).unwrap();
    assert_eq!(Operation::decode(&header, body), Ok(Operation::Lookup { name: b"name" }));
}

#[test]
fn contradicting_lengths_are_rejected() {
    for (stated, payload) in [(39, 0), (0, 0), (44, 5), (40 + 129, 0), (u32::MAX, 0)] {
        let mut bad = entry(&header(stated, 1), &[], &vec![0; payload]);
        assert!(matches!(bad.request(), Err(DecodeError::Length { .. })), "{stated} {payload}");
    }
    let mut long = entry(&header(40 + PAYLOAD as u32 + 1, 1), &[], &[]);
    long.parts()[0][272..276].copy_from_slice(&(PAYLOAD as u32 + 1).to_ne_bytes());
    assert!(matches!(long.request(), Err(DecodeError::Length { .. })));
}

#[test]
fn replies_are_divided_into_header_and_payload() {
    let mut entry = entry(&header(40, 15), &[], &[]);
    assert!(entry.set_reply(&Reply::Data(b"some data").encode(77).slices()));
    let [head, payload] = entry.parts();
    assert_eq!(
        head[..16],
        *[[25, 0].map(u32::to_ne_bytes).as_flattened(), &77_u64.to_ne_bytes()[..]].concat()
    );
    assert_eq!((&head[272..276], &payload[..9]), (&9_u32.to_ne_bytes()[..], &b"some data"[..]));
    // The fixed part of a reply is payload too.
    assert!(entry.set_reply(&Reply::Written(3).encode(78).slices()));
    let [head, payload] = entry.parts();
    assert_eq!(
        (&head[272..276], &payload[..8]),
        (&8_u32.to_ne_bytes()[..], [3, 0].map(u32::to_ne_bytes).as_flattened())
    );
    assert!(entry.set_reply(&Reply::Error(5).encode(79).slices()));
    let [head, _] = entry.parts();
    assert_eq!((&head[4..8], &head[272..276]), (&(-5_i32).to_ne_bytes()[..], &[0; 4][..]));
}

#[test]
fn replies_that_do_not_fit_are_rejected() {
    let mut entry = RingEntry::new(PAYLOAD);
    assert!(entry.set_reply(&Reply::Data(&[1; PAYLOAD]).encode(77).slices()));
    assert!(!entry.set_reply(&Reply::Data(&[1; PAYLOAD + 1]).encode(77).slices()));
    assert!(!entry.set_reply(&[]));
}
