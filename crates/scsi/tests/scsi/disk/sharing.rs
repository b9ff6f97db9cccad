//! Several initiators: unit attention conditions, task management, order, reservations, LUNs.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_scsi::{
    Aborted, BlockSize, InitiatorPort, Lun, Management, Nexus, Request, Response, Status, TaskAttribute,
};
use millrace_vfs::{Identity, SetAttr};

use super::common::{Bench, LUN, now};

const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn inquire(bench: &Bench, nexus: &Arc<Nexus>) -> Response {
    bench.execute(nexus, &[0x12, 0, 0, 0, 36, 0], &[])
}

#[test]
fn conditions_are_reported_to_each_nexus_except_by_three_commands() {
    let bench = Bench::new(BlockSize::B512, 16);
    let other = bench.target.open_nexus(super::common::initiator(2));
    assert_eq!(inquire(&bench, &other).status, Status::Good);
    // REQUEST SENSE reports the condition as data and clears it.
    let sense = bench.execute(&other, &[3, 0, 0, 0, 18, 0], &[]).data_in.to_vec();
    assert_eq!((sense[2], sense[12], sense[13]), (6, 0x29, 0));
    bench.expect_ready(&other);
    let size = SetAttr { size: Some(8192 * 2), ..SetAttr::default() };
    now(bench.fs.setattr(&Identity::root(), &bench.file, &size, None)).unwrap();
    now(bench.disk.refresh()).unwrap();
    for nexus in [&bench.nexus, &other] {
        bench.expect_attention(nexus, (0x2a, 0x09));
        bench.expect_ready(nexus);
    }
    assert_eq!(bench.good(&[0x25], &[]), [0, 0, 0, 31, 0, 0, 2, 0]);
}

#[test]
fn luns_change_while_initiators_are_connected() {
    let bench = Bench::new(BlockSize::B512, 16);
    let lun = Lun::new(300).unwrap();
    let second = Bench::new(BlockSize::B512, 16);
    bench.target.add(lun, Arc::clone(&second.disk)).unwrap();
    assert!(bench.target.add(lun, Arc::clone(&second.disk)).is_err());
    bench.expect_attention(&bench.nexus, (0x3f, 0x0e));
    let report = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let luns = bench.good(&report, &[]);
    assert_eq!(luns, [&[0, 0, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0x41, 44, 0, 0, 0, 0, 0, 0]].concat());
    bench.target.remove(lun).unwrap();
    bench.good(&report, &[]);
    bench.expect_ready(&bench.nexus);
    // Without its disk the target reports, and refuses everything else.
    bench.target.remove(Lun::new(0).unwrap()).unwrap();
    assert_eq!(bench.good(&report, &[])[..4], [0; 4]);
    assert_eq!(bench.good(&[0x12, 0, 0, 0, 36, 0], &[])[0], 0x7f);
    assert_eq!(bench.good(&[3, 0, 0, 0, 18, 0], &[])[12], 0x25);
    bench.fails(&[0], &[], 5, (0x25, 0));
}

fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

#[test]
fn aborted_tasks_have_no_status_and_no_effect() {
    let bench = Bench::new(BlockSize::B512, 16);
    let other = bench.other(2);
    let mine = bench.request(&bench.nexus, &WRITE, &[1; 512]);
    let theirs = bench.request(&other, &WRITE, &[1; 512]);
    bench.target.manage(&bench.nexus, Management::AbortTaskSet(LUN)).unwrap();
    assert!(mine.task.is_aborted() && !theirs.task.is_aborted());
    bench.target.manage(&bench.nexus, Management::ClearTaskSet(LUN)).unwrap();
    for request in [mine, theirs] {
        assert!(matches!(now(bench.target.execute(request)), Err(Aborted)));
    }
    bench.expect_ready(&bench.nexus);
    bench.expect_attention(&other, (0x2f, 0x00));
    assert_eq!(bench.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]), [0; 512]);
    bench.target.manage(&bench.nexus, Management::LunReset(LUN)).unwrap();
    bench.target.manage(&bench.nexus, Management::TargetReset).unwrap();
    bench.expect_attention(&other, (0x29, 0x03));
    bench.expect_ready(&other);
    bench.expect_ready(&bench.nexus);
    assert!(bench.target.manage(&bench.nexus, Management::LunReset([0, 9, 0, 0, 0, 0, 0, 0])).is_err());
}

#[test]
fn an_ordered_task_waits_for_earlier_ones() {
    let bench = Bench::new(BlockSize::B512, 16);
    let with = |attribute, cdb: &[u8], data: &[u8]| {
        let request = Request { attribute, ..bench.request(&bench.nexus, cdb, data) };
        bench.target.execute(request).into_future()
    };
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    // SYNCHRONIZE CACHE is executed when it is polled.
    let mut first = with(TaskAttribute::Simple, &[0x35], &[]);
    let mut second = with(TaskAttribute::Ordered, &WRITE, &[5; 512]);
    let mut third = with(TaskAttribute::Simple, &read, &[]);
    let mut urgent = with(TaskAttribute::HeadOfQueue, &read, &[]);
    assert_eq!(poll(&mut urgent).unwrap().unwrap().data_in.to_vec(), [0; 512]);
    assert!(poll(&mut second).is_none());
    assert!(poll(&mut third).is_none());
    assert!(poll(&mut first).unwrap().is_ok());
    drop(first);
    assert!(poll(&mut third).is_none());
    assert!(poll(&mut second).unwrap().is_ok());
    drop(second);
    assert_eq!(poll(&mut third).unwrap().unwrap().data_in.to_vec(), [5; 512]);
    let aca = now(with(TaskAttribute::Aca, &read, &[])).unwrap();
    assert_eq!(aca.status, Status::CheckCondition);
}

