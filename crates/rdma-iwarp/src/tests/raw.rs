//! A peer made of bytes: it sends what no honest end would.

use std::io::{IoSlice, IoSliceMut};

use millrace_runtime::{ByteStream, MemoryStream};

use super::*;
use crate::wire::{crc::Crc, fpdu};

/// The peer's end of the stream.
pub(super) struct Raw {
    pub(super) stream: MemoryStream,
}

/// `words` as bytes: hexadecimal, spaces ignored.
pub(super) fn hex(words: &str) -> Vec<u8> {
    let digits: Vec<u8> = words.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// An FPDU around `ulpdu`, with a right CRC.
pub(super) fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
    out.extend(ulpdu);
    out.resize(out.len() + fpdu::pad_bytes(ulpdu.len()), 0);
    let mut crc = Crc::new();
    crc.update(&out);
    out.extend(crc.wire());
    out
}

/// A tagged ULPDU: the two control bytes, the tag, the offset, the payload.
pub(super) fn tagged(control: u16, tag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&control.to_be_bytes()[..], &tag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

/// An untagged ULPDU: the two control bytes, then the fields and the payload.
pub(super) fn untagged(
    control: u16,
    invalidate: u32,
    [queue, msn, offset]: [u32; 3],
    payload: &[u8],
) -> Vec<u8> {
    let fields = [invalidate, queue, msn, offset].map(u32::to_be_bytes).concat();
    [&control.to_be_bytes()[..], &fields, payload].concat()
}

/// A Send of one segment.
pub(super) fn raw_send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(0x4143, 0, [0, msn, 0], payload)
}

/// A Read Request's body.
pub(super) fn read_body(sink: (u32, u64), size: u32, source: (u32, u64)) -> Vec<u8> {
    [
        &sink.0.to_be_bytes()[..],
        &sink.1.to_be_bytes(),
        &size.to_be_bytes(),
        &source.0.to_be_bytes(),
        &source.1.to_be_bytes(),
    ]
    .concat()
}

impl Raw {
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let cx = &mut Context::from_waker(Waker::noop());
            match self.stream.poll_write(cx, &[IoSlice::new(bytes)]) {
                Poll::Ready(Ok(n)) => bytes = &bytes[n..],
                // The other end is gone: what it did not want it shall not have.
                Poll::Ready(Err(_)) => return,
                Poll::Pending => panic!("the stream is full"),
            }
        }
    }

    /// Everything that has come.
    pub(super) fn read(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut buf = [0; 4096];
        let cx = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(n)) = self.stream.poll_read(cx, &mut [IoSliceMut::new(&mut buf)]) {
            if n == 0 {
                break;
            }
            out.extend(&buf[..n]);
        }
        out
    }

    /// The ULPDUs that have come.
    pub(super) fn ulpdus(&mut self) -> Vec<Vec<u8>> {
        let bytes = self.read();
        let (mut out, mut rest) = (Vec::new(), &bytes[..]);
        while !rest.is_empty() {
            let len = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
            out.push(rest[2..2 + len].to_vec());
            rest = &rest[fpdu::total_bytes(len)..];
        }
        out
    }
}

/// The MPA request that Linux's siw sends (with CRC if wanted), with no private data.
pub(super) fn siw_request(crc: bool, ird: u16, ord: u16) -> Vec<u8> {
    let word: u16 = if crc { 0x5002 } else { 0x1002 };
    [
        b"MPA ID Req Frame",
        &word.to_be_bytes()[..],
        &4u16.to_be_bytes(),
        &ird.to_be_bytes(),
        &ord.to_be_bytes(),
    ]
    .concat()
}

/// Starts `accept_over` against what `request` says; the outcome, and the peer's end.
pub(super) fn accept(
    request: &[u8],
    segment: usize,
    params: ConnectParams,
) -> (Option<Result<Qp, ConnectionError>>, Raw) {
    let (a, b) = memory_stream(1 << 20, segment);
    let mut raw = Raw { stream: a };
    let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params));
    assert!(poll_once(&mut r).is_pending(), "a responder waits for the request");
    assert_eq!(raw.read(), b"", "and says nothing before");
    raw.write(request);
    for _ in 0..1000 {
        if let Poll::Ready(q) = poll_once(&mut r) {
            return (Some(q), raw);
        }
    }
    (None, raw)
}

/// A responder of ours that is up, and the peer's end.
pub(super) fn up(crc: bool, params: ConnectParams) -> (Qp, Raw) {
    let (qp, mut raw) = accept(&siw_request(crc, 128, 2), usize::MAX, params);
    let qp = qp.expect("the responder answers").unwrap();
    let reply = raw.read();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    (qp, raw)
}
