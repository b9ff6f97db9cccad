//! OPEN, delegations and locks.

use super::{bytes, decode, exact, flat, hex, message};
use crate::v4::*;

const STATEID: Stateid = Stateid { seqid: 1, other: [0x5a; 12] };
const STATEID_WORDS: &str = "00000001 5a5a5a5a 5a5a5a5a 5a5a5a5a";
const OWNER: StateOwner<'_> = StateOwner { client_id: ClientId { number: 7 }, owner: Opaque(b"open id") };
const OWNER_WORDS: &str = "00000000 00000007 00000007 6f70656e 20696400";

type Args<'a> = OpenArgs<'a, Attributes<'a>>;

fn open<'a>(create: Option<CreateHow<Attributes<'a>>>, claim: Claim<'a>) -> Args<'a> {
    OpenArgs {
        seqid: 0,
        share_access: share_access::READ,
        share_deny: share_deny::NONE,
        owner: OWNER,
        create,
        claim,
    }
}

/// Asserts the encoding of OPEN from the discriminant of `openflag4`.
fn exact_open(create: Option<CreateHow<Attributes<'_>>>, claim: Claim<'_>, words: &str) {
    let words = format!("00000000 00000001 00000000 {OWNER_WORDS} {words}");
    exact!(Args<'_>, open(create, claim), &words);
}

#[test]
fn open_claims() {
    let name = Opaque(&b"f"[..]);
    exact_open(None, Claim::Null(name), "00000000 00000000 00000001 66000000");
    exact_open(None, Claim::Previous(DelegationType::Write), "00000000 00000001 00000002");
    let stateid_and_name = format!("00000000 00000002 {STATEID_WORDS} 00000001 66000000");
    exact_open(None, Claim::DelegateCur(STATEID, name), &stateid_and_name);
    exact_open(None, Claim::DelegatePrev(name), "00000000 00000003 00000001 66000000");
    exact_open(None, Claim::Fh, "00000000 00000004");
    exact_open(None, Claim::DelegCurFh(STATEID), &format!("00000000 00000005 {STATEID_WORDS}"));
    exact_open(None, Claim::DelegPrevFh, "00000000 00000006");
}

#[test]
fn open_with_create() {
    let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
    let mode_words = "00000002 00000000 00000002 00000004 00000180";
    let name = Claim::Null(Opaque(b"new."));
    let name_words = "00000000 00000004 6e65772e";
    let verifier = [1, 2, 3, 4, 5, 6, 7, 8];
    let create = [
        (CreateHow::Unchecked(mode), format!("00000000 {mode_words}")),
        (CreateHow::Guarded(mode), format!("00000001 {mode_words}")),
        (CreateHow::Exclusive(verifier), "00000002 01020304 05060708".to_owned()),
        (CreateHow::Exclusive41(verifier, mode), format!("00000003 01020304 05060708 {mode_words}")),
    ];
    for (how, words) in create {
        exact_open(Some(how), name, &format!("00000001 {words} {name_words}"));
    }
}

#[test]
fn open_leaves_the_attributes_encoded_for_the_server() {
    let acl = Bitmap::of(&[Attribute::Acl]);
    let b = bytes(&format!(
        "00000000 00000003 00000000 {OWNER_WORDS} 00000001 00000001
         00000001 00001000 00000004 00000000 00000004"
    ));
    let args: OpenArgs<'_, Fattr<'_>> = decode(&b).unwrap();
    let Some(CreateHow::Guarded(attributes)) = args.create else { panic!("{args:?}") };
    assert_eq!((attributes.set, attributes.higher, attributes.values), (acl, false, &[0; 4][..]));
    assert_eq!(args.claim, Claim::Fh);
    assert!(decode::<OpenArgs<'_, Attributes<'_>>>(&b).is_err());
}

#[test]
fn invalid_discriminants_of_open_are_rejected() {
    for words in ["00000002", "00000001 00000004", "00000000 00000007", "00000000 00000001 00000006"] {
        let b =
            bytes(&format!("00000000 00000001 00000000 {OWNER_WORDS} {words} 00000000 00000000 00000000"));
        assert!(decode::<OpenArgs<'_, Fattr<'_>>>(&b).is_err(), "{words}");
    }
    for length in ["00000401", "ffffffff"] {
        let b = bytes(&format!("00000000 00000001 00000000 00000000 00000007 {length} 61616161"));
        assert!(decode::<OpenArgs<'_, Fattr<'_>>>(&b).is_err(), "owner of length {length}");
    }
}

/// Asserts the encoding of the result of OPEN from the delegation type.
fn exact_delegation(delegation: Delegation<'_>, words: &str) {
    let ok = OpenOk {
        stateid: STATEID,
        dir: ChangeInfo { atomic: true, before: 1, after: 1 << 32 },
        flags: open_flags::LOCKTYPE_POSIX,
        set: Bitmap::of(&[Attribute::Size]),
        delegation,
    };
    let words = format!(
        "{STATEID_WORDS} 00000001 00000000 00000001 00000001 00000000 00000004 00000001 00000010 {words}"
    );
    exact!(OpenOk<'_>, ok, &words);
}

#[test]
fn open_results() {
    let permissions = Ace { ace_type: 0, flags: 0x40, access_mask: 0x1f, who: Opaque(b"OWNER@") };
    let ace = "00000000 00000040 0000001f 00000006 4f574e45 52400000";
    let read = ReadDelegation { stateid: STATEID, recall: true, permissions };
    let write = |limit| WriteDelegation { stateid: STATEID, recall: false, limit, permissions };
    let size = write(SpaceLimit::Size(u64::MAX));
    let size_words = format!("{STATEID_WORDS} 00000000 00000001 ffffffff ffffffff {ace}");
    let blocks = write(SpaceLimit::Blocks { blocks: 3, block_size: 4096 });
    exact_delegation(Delegation::None, "00000000");
    exact_delegation(Delegation::Read(read), &format!("00000001 {STATEID_WORDS} 00000001 {ace}"));
    exact_delegation(Delegation::Write(size), &format!("00000002 {size_words}"));
    let words = format!("00000002 {STATEID_WORDS} 00000000 00000002 00000003 00001000 {ace}");
    exact_delegation(Delegation::Write(blocks), &words);
    exact_delegation(Delegation::ReadAttrs(read), &format!("00000004 {STATEID_WORDS} 00000001 {ace}"));
    exact_delegation(Delegation::WriteAttrs(size), &format!("00000005 {size_words}"));
}

#[test]
fn reasons_for_no_delegation() {
    let reasons = [
        (NoDelegation::NotWanted, "00000000"),
        (NoDelegation::Contention { will_push: true }, "00000001 00000001"),
        (NoDelegation::Resource { will_signal: false }, "00000002 00000000"),
        (NoDelegation::NotSuppFtype, "00000003"),
        (NoDelegation::WriteDelegNotSuppFtype, "00000004"),
        (NoDelegation::NotSuppUpgrade, "00000005"),
        (NoDelegation::NotSuppDowngrade, "00000006"),
        (NoDelegation::Cancelled, "00000007"),
        (NoDelegation::IsDir, "00000008"),
    ];
    for (reason, words) in reasons {
        exact_delegation(Delegation::NoneExt(reason), &format!("00000003 {words}"));
    }
    assert!(decode::<NoDelegation>(&bytes("00000009")).is_err());
}

#[test]
fn close_and_downgrade() {
    exact!(CloseArgs, CloseArgs { seqid: 2, stateid: STATEID }, &format!("00000002 {STATEID_WORDS}"));
    exact!(
        OpenDowngradeArgs,
        OpenDowngradeArgs { stateid: STATEID, seqid: 0, share_access: 1, share_deny: 2 },
        &format!("{STATEID_WORDS} 00000000 00000001 00000002")
    );
    exact!(StateidOk, StateidOk { stateid: STATEID }, STATEID_WORDS);
    exact!(OpenattrArgs, OpenattrArgs { create: false }, "00000000");
    exact!(DelegreturnArgs, DelegreturnArgs { stateid: STATEID }, STATEID_WORDS);
    exact!(DelegpurgeArgs, DelegpurgeArgs { client_id: ClientId { number: 3 } }, "00000000 00000003");
}

#[test]
fn locks() {
    let lock = |locker| LockArgs {
        lock_type: LockType::WriteWaiting,
        reclaim: true,
        offset: 8,
        length: u64::MAX,
        locker,
    };
    let head = "00000004 00000001 00000000 00000008 ffffffff ffffffff";
    exact!(
        LockArgs<'_>,
        lock(Locker::New { open_seqid: 1, open_stateid: STATEID, lock_seqid: 2, owner: OWNER }),
        &format!("{head} 00000001 00000001 {STATEID_WORDS} 00000002 {OWNER_WORDS}")
    );
    exact!(
        LockArgs<'_>,
        lock(Locker::Existing { lock_stateid: STATEID, lock_seqid: 3 }),
        &format!("{head} 00000000 {STATEID_WORDS} 00000003")
    );
    exact!(
        LockDenied<'_>,
        LockDenied { offset: 1, length: 2, lock_type: LockType::Read, owner: OWNER },
        &format!("00000000 00000001 00000000 00000002 00000001 {OWNER_WORDS}")
    );
    exact!(
        LocktArgs<'_>,
        LocktArgs { lock_type: LockType::Write, offset: 1, length: 2, owner: OWNER },
        &format!("00000002 00000000 00000001 00000000 00000002 {OWNER_WORDS}")
    );
    exact!(
        LockuArgs,
        LockuArgs { lock_type: LockType::Read, seqid: 9, stateid: STATEID, offset: 1, length: 2 },
        &format!("00000001 00000009 {STATEID_WORDS} 00000000 00000001 00000000 00000002")
    );
    assert!(
        decode::<LockType>(&bytes("00000000")).is_err() && decode::<LockType>(&bytes("00000005")).is_err()
    );
}

#[test]
fn stateids() {
    let args = TestStateidArgs { stateids: List(vec![STATEID, Stateid::CURRENT]) };
    exact!(TestStateidArgs, args, &format!("00000002 {STATEID_WORDS} 00000001 00000000 00000000 00000000"));
    let ok = TestStateidOk { statuses: List(vec![Status::Ok, Status::BadStateid]) };
    exact!(TestStateidOk, ok, "00000002 00000000 00002729");
    exact!(FreeStateidArgs, FreeStateidArgs { stateid: STATEID }, STATEID_WORDS);
    for count in ["00000002", "00001001", "ffffffff"] {
        let b = bytes(&format!("{count} {STATEID_WORDS}"));
        assert!(decode::<TestStateidArgs>(&b).is_err(), "{count} stateids");
    }
    let empty = message(&TestStateidArgs { stateids: List(Vec::new()) });
    assert_eq!(hex(&flat(&empty)), "00000000");
}