/// PERSISTENT RESERVE OUT.
fn reserve(bench: &Bench, nexus: &Arc<Nexus>, action: u8, kind: u8, key: u64, new: u64, flags: u8) -> Status {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let list = [&key.to_be_bytes()[..], &new.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat();
    bench.execute(nexus, &cdb, &list).status
}

#[test]
fn a_persistent_reservation_excludes_others_and_survives_a_restart() {
    let bench = Bench::new(BlockSize::B512, 16);
    let other = bench.other(2);
    // REGISTER with APTPL, RESERVE of type WRITE EXCLUSIVE.
    assert_eq!(reserve(&bench, &bench.nexus, 0, 0, 0, 0xabc, 1), Status::Good);
    assert_eq!(reserve(&bench, &bench.nexus, 1, 1, 0xabc, 0, 0), Status::Good);
    assert_eq!(bench.execute(&other, &WRITE, &[1; 512]).status, Status::ReservationConflict);
    assert_eq!(bench.execute(&other, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]).status, Status::Good);
    let keys = bench.good(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], &[]);
    assert_eq!(keys[8..], 0xabc_u64.to_be_bytes());

    let bench = Bench::open(bench.fs.clone(), bench.arena.clone(), bench.file, bench.config.clone());
    let other = bench.other(2);
    assert_eq!(bench.execute(&other, &WRITE, &[1; 512]).status, Status::ReservationConflict);
    assert_eq!(bench.execute(&bench.nexus, &WRITE, &[1; 512]).status, Status::Good);
    // PREEMPT AND ABORT by the other.
    assert_eq!(reserve(&bench, &other, 0, 0, 0, 7, 0), Status::Good);
    let write = bench.request(&bench.nexus, &WRITE, &[2; 512]);
    assert_eq!(reserve(&bench, &other, 5, 1, 7, 0xabc, 0), Status::Good);
    assert!(matches!(now(bench.target.execute(write)), Err(Aborted)));
    bench.expect_attention(&bench.nexus, (0x2a, 0x05));
    assert_eq!(bench.execute(&bench.nexus, &WRITE, &[2; 512]).status, Status::ReservationConflict);
}

#[test]
fn reserve_6_ends_with_its_nexus() {
    let bench = Bench::new(BlockSize::B512, 16);
    let other = bench.other(2);
    assert_eq!(bench.execute(&other, &[0x16], &[]).status, Status::Good);
    assert_eq!(bench.execute(&bench.nexus, &[0], &[]).status, Status::ReservationConflict);
    assert_eq!(bench.execute(&bench.nexus, &[0x17], &[]).status, Status::Good);
    assert_eq!(bench.execute(&bench.nexus, &[0x16], &[]).status, Status::ReservationConflict);
    bench.target.close_nexus(&other);
    bench.expect_ready(&bench.nexus);
}

#[test]
fn an_initiator_that_returns_learns_of_the_loss_of_its_nexus() {
    let bench = Bench::new(BlockSize::B512, 16);
    let again = || bench.target.open_nexus(super::common::initiator(2));
    bench.target.close_nexus(&bench.other(2));
    let second = again();
    bench.expect_attention(&second, (0x29, 0x07));
    bench.expect_ready(&second);
    bench.target.close_nexus(&second);
    // POWER ON that was not reported stays pending.
    let third = bench.target.open_nexus(super::common::initiator(3));
    assert_eq!(inquire(&bench, &third).status, Status::Good);
    bench.target.close_nexus(&third);
    let third = bench.target.open_nexus(super::common::initiator(3));
    bench.expect_attention(&third, (0x29, 0x00));
    bench.expect_attention(&third, (0x29, 0x07));
    // The ports of many other initiators replace it.
    for n in 0..1024_u32 {
        let [_, _, high, low] = n.to_be_bytes();
        let port = InitiatorPort::new("iqn.2026-01.example:crowd", [0, 0, 0, 0, high, low]).unwrap();
        let nexus = bench.target.open_nexus(port);
        bench.expect_attention(&nexus, (0x29, 0x00));
        bench.target.close_nexus(&nexus);
    }
    bench.expect_attention(&again(), (0x29, 0x00));
}

#[test]
fn mode_select_changes_parameters_and_informs_others() {
    let bench = Bench::new(BlockSize::B512, 16);
    let other = bench.other(2);
    let sense = [0x1a, 8, 0x0a, 0, 255, 0];
    let mut list = bench.good(&sense, &[]);
    list[0] = 0;
    list[4 + 4] |= 0x08;
    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    bench.good(&select, &list);
    bench.expect_ready(&bench.nexus);
    bench.expect_attention(&other, (0x2a, 0x01));
    bench.fails(&WRITE, &[1; 512], 7, (0x27, 0x02));
    list[4 + 4] &= !0x08;
    bench.good(&select, &list);
    bench.good(&WRITE, &[1; 512]);
    list[4 + 2] |= 0x04; // D_SENSE
    bench.fails(&select, &list, 5, (0x26, 0));
    bench.fails(&[0x15, 0x10, 0, 0, 7, 0], &list[..7], 5, (0x1a, 0));
    bench.fails(&[0x15, 0x11, 0, 0, 0, 0], &[], 5, (0x24, 0));
}
