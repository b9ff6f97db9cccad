//! Tests of the STag table with every kind of registration.

use std::sync::LazyLock;

use millrace_buffer::{Arena, ArenaConfig};
use millrace_runtime::virtual_time::VirtualTime;
use proptest::prelude::*;

use super::*;
use crate::{GLOBAL_PAGE, Segment};

const ALL: [RegistrationKind; 3] =
    [RegistrationKind::Region, RegistrationKind::Window, RegistrationKind::Global];
const WINDOWS: usize = 4;
const LARGEST: usize = 64 << 10;

/// One arena for all tests, because each arena maps whole spans.
fn arena() -> Arena {
    static SHARED: LazyLock<Arena> =
        LazyLock::new(|| Arena::new(ArenaConfig { limit: 1 << 30, huge_pages: false }));
    SHARED.clone()
}

/// A runtime whose random numbers are reproducible.
fn runtime() -> RuntimeRef {
    VirtualTime::new(1).runtime()
}

fn owned(len: usize) -> Memory {
    Memory::Owned(arena().alloc(len).unwrap())
}

/// A domain that supports every kind of registration.
fn domain() -> StagDomain {
    let d = StagTables::default().domain(runtime());
    assert_eq!(d.reserve_windows(WINDOWS, LARGEST), WINDOWS);
    assert!(d.enable_global());
    d
}

/// Exposes memory in one segment.
fn expose(d: &StagDomain, by: RegistrationKind, memory: Memory, access: Access) -> (ExposureId, Segment) {
    let e = d.expose(by, memory, access).unwrap();
    assert_eq!(e.segments.len(), 1, "{by:?}");
    (e.id, e.segments[0])
}

#[test]
fn a_tag_grants_only_its_right_in_its_range() {
    for by in ALL {
        let d = domain();
        let w = expose(&d, by, owned(100), Access::RemoteWrite).1;
        let r = expose(&d, by, owned(100), Access::RemoteRead).1;
        let t = d.lock();
        let (wt, rt) = (w.handle.0, r.handle.0);
        assert_eq!(t.check_write(wt, w.offset, 100), Ok(()));
        assert_eq!(t.check_write(wt, w.offset + 100, 0), Ok(()));
        assert_eq!(t.check_write(wt, w.offset + 1, 100), Err(AccessError::Bounds));
        assert_eq!(t.check_write(wt, u64::MAX, 2), Err(AccessError::Wrap));
        assert_eq!(t.check_write(wt, u64::MAX - 5, 2), Err(AccessError::Bounds));
        assert_eq!(t.check_write(wt ^ 1, w.offset, 1), Err(AccessError::Stag));
        assert_eq!(t.check_write(wt ^ 0x100, w.offset, 1), Err(AccessError::Stag));
        assert_eq!(t.check_write(rt, r.offset, 1), Err(AccessError::Rights));
        assert!(matches!(t.source(wt, w.offset, 1), Err(AccessError::Rights)));
        assert!(matches!(t.source(rt, r.offset + 90, 10), Ok(Source::Bytes(b)) if b.len() == 10));
        assert!(matches!(t.source(rt, r.offset + 90, 11), Err(AccessError::Bounds)));
    }
}

#[test]
fn revocation_returns_the_memory_once_and_ends_all_access() {
    for by in ALL {
        let d = domain();
        let (id, s) = expose(&d, by, owned(100), Access::RemoteWrite);
        assert_eq!(d.exposed(), (1, 100));
        assert!(d.is_valid(id));
        assert_eq!(d.revoke(id).unwrap().len(), 100);
        assert!(d.revoke(id).is_none() && !d.is_valid(id));
        assert_eq!(d.exposed(), (0, 0));
        assert!(d.lock().check_write(s.handle.0, s.offset, 1).is_err());
    }
}

#[test]
fn invalidation_keeps_the_memory_for_its_owner() {
    for by in [RegistrationKind::Region, RegistrationKind::Window] {
        let d = domain();
        let (id, s) = expose(&d, by, owned(100), Access::RemoteWrite);
        let sink = d.reserve_sink().unwrap();
        assert_eq!(d.lock().invalidate(s.handle.0), Ok(()));
        assert_eq!(d.lock().invalidate(s.handle.0), Ok(()));
        assert_eq!(d.lock().invalidate(s.handle.0 ^ 0x1100), Err(InvalidateError::Unknown));
        assert_eq!(d.lock().invalidate(sink), Err(InvalidateError::Protected));
        assert!(!d.is_valid(id));
        assert_eq!(d.lock().check_write(s.handle.0, 0, 1), Err(AccessError::Stag));
        assert!(d.revoke(id).is_some());
    }
}

#[test]
fn the_peer_cannot_invalidate_the_global_tag() {
    let d = domain();
    let (id, s) = expose(&d, RegistrationKind::Global, owned(100), Access::RemoteWrite);
    assert_eq!(d.lock().invalidate(s.handle.0), Err(InvalidateError::Protected));
    assert!(d.is_valid(id));
}

