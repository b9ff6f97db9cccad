//! Invalid replies end a call with an error, never with a loop, a panic or wrong data.

use millrace_nfs::v3::{
    self, Procedure, ReadArgs, ReadOk, ReaddirArgs, ReaddirEncoder, ReaddirplusArgs, Status, WriteArgs,
    WriteOk,
};

use super::script::{Act, Script, args, fail, handle, ok, run};
use crate::{Error, ops::StableHow, read_dir::ReadDir};

fn bad_reply<T: std::fmt::Debug>(result: Result<T, Error>, expected: &str) {
    let e = result.unwrap_err();
    assert!(matches!(e, Error::BadReply { .. }) && e.to_string().contains(expected), "{e}");
}

fn read_answer(data: &'static [u8], eof: bool) -> Act {
    Act::Answer(Box::new(move |e| {
        let data = e.arena().copy_from(data).unwrap().into();
        e.put(&Status::Ok);
        ReadOk { attributes: None, count: 0, eof, data }.encode_counted(e);
    }))
}

trait EncodeCounted {
    fn encode_counted(self, e: &mut millrace_xdr::Encoder);
}

impl EncodeCounted for ReadOk {
    fn encode_counted(mut self, e: &mut millrace_xdr::Encoder) {
        self.count = self.data.len() as u32;
        self.encode_into(e);
    }
}

#[test]
fn a_read_reply_with_excess_data_is_rejected() {
    run(async {
        let script = Script::new(|_, call| {
            let _: ReadArgs = args(call);
            read_answer(b"0123456789", false)
        });
        let c = script.client().await;
        bad_reply(c.read(handle(2), 0, &mut [0; 4]).await, "more data");
        bad_reply(c.read_into(handle(2), 0, c.buffer(9).unwrap()).await, "more data");
    });
}

#[test]
fn an_empty_read_reply_before_the_end_is_rejected() {
    run(async {
        let script = Script::new(|_, _| read_answer(b"", false));
        let c = script.client().await;
        bad_reply(c.read(handle(2), 0, &mut [0; 4]).await, "neither data nor the end");
    });
}

#[test]
fn short_reads_are_continued_until_the_end_of_the_file() {
    run(async {
        let script = Script::new(|_, call| {
            let a: ReadArgs = args(call);
            match a.offset {
                0 => read_answer(b"abc", false),
                3 => read_answer(b"de", false),
                5 => read_answer(b"f", true),
                _ => fail(Status::Inval),
            }
        });
        let c = script.client().await;
        let mut out = [0; 100];
        assert_eq!(c.read(handle(2), 0, &mut out).await.unwrap(), 6);
        assert_eq!(&out[..6], b"abcdef");
    });
}

#[test]
fn a_write_reply_with_an_excess_or_zero_count_is_rejected() {
    run(async {
        for (count, committed, expected) in [
            (5, v3::StableHow::FileSync, "5 bytes written of 4"),
            (0, v3::StableHow::FileSync, "0 bytes written of 4"),
            (4, v3::StableHow::Unstable, "less stable"),
        ] {
            let script = Script::new(move |_, _| {
                ok(WriteOk { file: Default::default(), count, committed, verifier: [1; 8] })
            });
            let c = script.client().await;
            bad_reply(c.write(handle(2), 0, b"abcd", StableHow::DataSync).await, expected);
        }
    });
}

#[test]
fn short_writes_are_continued() {
    run(async {
        let script = Script::new(|_, call| {
            let a: WriteArgs = args(call);
            assert_eq!((a.offset, a.count as usize), (10 + 7 - u64::from(a.count), a.data.len()));
            ok(WriteOk {
                file: Default::default(),
                count: a.count.min(3),
                committed: v3::StableHow::FileSync,
                verifier: [1; 8],
            })
        });
        let c = script.client().await;
        let w = c.write(handle(2), 10, b"1234567", StableHow::Unstable).await.unwrap();
        assert_eq!((w.count, script.xids(Procedure::Write).len()), (7, 3));
    });
}

