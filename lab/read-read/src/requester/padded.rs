//! RDMA_MSGP (RFC 5666 section 3.7): inline calls with long items aligned in the responder's receive buffer.

use millrace_buffer::{View, Views};
use millrace_oncrpc::Message;
use millrace_xdr::{ItemPadding, pad};

/// The stream of `message` with pad bytes before its payloads. `None` if no payload needs padding, if an item
/// of the head might need padding (the head is at least as long as the threshold), or if `zeros` is too
/// short.
pub(super) fn padded(message: &Message, padding: &ItemPadding, zeros: &View) -> Option<Views> {
    let long = |p: &millrace_xdr::Payload| p.data.len() >= padding.threshold;
    if message.head.len() >= padding.threshold || !message.payloads.iter().any(long) {
        return None;
    }
    let mut out = Views::new();
    let mut at = 0;
    for p in &message.payloads {
        out.extend(message.head.slice(at, p.position - at).iter().cloned());
        let before = padding.before(out.len(), p.data.len());
        if before > zeros.len() {
            return None;
        }
        out.push(zeros.slice(0, before));
        out.extend(p.data.iter().cloned());
        out.push(zeros.slice(0, pad(p.data.len())));
        at = p.position;
    }
    out.extend(message.head.slice(at, message.head.len() - at).iter().cloned());
    Some(out)
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_xdr::{Decoder, Encoder};

    use super::*;

    #[test]
    fn long_payloads_are_aligned_and_decoded_again() {
        let arena = Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false });
        let zeros = arena.copy_from(&[0; 64]).unwrap();
        for (origin, align) in [(36, 64), (28, 4), (30, 12), (0, 32)] {
            let padding = ItemPadding { align, threshold: 100, origin };
            let mut e = Encoder::new(&arena, 64);
            e.put_opaque(&[1; 9]);
            e.put_payload(arena.copy_from(&[2; 301]).unwrap().into());
            e.put_payload(arena.copy_from(&[3; 50]).unwrap().into());
            e.put_u32(4);
            let stream = padded(&e.finish().unwrap(), &padding, &zeros).unwrap().to_vec();
            let first = stream.iter().position(|b| *b == 2).unwrap();
            assert_eq!((first + origin) % align, 0);
            let mut received = Message::from_view(arena.copy_from(&stream).unwrap());
            received.padding = Some(padding);
            let mut d = Decoder::new(&received);
            assert_eq!(d.opaque(100).unwrap(), [1; 9]);
            assert_eq!(d.payload(1000).unwrap().to_vec(), [2; 301]);
            assert_eq!(d.opaque(1000).unwrap(), [3; 50]);
            assert_eq!((d.u32(), d.remaining()), (Ok(4), 0));
        }
    }

    #[test]
    fn ambiguous_messages_are_not_padded() {
        let arena = Arena::new(ArenaConfig { limit: 1 << 22, huge_pages: false });
        let zeros = arena.copy_from(&[0; 64]).unwrap();
        let padding = ItemPadding { align: 64, threshold: 100, origin: 0 };
        let build = |head: usize, payload: usize| {
            let mut e = Encoder::new(&arena, 64);
            e.put_raw(&vec![1; head]);
            e.put_payload(arena.copy_from(&vec![2; payload]).unwrap().into());
            e.finish().unwrap()
        };
        assert!(padded(&build(20, 99), &padding, &zeros).is_none());
        assert!(padded(&build(96, 100), &padding, &zeros).is_none());
        assert!(padded(&build(92, 100), &padding, &zeros).is_some());
    }
}
