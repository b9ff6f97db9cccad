//! Exposure of memory to the peer, and revocation.

use millrace_rdma::{
    Access, ExposedRegion, Memory, MemoryRegion, ReadRequest, RegistrationKind, Segment, WriteRequest,
};

use super::*;

fn expose(qp: &Qp, memory: Memory, access: Access) -> ExposedRegion {
    MemoryRegion::new(qp.domain(), memory).expose(access).expect("cannot expose")
}

/// All kinds of registration that the device supports.
fn means(qp: &Qp) -> Vec<RegistrationKind> {
    let windows = (qp.domain().reserve_windows(3, 1 << 20) > 0).then_some(RegistrationKind::Window);
    [RegistrationKind::Region].into_iter().chain(windows).collect()
}

/// A connection on which the first message was delivered.
async fn up(lab: &Lab) -> (Qp, Qp) {
    let (mut a, mut b) = lab.pair(&ConnectParams::default()).await;
    deliver(&mut a, &mut b, b"first").await;
    (a, b)
}

/// Lets `b` write to `to`, which must end the connection.
async fn assert_write_ends_connection(a: &mut Qp, b: &mut Qp, to: Segment) {
    b.post_write(WriteRequest { data: views(&[0xEE; 64], 64), to }).unwrap();
    b.post_send(send(b"never")).unwrap();
    let error = poll_both_until_error(b, a).await;
    assert!(!matches!(error, ConnectionError::Local(_)), "{error:?}");
}

#[test]
fn the_peer_has_no_access_to_revoked_memory() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        let region = expose(&a, Memory::Owned(buffer(&[7; 64])), Access::RemoteWrite);
        let to = region.segment();
        deliver(&mut a, &mut b, b"bound").await;
        assert!(region.is_valid());
        assert_eq!(a.domain().exposed(), (1, 64));
        let Some(Memory::Owned(memory)) = region.revoke().map(MemoryRegion::into_memory) else { panic!() };
        assert_eq!(a.domain().exposed(), (0, 0));
        assert!(!a.domain().is_valid(millrace_rdma::ExposureId(to.handle.0.into())));
        assert_write_ends_connection(&mut a, &mut b, to).await;
        assert_eq!(memory[..], [7; 64]);
    });
}

#[test]
fn writes_without_the_right_or_out_of_bounds_end_the_connection() {
    on_a_device(async |lab| {
        // Read access does not permit writes, and bytes beside the region are out of bounds.
        let unbounded = std::env::var_os("MILLRACE_TEST_RXE_WINDOWS").is_some();
        for (access, shift) in [(Access::RemoteRead, 0), (Access::RemoteWrite, 1)] {
            if unbounded && shift > 0 {
                eprintln!("skipped: rxe does not check the bounds of windows");
                continue;
            }
            let (mut a, mut b) = up(&lab).await;
            let region = expose(&a, Memory::Owned(buffer(&[7; 64])), access);
            deliver(&mut a, &mut b, b"bound").await;
            let mut to = region.segment();
            to.offset += shift;
            assert_write_ends_connection(&mut a, &mut b, to).await;
            // The memory is returned, or was released with the connection.
            if let Some(Memory::Owned(memory)) = region.revoke().map(MemoryRegion::into_memory) {
                assert_eq!(memory[..], [7; 64]);
            }
        }
    });
}

#[test]
fn write_access_does_not_permit_reads() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        if is_iwarp(&a) && !lab.is_software() {
            eprintln!("skipped: Linux's siw does not check the right to read");
            return;
        }
        let region = expose(&a, Memory::Owned(buffer(&[7; 64])), Access::RemoteWrite);
        deliver(&mut a, &mut b, b"bound").await;
        let sink = vec![buffer(&[0; 64])];
        b.post_read(ReadRequest { id: WorkId(1), from: region.segment(), sink }).unwrap();
        let error = poll_both_until_error(&mut b, &mut a).await;
        assert!(!matches!(error, ConnectionError::Local(_)), "{error:?}");
    });
}