/// A READDIR result with these entries, for a server without READDIRPLUS.
fn listing(entries: Vec<(u64, &'static [u8])>, eof: bool) -> Act {
    Act::Answer(Box::new(move |e| {
        let mut list = ReaddirEncoder::begin(e, &None, [3; 8], 8192);
        for (cookie, name) in &entries {
            assert!(list.push(*cookie, name, *cookie));
        }
        list.finish(eof).unwrap();
    }))
}

#[test]
fn without_readdirplus_the_client_uses_readdir() {
    run(async {
        let script = Script::new(|p, call| {
            if p == Procedure::Readdirplus {
                let _: ReaddirplusArgs = args(call);
                return fail(Status::NotSupp);
            }
            let a: ReaddirArgs = args(call);
            match (a.cookie, a.verifier) {
                (0, [0, ..]) => listing(vec![(1, b"."), (2, b"a")], false),
                (2, [3, ..]) => listing(vec![(3, b"b")], true),
                _ => fail(Status::Inval),
            }
        });
        let c = script.client().await;
        let names = |list: Vec<crate::ops::DirEntry>| list.into_iter().map(|e| e.name).collect::<Vec<_>>();
        assert_eq!(names(c.readdir(handle(2)).await.unwrap()), [&b"."[..], b"a", b"b"]);
        c.readdir(handle(2)).await.unwrap();
        assert_eq!(script.xids(Procedure::Readdirplus).len(), 1, "requested once, then cached");
    });
}

#[test]
fn a_directory_without_end_is_an_error() {
    run(async {
        let no_plus = |p| p == Procedure::Readdirplus;
        let script =
            Script::new(
                move |p, _| {
                    if no_plus(p) { fail(Status::NotSupp) } else { listing(vec![(7, b"x")], false) }
                },
            );
        bad_reply(script.client().await.readdir(handle(2)).await, "does not advance");
        let script =
            Script::new(move |p, _| if no_plus(p) { fail(Status::NotSupp) } else { listing(vec![], false) });
        bad_reply(script.client().await.readdir(handle(2)).await, "neither entries nor the end");
    });
}

#[test]
fn restarts_of_a_changed_directory_are_limited() {
    run(async {
        let mut stale = 2;
        let script = Script::new(move |p, call| {
            if p == Procedure::Readdirplus {
                return fail(Status::NotSupp);
            }
            let a: ReaddirArgs = args(call);
            match a.cookie {
                0 => listing(vec![(1, b"a")], false),
                _ if stale > 0 => {
                    stale -= 1;
                    fail(Status::BadCookie)
                }
                _ => listing(vec![(2, b"b")], true),
            }
        });
        assert_eq!(script.client().await.readdir(handle(2)).await.unwrap().len(), 2);
        let script = Script::new(|_, _| fail(Status::BadCookie));
        let e = script.client().await.readdir(handle(2)).await.unwrap_err();
        assert_eq!(e.status(), Some(Status::BadCookie));
    });
}

#[test]
fn names_that_lead_out_of_the_directory_are_rejected() {
    run(async {
        for (name, is_valid) in [
            (&b"x"[..], true),
            (b"...", true),
            (b"x\\y", true),
            (b"", false),
            (b"/", false),
            (b"/x", false),
            (b"x/y", false),
            (b"../x", false),
            (b"x\0y", false),
        ] {
            let script = Script::new(move |p, _| match p {
                Procedure::Readdir => listing(vec![(1, b"."), (2, b".."), (3, name)], true),
                Procedure::Lookup => fail(Status::NoEnt),
                _ => fail(Status::NotSupp),
            });
            let mut entries = ReadDir::new(script.client().await, handle(2), "d".into());
            let next = entries.next_entry().await;
            match is_valid {
                true => assert!(next.unwrap().is_none() && script.xids(Procedure::Lookup).len() == 1),
                false => assert!(next.unwrap_err().to_string().contains("contains '/' or NUL")),
            }
        }
    });
}

#[test]
fn replies_with_invalid_xdr_are_rejected() {
    run(async {
        for bytes in [&[][..], &[0, 0, 0], &[0, 0, 0, 99], &[0, 0, 0, 0, 0, 0, 0, 9]] {
            let script = Script::new(move |_, _| Act::Answer(Box::new(move |e| e.put_raw(bytes))));
            let c = script.client().await;
            bad_reply(c.getattr(handle(2)).await, "malformed");
            bad_reply(c.lookup(handle(2), "x").await, "malformed");
        }
    });
}
