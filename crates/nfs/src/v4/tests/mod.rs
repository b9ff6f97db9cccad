//! Tests of the XDR of NFSv4: encoded bytes, round trips, truncation at every byte, and hostile input. The
//! modules divide the operations by topic.

mod attributes;
mod callback;
mod frame;
mod modify;
mod open;
mod properties;
mod session;
mod sizes;

use millrace_xdr::{Arena, Decode, Decoder, Encode, Encoder, Message, View, Views};

/// An arena per test thread.
fn arena() -> Arena {
    thread_local!(static A: Arena = Arena::new(millrace_buffer::ArenaConfig { limit: 64 << 20, huge_pages: false }));
    A.with(Clone::clone)
}

fn view(bytes: &[u8]) -> View {
    arena().copy_from(bytes).unwrap()
}

fn views(bytes: &[u8]) -> Views {
    view(bytes).into()
}

/// The message that `put` encodes; payloads are separate.
fn encoded(put: impl FnOnce(&mut Encoder)) -> Message {
    let mut e = Encoder::new(&arena(), 64);
    put(&mut e);
    e.finish().unwrap()
}

fn message(v: &impl Encode) -> Message {
    encoded(|e| e.put(v))
}

/// The whole stream, with payloads in place, as TCP delivers it.
fn flat(m: &Message) -> Vec<u8> {
    let zeros = view(&[0; 4]);
    m.gather(&zeros).iter().flat_map(|v| v.to_vec()).collect()
}

/// The whole stream as hexadecimal words.
fn hex(bytes: &[u8]) -> String {
    let word = |w: &[u8]| w.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.chunks(4).map(word).collect::<Vec<_>>().join(" ")
}

/// The bytes of hexadecimal words; everything after `#` in a line is a comment.
fn bytes(words: &str) -> Vec<u8> {
    let digits: Vec<u8> = words
        .lines()
        .flat_map(|l| l.split('#').next().unwrap_or_default().bytes())
        .filter(u8::is_ascii_hexdigit)
        .collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// Asserts that `value` is encoded as `words`, that these bytes are decoded as a value that is printed and
/// encoded equally, and that every truncation of them is an error.
macro_rules! exact {
    ($t:ty, $value:expr, $words:expr) => {{
        let value = $value;
        let expected = $crate::v4::tests::bytes($words);
        let got = $crate::v4::tests::flat(&$crate::v4::tests::message(&value));
        assert_eq!($crate::v4::tests::hex(&got), $crate::v4::tests::hex(&expected));
        $crate::v4::tests::round_trip!($t, value);
    }};
}

/// Asserts that `value` is decoded as a value that is printed and encoded equally, with payloads separate and in
/// place, and that every truncation is an error.
macro_rules! round_trip {
    ($t:ty, $value:expr) => {{
        let value = $value;
        let parts = $crate::v4::tests::message(&value);
        let bytes = $crate::v4::tests::flat(&parts);
        let whole = millrace_xdr::Message::from_view($crate::v4::tests::view(&bytes));
        for m in [&parts, &whole] {
            let mut d = millrace_xdr::Decoder::new(m);
            let back: $t = d.get().unwrap();
            assert_eq!(d.remaining(), 0);
            let again = $crate::v4::tests::flat(&$crate::v4::tests::message(&back));
            assert_eq!($crate::v4::tests::hex(&again), $crate::v4::tests::hex(&bytes));
        }
        for cut in 0..bytes.len() {
            let short = millrace_xdr::Message::from_view($crate::v4::tests::view(&bytes[..cut]));
            assert!(
                millrace_xdr::Decoder::new(&short).get::<$t>().is_err(),
                "cut at {cut} of {}",
                bytes.len()
            );
        }
    }};
}

pub(crate) use {exact, round_trip};

/// Decodes plain bytes.
fn decode<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Result<T, millrace_xdr::XdrError> {
    Decoder::from_bytes(bytes).get()
}
