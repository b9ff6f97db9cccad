//! iSER: headers (RFC 7145 section 9) and private data.

use millrace_iscsi::iser::{
    Advertised, HEADER_BYTES, Header, HeaderError, Hello, HelloReply, PrivateData, RemoteBuffer, VERSION,
};

use crate::{bytes::Input, heap::bounded};

/// Executes the target with `input`: the target's number of RDMA Reads, the length of the private data, private
/// data, and a message.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let ord = input.u16();
    let private_len = usize::from(input.u8() % 8);
    private_data(input.take(private_len));
    let message = input.rest();
    match bounded(message.len(), || Header::decode(message)) {
        Ok((header, rest)) => {
            assert_eq!(rest, &message[HEADER_BYTES..]);
            accepted(&header, &message[..HEADER_BYTES], ord);
        }
        Err(HeaderError::Short(len)) => assert!(len == message.len() && len < HEADER_BYTES),
        Err(HeaderError::Opcode(opcode)) => assert_eq!(opcode, message[0] >> 4),
    }
}

fn accepted(header: &Header, bytes: &[u8], ord: u16) {
    let again = header.encode();
    assert_eq!(Header::decode(&again), Ok((*header, &[][..])));
    // Only reserved bits, and fields that the flags declare invalid, differ.
    assert_eq!(again[0] >> 4, bytes[0] >> 4);
    match header {
        Header::Control(advertised) => {
            let expect = |buffer: Option<RemoteBuffer>, at: usize| match buffer {
                Some(_) => assert_eq!(again[at..at + 12], bytes[at..at + 12]),
                None => assert_eq!(again[at..at + 12], [0; 12]),
            };
            expect(advertised.write, 4);
            expect(advertised.read, 16);
        }
        Header::Hello(hello) => {
            let reply = hello.reply(ord);
            assert!(reply.ord <= ord.min(hello.ird));
            let common = hello.min_version <= VERSION && VERSION <= hello.max_version;
            assert_eq!(reply.rejected, !common);
            assert_eq!(
                Header::decode(&Header::HelloReply(reply).encode()).map(|h| h.0),
                Ok(Header::HelloReply(reply))
            );
        }
        Header::HelloReply(_) => assert_eq!(again[1..4], bytes[1..4]),
    }
}

fn private_data(bytes: &[u8]) {
    let data = PrivateData::decode(bytes);
    assert!(bytes.len() >= PrivateData::BYTES || !data.remote_invalidate);
    assert_eq!(PrivateData::decode(&data.encode()), data);
}

/// Each kind of header, with each kind of private data.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let buffer = Some(RemoteBuffer { stag: 0x501, base: 0x7f00_0000_1000 });
    let reply = HelloReply { rejected: false, max_version: VERSION, version: VERSION, ord: 4 };
    let headers = [
        Header::CONTROL,
        Header::Control(Advertised { write: None, read: buffer }),
        Header::Control(Advertised { write: buffer, read: None }),
        Header::Hello(Hello::new(16)),
        Header::Hello(Hello { max_version: 9, min_version: 1, ird: 1 }),
        Header::HelloReply(reply),
    ];
    let private =
        [&[][..], &PrivateData { remote_invalidate: true }.encode(), &[0xc0, 0, 0, 0, 0, 0], &[0; 3]];
    (headers.iter().zip(private.iter().cycle()))
        .map(|(header, private)| {
            [&[0, 8, private.len() as u8][..], private, &header.encode(), &[0x41; 48]].concat()
        })
        .collect()
}
