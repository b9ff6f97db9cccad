//! The seeds.

use super::{
    super::pdu::{HEADERS, header},
    attacker::{ANSWER, BYTES, DIVIDE, IN_ORDER, LOG_IN, OPEN, PAUSE, PDU, READ, RESET, SHUT_DOWN, SWITCH},
};
use crate::bytes::operations;

type Operation<'a> = (u8, &'a [u8]);

const SOME: Operation<'static> = (READ, &[4]);
const WAIT: Operation<'static> = (PAUSE, &[0x40, 0]);
const LONG: Operation<'static> = (PAUSE, &[0xff, 0xff]);
const REQUESTED: Operation<'static> = (ANSWER, &[]);
const NEW: Operation<'static> = (OPEN, &[]);
const NEXT: Operation<'static> = (SWITCH, &[]);
const HALF: Operation<'static> = (DIVIDE, &[]);
const FLUSH: Operation<'static> = (BYTES, &[]);
const END: Operation<'static> = (SHUT_DOWN, &[]);
const ABRUPT: Operation<'static> = (RESET, &[]);
const HTTP: Operation<'static> = (BYTES, b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: none\r\n\r\n");
/// Sessions in which writes begin with an R2T, of two initiator ports.
const START: Operation<'static> = (LOG_IN, b"\x01InitialR2T=Yes\0ImmediateData=No\0");
const OTHER: Operation<'static> = (LOG_IN, b"\x02InitialR2T=Yes\0ImmediateData=No\0");
/// A session with unsolicited data.
const UNSOLICITED: Operation<'static> = (LOG_IN, b"\x03InitialR2T=No\0ImmediateData=Yes\0");

/// A SCSI Command with these flags in byte 1, and data of this length.
fn command(flags: &str, tag: u8, expected: u16, cdb: &str, data: usize) -> Vec<u8> {
    let fields = format!("0000 00000000 0000000000000000 000000{tag:02x} 0000{expected:04x}");
    let bhs = format!("01{flags}{fields} 00000000 00000000 {cdb}");
    [&header(&bhs)[..], &vec![0x33; data]].concat()
}

/// A task management function.
fn function(code: u8, referenced: &str) -> Vec<u8> {
    let numbers = "00000000 00000000 00000065";
    header(&format!("42{:02x}0000 00000000 0000000000000000 00000077 {referenced} {numbers}", 0x80 | code))
        .into()
}

/// Commands of each kind, a logout, and task management functions.
fn commands() -> [Vec<u8>; 14] {
    [
        command("81", 1, 0, "00", 0),
        command("a1", 2, 4096, "2a00 00000002 00 0008", 0),
        command("a1", 3, 1024, "2a00 00000010 00 0002", 1024),
        command("21", 4, 4096, "2a00 00000020 00 0008", 0),
        command("c1", 5, 0x4000, "2800 00000000 00 0020", 0),
        command("c1", 6, 255, "1200 00 00ff", 0),
        command("a1", 7, 24, "5f00 0000 00 00000018", 0),
        command("a1", 8, 24, "4200 0000 0000 00 0018", 0),
        command("82", 9, 0, "3500 00000000 00 0000", 0),
        command("81", 10, 0, "16", 0),
        header(HEADERS[7]).into(),
        function(1, "00000002"),
        function(4, "ffffffff"),
        function(5, "ffffffff"),
    ]
}

/// Sessions with commands of each kind, with and without reading; slow peers; two sessions that disturb each other;
/// each PDU in and out of place.
pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
    let commands = commands();
    let [
        ready,
        write,
        immediate,
        unsolicited,
        read,
        inquiry,
        reserve,
        unmap,
        synchronize,
        hold,
        logout,
        abort,
        clear,
        reset,
    ] = commands.each_ref().map(|pdu| (IN_ORDER, &pdu[..]));
    let scripts: [&[Operation<'_>]; 15] = [
        &[START, ready, SOME, inquiry, read, (READ, &[40]), logout, SOME],
        &[START, ready, write, SOME, REQUESTED, SOME, read, synchronize, SOME],
        &[START, ready, write, SOME, (ANSWER, &[43, 1]), SOME],
        &[START, ready, write, SOME, abort, SOME, reset, SOME],
        &[UNSOLICITED, ready, immediate, unsolicited, SOME],
        &[START, ready, reserve, SOME, REQUESTED, unmap, SOME, REQUESTED, read, NEW, OTHER, write, SOME],
        &[START, ready, write, NEW, OTHER, read, END],
        &[START, read, read, read, LONG, LONG],
        &[(BYTES, &[0x43, 0x87]), WAIT, HTTP, SOME],
        &[START, HALF, write, WAIT, ABRUPT, START, write, ABRUPT, NEW, NEW, NEW, NEW],
        &[START, ready, hold, SOME, NEW, OTHER, ready, read, write, SOME],
        // The second session aborts the write of the first one, half of whose data has arrived.
        &[
            START,
            ready,
            write,
            (READ, &[2]),
            HALF,
            REQUESTED,
            NEW,
            OTHER,
            ready,
            clear,
            SOME,
            NEXT,
            FLUSH,
            SOME,
        ],
        &[START, ready, read, write, read, NEW, OTHER, ready, reset, SOME, NEXT, SOME, abort, logout, SOME],
        // The second login ends the session of the first one, whose commands are in progress.
        &[START, ready, read, synchronize, write, NEW, START, ready, read, SOME, NEXT, SOME],
        &[START, ready, read, synchronize, read, END, NEW, OTHER, synchronize, abort, logout, ABRUPT],
    ];
    let mut out: Vec<Vec<u8>> = Vec::new();
    for (n, script) in (0..).zip(scripts) {
        for delay in [0, 1 + n % 3] {
            out.push([&[n % 8, n * 15, delay][..], &operations(script)].concat());
        }
    }
    out.extend(HEADERS.map(single));
    out
}

/// A PDU in its place, out of it, and before the login.
fn single(hex: &str) -> Vec<u8> {
    let pdu = [&header(hex)[..], &[0x41; 48]].concat();
    let script = [START, (IN_ORDER, &pdu[..]), SOME, (PDU, &pdu), SOME, NEW, (PDU, &pdu)];
    [&[5, 200, 0][..], &operations(&script)].concat()
}
