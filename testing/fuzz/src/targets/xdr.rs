//! Helpers of the targets of XDR types.

use millrace_buffer::{Arena, ArenaConfig};
use millrace_xdr::{Encoder, Message, View};

/// The arena of the executions in this thread.
pub(crate) fn arena() -> Arena {
    thread_local! {
        static ARENA: Arena = Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false });
    }
    ARENA.with(Clone::clone)
}

/// `bytes` in arena memory.
pub(crate) fn view(bytes: &[u8]) -> View {
    arena().copy_from(bytes).expect("arena memory")
}

/// A message that was received in one piece.
pub(crate) fn received(bytes: &[u8]) -> Message {
    Message::from_view(view(bytes))
}

/// The message that `put` encodes, with its payloads beside the head.
pub(crate) fn message(put: impl FnOnce(&mut Encoder)) -> Message {
    let mut e = Encoder::new(&arena(), 256);
    put(&mut e);
    e.finish().expect("arena memory")
}

/// `message` as one stream.
pub(crate) fn flat(message: &Message) -> Vec<u8> {
    thread_local! {
        static ZEROS: View = view(&[0; 4]);
    }
    ZEROS.with(|zeros| message.gather(zeros).to_vec())
}

/// The stream that `put` encodes.
pub(crate) fn encoded(put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    flat(&message(put))
}

/// Asserts for a decoder and its encoder, on arbitrary bytes: the decoder allocates in proportion to its
/// input; an accepted value is encoded in as many bytes as were decoded, and decoded and encoded again
/// without a change, with payloads in the stream and beside it; an input shorter by one byte is rejected.
macro_rules! codec {
    ($bytes:expr, |$d:ident| $get:expr, |$v:ident, $e:ident| $put:expr $(,)?) => {{
        let bytes: &[u8] = $bytes;
        let input = $crate::targets::xdr::received(bytes);
        let mut decoder = ::millrace_xdr::Decoder::new(&input);
        let decoded = $crate::heap::bounded(bytes.len(), || {
            let $d = &mut decoder;
            $get
        });
        if let Ok($v) = decoded {
            let used = decoder.position();
            let parts = $crate::targets::xdr::message(|$e| $put);
            let stream = $crate::targets::xdr::flat(&parts);
            assert_eq!(stream.len(), used, "the encoded length differs from the decoded one");
            for form in [&$crate::targets::xdr::received(&stream), &parts] {
                let mut decoder = ::millrace_xdr::Decoder::new(form);
                let $d = &mut decoder;
                let $v = $get.expect("an encoded value is decoded");
                assert_eq!(decoder.remaining(), 0, "bytes remain");
                assert_eq!($crate::targets::xdr::encoded(|$e| $put), stream, "the value has changed");
            }
            if let Some(less) = used.checked_sub(1) {
                let cut = $crate::targets::xdr::received(&stream[..less]);
                let mut decoder = ::millrace_xdr::Decoder::new(&cut);
                let $d = &mut decoder;
                assert!($get.is_err(), "a truncated value is accepted");
            }
        }
    }};
}

pub(crate) use codec;