#[test]
fn the_peer_has_no_access_to_sinks() {
    let d = domain();
    let sink = d.reserve_sink().unwrap();
    assert_eq!(d.exposed(), (0, 0));
    assert_eq!(d.lock().check_write(sink, 0, 1), Err(AccessError::Stag));
    assert!(d.lock().source(sink, 0, 1).is_err());
    assert!(d.revoke(ExposureId(sink.into())).is_none());
    d.lock().release_sink(sink);
    assert_eq!(d.lock().invalidate(sink), Err(InvalidateError::Unknown));
}

#[test]
fn keys_are_incremented_and_indexes_are_random() {
    let d = domain();
    let tag = || expose(&d, RegistrationKind::Region, owned(1), Access::RemoteRead).1.handle.0;
    let tags: Vec<u32> = (0..64).map(|_| tag()).collect();
    assert!(tags.windows(2).all(|w| w[1] as u8 == (w[0] as u8).wrapping_add(1)));
    assert!(tags.iter().all(|t| t >> 8 != 0));
    let runs = tags.windows(2).filter(|w| (w[0] >> 8) + 1 == w[1] >> 8).count();
    assert!(runs < 4, "{runs} of 63 indexes follow their predecessor: {tags:x?}");
}

#[test]
fn windows_are_reused_with_a_new_key() {
    let d = domain();
    let bind = |len| d.expose(RegistrationKind::Window, owned(len), Access::RemoteWrite);
    assert!(bind(LARGEST + 1).is_err());
    let all: Vec<_> = (0..WINDOWS).map(|_| bind(10).unwrap()).collect();
    let e = bind(10).unwrap_err();
    assert_eq!((e.memory.len(), e.reason), (10, "no free window"));
    d.revoke(all[2].id).unwrap();
    let again = bind(10).unwrap();
    let (old, new) = (all[2].segments[0].handle.0, again.segments[0].handle.0);
    assert_eq!((old >> 8, (old as u8).wrapping_add(1)), (new >> 8, new as u8));
    assert_eq!(d.lock().check_write(old, 0, 1), Err(AccessError::Stag));
    assert_eq!(d.reserve_windows(99, 99), WINDOWS);
}

#[test]
fn a_failed_exposure_returns_the_memory() {
    let d = StagTables::default().domain(runtime());
    for by in [RegistrationKind::Window, RegistrationKind::Global] {
        let e = d.expose(by, owned(10), Access::RemoteRead).unwrap_err();
        assert_eq!(e.memory.len(), 10);
    }
    assert_eq!(d.exposed(), (0, 0));
}

#[test]
fn segments_of_the_global_tag_are_addresses_and_end_at_page_boundaries() {
    let d = domain();
    let views: Views = [5000, 100].iter().map(|n| arena().alloc(*n).unwrap().freeze()).collect();
    // Begins 100 bytes before a page boundary, and ends in another buffer.
    let cut = views.slice(GLOBAL_PAGE - 100, 5000 - GLOBAL_PAGE + 200);
    let address = cut.iter().next().unwrap().address() as u64;
    let e = d.expose(RegistrationKind::Global, Memory::Shared(cut), Access::RemoteRead).unwrap();
    let lengths: Vec<u32> = e.segments.iter().map(|s| s.length).collect();
    assert_eq!(lengths, [100, 904, 100]);
    assert_eq!((e.segments[0].offset, e.segments[1].offset), (address, address + 100));
    let t = d.lock();
    let tag = e.segments[2].handle.0;
    assert!(matches!(t.source(tag, e.segments[2].offset, 100), Ok(Source::Views(_, 1004))));
    assert!(t.source(tag, e.segments[2].offset, 101).is_err());
}

#[test]
fn shared_memory_cannot_be_exposed_for_writing() {
    let d = domain();
    for by in ALL {
        let v = arena().copy_from(b"abc").unwrap();
        let e = d.expose(by, Memory::Shared(v.into()), Access::RemoteWrite).unwrap_err();
        assert_eq!(e.memory.len(), 3);
    }
    d.close();
    assert!(ALL.iter().all(|by| d.expose(*by, owned(1), Access::RemoteRead).is_err()));
}

#[test]
fn the_owner_copies_in_and_out_while_the_peer_has_access() {
    for by in ALL {
        let d = domain();
        let (id, s) = expose(&d, by, owned(100), Access::RemoteWrite);
        let data: Views = arena().copy_from(&[7; 60]).unwrap().into();
        assert!(d.copy_in(id, &data));
        d.lock().place(s.handle.0, s.offset + 1, 1).unwrap().0[0] = 9;
        let mut out = [0; 61];
        assert!(d.copy_out(id, &mut out[..60]));
        assert_eq!((&out[..3], out[59], out[60]), (&[7, 9, 7][..], 7, 0));
        assert!(!d.copy_out(id, &mut [0; 101]));
        assert!(!d.copy_in(ExposureId(3), &data));
    }
}

