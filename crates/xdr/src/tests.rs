//! Round trips, and rejection of invalid input.

use millrace_buffer::ArenaConfig;
use proptest::prelude::*;

use super::*;

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 8 << 20, huge_pages: false })
}

/// Creates a message with head `bytes`.
fn message(bytes: &[u8]) -> Message {
    Message::from_view(arena().copy_from(bytes).unwrap())
}

fn encoded(put: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut e = Encoder::new(&arena(), 0);
    put(&mut e);
    let len = e.len();
    let m = e.finish().unwrap();
    assert!(m.payloads.is_empty());
    assert_eq!((m.head.len(), m.stream_len()), (len, len));
    m.head.to_vec()
}

#[test]
fn values_are_encoded_as_in_rfc_4506() {
    assert_eq!(encoded(|e| e.put(&0x0102_0304u32)), [1, 2, 3, 4]);
    assert_eq!(encoded(|e| e.put(&0x0102_0304_0506_0708u64)), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(encoded(|e| e.put(&true)), [0, 0, 0, 1]);
    assert_eq!(encoded(|e| e.put(&[9u8; 5])), [9, 9, 9, 9, 9, 0, 0, 0]);
    assert_eq!(encoded(|e| e.put_opaque(b"abcde")), *b"\0\0\0\x05abcde\0\0\0");
    assert_eq!(encoded(|e| e.put_opaque(b"")), [0; 4]);
    assert_eq!(encoded(|e| e.put(&None::<u32>)), [0; 4]);
    assert_eq!(encoded(|e| e.put(&Some(7u32))), [0, 0, 0, 1, 0, 0, 0, 7]);
    assert_eq!(encoded(|e| e.put(&())), []);
    assert_eq!([0, 1, 2, 3, 4, 5].map(pad), [0, 3, 2, 1, 0, 3]);
}

#[test]
fn head_grows_and_can_be_patched() {
    let bytes = encoded(|e| {
        assert!(e.is_empty());
        (0..10_000).for_each(|i| e.put_u32(i));
        e.patch_u32(8, 77);
        e.patch_u32(39_998, 5); // Beyond the end: ignored.
        e.truncate(20_000);
    });
    let words: Vec<_> = bytes.chunks(4).map(|c| u32::from_be_bytes(c.try_into().unwrap())).collect();
    assert_eq!((words.len(), &words[..4]), (5000, &[0, 1, 77, 3][..]));
    assert_eq!(words[4999], 4999);
}

#[test]
fn exhausted_arena_is_reported_by_finish() {
    let a = Arena::new(ArenaConfig { limit: 1, huge_pages: false });
    let all: Vec<_> = std::iter::from_fn(|| a.alloc(millrace_buffer::SPAN_BYTES / 2).ok()).collect();
    let mut e = Encoder::new(&a, 100);
    e.put_u32(1);
    e.put_opaque(&[0; 1000]);
    assert_eq!(e.finish().unwrap_err().wanted, 128 + 100, "with space for a transport's header");
    drop(all);
    let mut e = Encoder::new(&a, 0);
    let all: Vec<_> = std::iter::from_fn(|| a.alloc(64).ok()).collect();
    e.put_raw(&[0; 64]);
    e.put_raw(&vec![0; millrace_buffer::SPAN_BYTES]);
    e.put_u32(1);
    assert!(e.finish().is_err());
    drop(all);
}

#[test]
fn payloads_are_separate_and_gathered_in_place() {
    let a = arena();
    let data: Views = [a.copy_from(b"abc").unwrap(), a.copy_from(b"defg").unwrap()].into_iter().collect();
    let at = data.iter().next().unwrap().address();
    let mut e = Encoder::new(&a, 0);
    e.put_u32(1);
    e.put_payload(data);
    e.put_u32(2);
    e.put_payload(Views::new());
    let mut m = e.finish().unwrap();
    assert_eq!(m.head.to_vec(), [0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0]);
    let payloads: Vec<_> = m.payloads.iter().map(|p| (p.position, p.data.len())).collect();
    assert_eq!((payloads, m.stream_len()), (vec![(8, 7), (16, 0)], 24));
    let zeros = a.copy_from(&[0; 4]).unwrap();
    assert_eq!(m.gather(&zeros).to_vec(), *b"\0\0\0\x01\0\0\0\x07abcdefg\0\0\0\0\x02\0\0\0\0");
    // Decode the parts, and the stream.
    let mut d = Decoder::new(&m);
    assert_eq!(d.u32(), Ok(1));
    let payload = d.payload(7).unwrap();
    assert_eq!((payload.to_vec(), payload.iter().next().unwrap().address()), (b"abcdefg".to_vec(), at));
    assert_eq!((d.u32(), d.payload(0).map(|v| v.len()), d.remaining()), (Ok(2), Ok(0), 0));
    let stream = message(&m.gather(&zeros).to_vec());
    let mut d = Decoder::new(&stream);
    assert_eq!((d.u32(), d.opaque(7), d.u32()), (Ok(1), Ok(&b"abcdefg"[..]), Ok(2)));
    // A shared head keeps its XID; an unshared one is changed.
    let shared = m.head.clone();
    assert!(!m.set_xid(9) && m.xid() == Some(1));
    drop(shared);
    assert!(m.set_xid(9) && m.xid() == Some(9));
    assert!(!message(b"abc").set_xid(1) && message(b"abc").xid().is_none());
}

#[test]
fn payload_length_may_include_padding() {
    let a = arena();
    let with = |item: u32, len: usize| {
        let mut m = message(&item.to_be_bytes());
        m.payloads.push(Payload { position: 4, data: a.copy_from(&vec![7; len]).unwrap().into() });
        Decoder::new(&m).payload(100).map(|v| v.to_vec())
    };
    assert_eq!(with(5, 5), Ok(vec![7; 5]));
    assert_eq!(with(5, 8), Ok(vec![7; 5]));
    assert_eq!(with(5, 7), Err(XdrError::Payload { at: 4, len: 7 }));
    assert_eq!(with(101, 101), Err(XdrError::TooLong { at: 0, len: 101, max: 100 }));
    let mut m = message(&5u32.to_be_bytes());
    m.payloads.push(Payload { position: 4, data: a.copy_from(&[7; 5]).unwrap().into() });
    let mut d = Decoder::new(&m);
    assert_eq!(d.opaque(100), Err(XdrError::Short { at: 4, wanted: 5, left: 0 }));
}

#[test]
fn payload_may_continue_in_further_views() {
    let a = arena();
    let views =
        [a.copy_from(&[0, 0, 0, 9, 1, 2, 3, 4]).unwrap(), a.copy_from(&[5, 6, 7, 8, 9, 0, 0, 0]).unwrap()];
    let m = Message { head: views.into_iter().collect(), ..Message::default() };
    let mut d = Decoder::new(&m);
    assert_eq!(d.payload(9).unwrap().to_vec(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let m = Message { head: m.head.slice(0, 15), ..Message::default() };
    assert_eq!(Decoder::new(&m).payload(9).err(), Some(XdrError::Short { at: 4, wanted: 12, left: 11 }));
}

#[test]
fn truncated_input_is_rejected() {
    let d = |bytes: &'static [u8]| Decoder::from_bytes(bytes);
    assert_eq!(d(&[0, 0, 0]).u32(), Err(XdrError::Short { at: 0, wanted: 4, left: 3 }));
    assert_eq!(d(&[0, 0, 0, 2]).bool(), Err(XdrError::Invalid { at: 0, value: 2 }));
    assert_eq!(d(&[0, 0, 0, 5, 1, 2, 3, 4, 5]).opaque(9), Err(XdrError::Short { at: 4, wanted: 8, left: 5 }));
    assert_eq!(d(&[0, 0, 0, 5]).opaque(4), Err(XdrError::TooLong { at: 0, len: 5, max: 4 }));
    assert!(d(&[255, 255, 255, 255]).opaque(usize::MAX).is_err());
    // The count is checked against the minimum size of the elements.
    assert_eq!(
        d(&[0, 0, 0, 3, 0, 0, 0, 0]).count(10, 4),
        Err(XdrError::Short { at: 4, wanted: 12, left: 4 })
    );
    assert_eq!(d(&[0, 0, 0, 3, 0, 0, 0, 0]).count(2, 0), Err(XdrError::TooLong { at: 0, len: 3, max: 2 }));
    assert!(d(&[255; 8]).count(usize::MAX, usize::MAX).is_err());
    assert_eq!(d(&[1, 2, 3]).fixed::<3>(), Err(XdrError::Short { at: 3, wanted: 1, left: 0 }));
    assert!(d(&[0, 0, 0, 1, 9]).payload(1).is_err());
}

#[derive(Debug, Clone, PartialEq)]
enum Item {
    Word(u32),
    Hyper(u64),
    Opaque(Vec<u8>),
    Payload(Vec<u8>),
    Maybe(Option<u32>),
}

fn item() -> impl Strategy<Value = Item> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        any::<u32>().prop_map(Item::Word),
        any::<u64>().prop_map(Item::Hyper),
        bytes().prop_map(Item::Opaque),
        bytes().prop_map(Item::Payload),
        any::<Option<u32>>().prop_map(Item::Maybe),
    ]
}

fn decode(d: &mut Decoder<'_>, like: &Item) -> Result<Item, XdrError> {
    Ok(match like {
        Item::Word(_) => Item::Word(d.get()?),
        Item::Hyper(_) => Item::Hyper(d.get()?),
        Item::Opaque(_) => Item::Opaque(d.opaque(40)?.to_vec()),
        Item::Payload(_) => Item::Payload(d.payload(40)?.to_vec()),
        Item::Maybe(_) => Item::Maybe(d.get()?),
    })
}

/// Fewer cases under Miri, which is slow, and no failure file, which it cannot write.
fn cases() -> ProptestConfig {
    if cfg!(miri) {
        ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() }
    } else {
        ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn items_round_trip_in_parts_and_as_a_stream(items in prop::collection::vec(item(), 0..20)) {
        let a = arena();
        let mut e = Encoder::new(&a, 0);
        for item in &items {
            match item {
                Item::Word(v) => e.put(v),
                Item::Hyper(v) => e.put(v),
                Item::Opaque(v) => e.put_opaque(v),
                Item::Payload(v) => e.put_payload(a.copy_from(v).unwrap().into()),
                Item::Maybe(v) => e.put(v),
            }
        }
        let m = e.finish().unwrap();
        let stream = m.gather(&a.copy_from(&[0; 3]).unwrap()).to_vec();
        prop_assert_eq!(stream.len(), m.stream_len());
        for m in [&m, &message(&stream)] {
            let mut d = Decoder::new(m);
            for item in &items {
                prop_assert_eq!(&decode(&mut d, item).unwrap(), item);
            }
            prop_assert_eq!(d.remaining(), 0);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), items in prop::collection::vec(item(), 1..10)) {
        let m = message(&bytes);
        let mut d = Decoder::new(&m);
        for item in &items {
            let before = d.position();
            let _ = decode(&mut d, item);
            prop_assert!(before <= d.position() && d.position() <= bytes.len());
        }
    }
}

#[test]
fn items_after_a_payload_of_several_views_are_decoded() {
    let a = arena();
    let mut e = Encoder::new(&a, 256);
    e.put_u32(7);
    e.put_opaque(&[5; 21]);
    e.put_u32(8);
    e.put_u32(9);
    let whole: Vec<u8> = e.finish().unwrap().head.to_vec();
    // The payload ends at 32 with its padding.
    for (first, second) in [(8, 32), (12, 28), (24, 36), (16, 20)] {
        let mut message = Message::default();
        for part in [&whole[..first], &whole[first..second], &whole[second..]] {
            message.head.push(a.copy_from(part).unwrap());
        }
        let mut d = Decoder::new(&message);
        assert_eq!(d.u32().unwrap(), 7);
        assert_eq!(d.payload(100).unwrap().to_vec(), [5; 21], "{first} {second}");
        assert_eq!(d.rest().collect::<Vec<_>>().concat(), [0, 0, 0, 8, 0, 0, 0, 9]);
        assert_eq!(d.position(), 32);
        if second != 36 {
            assert_eq!((d.u32().ok(), d.u32().ok()), (Some(8), Some(9)), "{first} {second}");
            assert_eq!((d.position(), d.remaining()), (40, 0));
        }
    }
}
