//! A peer that sends arbitrary bytes.

use std::io::{IoSlice, IoSliceMut};

use millrace_runtime::{ByteStream, MemoryStream};

use super::*;
use crate::wire::{crc::Crc, fpdu};

/// The peer's end of the stream.
pub(super) struct Raw {
    pub(super) stream: MemoryStream,
}

/// Decodes hexadecimal digits; spaces are ignored.
pub(super) fn hex(words: &str) -> Vec<u8> {
    let digits: Vec<u8> = words.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// An FPDU with `ulpdu` and a correct CRC.
pub(super) fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
    out.extend(ulpdu);
    out.resize(out.len() + fpdu::pad_bytes(ulpdu.len()), 0);
    let mut crc = Crc::new();
    crc.update(&out);
    out.extend(crc.wire());
    out
}

/// A tagged ULPDU from its control bytes, tag, offset and payload.
pub(super) fn tagged(control: u16, tag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&control.to_be_bytes()[..], &tag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
}

/// An untagged ULPDU from its control bytes, fields and payload.
pub(super) fn untagged(
    control: u16,
    invalidate: u32,
    [queue, msn, offset]: [u32; 3],
    payload: &[u8],
) -> Vec<u8> {
    let fields = [invalidate, queue, msn, offset].map(u32::to_be_bytes).concat();
    [&control.to_be_bytes()[..], &fields, payload].concat()
}

/// A Send with one segment.
pub(super) fn raw_send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged(0x4143, 0, [0, msn, 0], payload)
}

/// The body of a Read Request.
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
                // The other end has closed and discards the rest.
                Poll::Ready(Err(_)) => return,
                Poll::Pending => panic!("the stream is full"),
            }
        }
    }

    /// All bytes received so far.
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

    /// All ULPDUs received so far.
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

/// The MPA request that Linux's siw sends, without private data.
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

/// Runs `accept_over` with a peer that sends `request`. Returns the result and the peer's end.
pub(super) fn accept(
    request: &[u8],
    segment: usize,
    params: ConnectParams,
) -> (Option<Result<Qp, ConnectionError>>, Raw) {
    let (a, b) = memory_stream(1 << 20, segment);
    let mut raw = Raw { stream: a };
    let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params));
    assert!(poll_once(&mut r).is_pending(), "the responder did not wait for the request");
    assert_eq!(raw.read(), b"", "the responder sent data before the request");
    raw.write(request);
    for _ in 0..1000 {
        if let Poll::Ready(q) = poll_once(&mut r) {
            return (Some(q), raw);
        }
    }
    (None, raw)
}

/// A responder after startup, and the peer's end.
pub(super) fn up(crc: bool, params: ConnectParams) -> (Qp, Raw) {
    let (qp, mut raw) = accept(&siw_request(crc, 128, 2), usize::MAX, params);
    let qp = qp.expect("no reply from the responder").unwrap();
    let reply = raw.read();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    (qp, raw)
}