proptest! {
    /// After any sequence of exposures, invalidations and revocations, exactly the exposed and valid regions
    /// are accessible, and the counts are correct.
    #[test]
    fn only_exposed_memory_is_accessible(
        steps in prop::collection::vec((0..3_usize, 1..3000_usize, any::<prop::sample::Index>(), 0..3_u8), 1..60)
    ) {
        let d = domain();
        let mut live: Vec<(Exposure, RegistrationKind, usize, bool)> = Vec::new();
        let mut gone: Vec<Segment> = Vec::new();
        for (by, len, which, what) in steps {
            match what {
                0 if !live.is_empty() => {
                    let (e, _, len, _) = live.swap_remove(which.index(live.len()));
                    prop_assert_eq!(d.revoke(e.id).unwrap().len(), len);
                    gone.extend(e.segments.iter().filter(|s| s.offset == 0));
                }
                1 if !live.is_empty() => {
                    let n = which.index(live.len());
                    let (e, _, _, valid) = &mut live[n];
                    *valid &= d.lock().invalidate(e.segments[0].handle.0).is_err();
                }
                _ => {
                    let bound = live.iter().filter(|(_, by, ..)| *by == RegistrationKind::Window).count();
                    match d.expose(ALL[by], owned(len), Access::RemoteWrite) {
                        Ok(e) => live.push((e, ALL[by], len, true)),
                        Err(_) => prop_assert!(ALL[by] == RegistrationKind::Window && bound == WINDOWS),
                    }
                }
            }
            prop_assert_eq!(d.exposed(), (live.len(), live.iter().map(|(_, _, len, _)| *len).sum()));
            for (e, _, _, valid) in &live {
                for s in &e.segments {
                    let reached = d.lock().check_write(s.handle.0, s.offset, s.length as usize);
                    prop_assert_eq!(reached.is_ok(), *valid);
                }
            }
            for s in &gone {
                let again = live.iter().any(|(e, ..)| e.segments[0].handle == s.handle);
                prop_assert!(again || d.lock().check_write(s.handle.0, 0, 1).is_err());
            }
        }
    }
}

#[test]
fn a_released_window_admits_late_writes_until_it_is_invalidated() {
    let d = domain();
    let (id, s) = expose(&d, RegistrationKind::Window, owned(100), Access::RemoteWrite);
    let Memory::Owned(mut b) = d.release(id).unwrap() else { panic!("not owned") };
    b.fill(1);
    assert!(!d.is_valid(id) && d.revoke(id).is_none() && d.release(id).is_none());
    assert_eq!(d.exposed(), (1, 100));
    let late = |offset, bytes: &[u8]| {
        let t = d.lock();
        t.check_write(s.handle.0, offset, bytes.len())?;
        t.write_released(s.handle.0, offset, bytes)
    };
    assert_eq!(late(90, &[9; 10]), Ok(()));
    assert_eq!(late(91, &[9; 10]), Err(AccessError::Bounds));
    assert_eq!(late(u64::MAX, &[9; 10]), Err(AccessError::Wrap));
    assert!(matches!(d.lock().source(s.handle.0, 0, 1), Err(AccessError::Rights)));
    assert_eq!(std::hint::black_box(&b)[88..92], [1, 1, 9, 9]);
    assert_eq!(d.invalidate_released(), 1);
    assert_eq!(late(0, &[9]), Err(AccessError::Stag));
    assert_eq!(d.exposed(), (0, 0));
}

#[test]
fn release_revokes_all_but_windows_with_remote_write() {
    let d = domain();
    let read = expose(&d, RegistrationKind::Window, owned(10), Access::RemoteRead);
    let registered = expose(&d, RegistrationKind::Region, owned(10), Access::RemoteWrite);
    let global = expose(&d, RegistrationKind::Global, owned(10), Access::RemoteWrite);
    for (id, s) in [read, registered, global] {
        assert!(d.release(id).is_some());
        assert!(d.lock().check_write(s.handle.0, s.offset, 1).is_err());
    }
    assert_eq!((d.exposed(), d.invalidate_released()), ((0, 0), 0));
}

#[test]
fn released_windows_are_invalidated_when_none_is_free() {
    let d = domain();
    for _ in 0..3 * WINDOWS {
        let (id, _) = expose(&d, RegistrationKind::Window, owned(10), Access::RemoteWrite);
        drop(d.release(id));
        assert!(d.exposed().0 <= WINDOWS);
    }
    let (id, s) = expose(&d, RegistrationKind::Window, owned(10), Access::RemoteWrite);
    drop(d.release(id));
    let before = d.exposed().0;
    assert_eq!(d.lock().invalidate(s.handle.0), Ok(()));
    assert_eq!((d.exposed().0, d.lock().check_write(s.handle.0, 0, 1)), (before - 1, Err(AccessError::Stag)));
    assert_eq!(d.invalidate_released(), before);
    assert_eq!(d.exposed(), (0, 0));
}