#[test]
fn a_tag_of_another_connection_is_invalid() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        let (mut c, mut d) = up(&lab).await;
        let region = expose(&a, Memory::Owned(buffer(&[7; 64])), Access::RemoteWrite);
        deliver(&mut a, &mut b, b"bound").await;
        assert_write_ends_connection(&mut c, &mut d, region.segment()).await;
        deliver(&mut a, &mut b, b"not affected").await;
        let Some(Memory::Owned(memory)) = region.revoke().map(MemoryRegion::into_memory) else { panic!() };
        assert_eq!(memory[..], [7; 64]);
    });
}

#[test]
fn successive_tags_differ() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        let mut tags = Vec::new();
        let means = means(&a);
        for i in 0..600 {
            let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&[1; 64])));
            let region = region.expose_by(means[i / 300 % means.len()], Access::RemoteRead).unwrap();
            assert_ne!(Some(&region.segment().handle), tags.last());
            tags.push(region.segment().handle);
            if i % 3 == 0 {
                deliver(&mut a, &mut b, b"bound").await;
            }
            assert!(region.revoke().is_some());
        }
        deliver(&mut a, &mut b, b"still up").await;
        assert_eq!(a.domain().exposed(), (0, 0));
    });
}

#[test]
fn a_send_with_invalidate_ends_an_exposure() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        assert!(b.capabilities().send_with_invalidate);
        if !lab.provider.can_be_invalidated(a.info().peer) {
            eprintln!("skipped: the device exposes memory without windows");
            return;
        }
        let means = means(&a);
        for round in 0..20_u8 {
            let region = MemoryRegion::new(a.domain(), Memory::Owned(buffer(&[0; 64])));
            let by = means[usize::from(round) % means.len()];
            let region = region.expose_by(by, Access::RemoteWrite).unwrap();
            let to = region.segment();
            deliver(&mut a, &mut b, b"bound").await;
            a.post_receive(buffer(&[0; 512])).unwrap();
            let _ = run(&mut a, &mut b, (0, 0)).await;
            b.post_write(WriteRequest { data: views(&[round; 64], 64), to }).unwrap();
            b.post_send(SendRequest { invalidate: Some(to.handle), ..send(b"done") }).unwrap();
            let (x, _) = run(&mut a, &mut b, (1, 0)).await;
            let Completion::Received { invalidated, .. } = &x[0] else { panic!("{x:?}") };
            assert_eq!(*invalidated, Some(to.handle));
            assert!(!region.is_valid());
            if round == 19 {
                assert_write_ends_connection(&mut a, &mut b, to).await;
                return;
            }
            let Some(Memory::Owned(memory)) = region.revoke().map(MemoryRegion::into_memory) else {
                panic!()
            };
            assert_eq!(memory[..], [round; 64]);
        }
    });
}

#[test]
fn contiguous_shared_memory_can_be_exposed_for_reading() {
    on_a_device(async |lab| {
        let (mut a, mut b) = up(&lab).await;
        if lab.is_software() {
            return eprintln!("skipped: the provider supports regions with many pieces");
        }
        assert_eq!(a.capabilities().max_region_pieces, 1);
        let data = pattern(5000, 2);
        let whole = buffer(&data).freeze();
        let parts: Views = [whole.slice(100, 400), whole.slice(500, 1000)].into_iter().collect();
        let region = expose(&a, Memory::Shared(parts), Access::RemoteRead);
        deliver(&mut a, &mut b, b"bound").await;
        let sink = vec![buffer(&[0; 1400])];
        b.post_read(ReadRequest { id: WorkId(3), from: region.segment(), sink }).unwrap();
        let (_, y) = run(&mut a, &mut b, (0, 1)).await;
        let Completion::Read { sink, .. } = &y[0] else { panic!("{y:?}") };
        assert_eq!(sink[0][..], data[100..1500]);
        drop(region);
        let scattered: Views = [whole.slice(0, 10), whole.slice(20, 10)].into_iter().collect();
        for (memory, access) in [
            (Memory::Shared(scattered), Access::RemoteRead),
            (Memory::Shared(whole.into()), Access::RemoteWrite),
            (Memory::Owned(buffer(&[])), Access::RemoteRead),
        ] {
            assert!(a.domain().expose(RegistrationKind::Region, memory, access).is_err());
        }
        deliver(&mut a, &mut b, b"still up").await;
    });
}
