//! Properties on random values.

use proptest::prelude::*;

use super::{decode, encoded, flat, message, round_trip, views};
use crate::v4::*;

fn time() -> impl Strategy<Value = NfsTime> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanoseconds)| NfsTime { seconds, nanoseconds })
}

fn set_time() -> impl Strategy<Value = SetTime> {
    prop_oneof![Just(SetTime::ServerTime), time().prop_map(SetTime::ClientTime)]
}

fn bitmap() -> impl Strategy<Value = Bitmap> {
    any::<[u32; 3]>().prop_map(Bitmap::from)
}

prop_compose! {
    /// Attributes of a file, some of them without value.
    fn attributes()(
        (supported_attrs, time_modify, time_metadata) in
            (prop::option::of(bitmap()), prop::option::of(time()), prop::option::of(time())),
        file_type in prop::option::of(prop::sample::select(FileType::ALL)),
        [change, size, fileid, mounted_on_fileid, space_used] in any::<[Option<u64>; 5]>(),
        (mode, numlinks) in any::<(Option<u32>, Option<u32>)>(),
        owner in prop::option::of(any::<u32>().prop_map(Owner::Id)),
        rdattr_error in prop::option::of(prop::sample::select(Status::ALL)),
        xattr_support in any::<Option<bool>>(),
    ) -> Attributes<'static> {
        Attributes {
            supported_attrs, file_type, change, size, rdattr_error, fileid, mode, numlinks, owner, space_used,
            time_metadata, time_modify, mounted_on_fileid, xattr_support, ..Attributes::default()
        }
    }
}

prop_compose! {
    /// Attributes to set.
    fn to_set()(
        size in any::<Option<u64>>(), mode in any::<Option<u32>>(), id in any::<Option<u32>>(),
        time_access_set in prop::option::of(set_time()), time_modify_set in prop::option::of(set_time()),
    ) -> Attributes<'static> {
        let (owner, owner_group) = (id.map(Owner::Id), id.map(|_| Owner::Name(b"staff@example")));
        Attributes { size, mode, owner, owner_group, time_access_set, time_modify_set, ..Attributes::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn bitmaps_round_trip(set in bitmap(), higher in prop::collection::vec(any::<u32>(), 0..5)) {
        round_trip!(Bitmap, set);
        let mut e: Vec<u8> = (3 + higher.len() as u32).to_be_bytes().to_vec();
        set.words().iter().chain(&higher).for_each(|w| e.extend(w.to_be_bytes()));
        let mut d = millrace_xdr::Decoder::from_bytes(&e);
        let any = higher.iter().any(|&w| w != 0);
        prop_assert_eq!(Bitmap::decode_any(&mut d), Ok((set, any)));
        prop_assert_eq!(d.remaining(), 0);
    }

    #[test]
    fn requested_attributes_round_trip(values in attributes(), requested in bitmap()) {
        round_trip!(Attributes<'_>, values);
        let bytes = flat(&encoded(|e| values.encode_requested(e, requested)));
        let fattr: Fattr<'_> = decode(&bytes).unwrap();
        let back = fattr.decode_values().unwrap();
        prop_assert_eq!(fattr.set, values.present().intersection(requested));
        prop_assert_eq!(back.present(), fattr.set);
        let same = fattr.is_same(&values, Attributes::KNOWN);
        let error = fattr.set.contains(Attribute::RdattrError);
        prop_assert_eq!(same, if error { Err(Status::Inval) } else { Ok(true) });
    }

    #[test]
    fn attributes_to_set_round_trip(values in to_set(), cut in 1_usize..20, extra in 1_usize..20) {
        let bytes = flat(&message(&values));
        let fattr: Fattr<'_> = decode(&bytes).unwrap();
        prop_assert_eq!(fattr.to_set(Attributes::KNOWN), Ok(values));
        if let Some(short) = fattr.values.len().checked_sub(cut) {
            let short = Fattr { values: &fattr.values[..short], ..fattr };
            prop_assert_eq!(short.to_set(Attributes::KNOWN), Err(Status::BadXdr));
        }
        let long = [fattr.values, &vec![0; extra][..]].concat();
        prop_assert_eq!(Fattr { values: &long, ..fattr }.to_set(Attributes::KNOWN), Err(Status::BadXdr));
    }

    #[test]
    fn operations_round_trip(
        (seqid, other, number) in any::<(u32, [u8; 12], u64)>(),
        (x, y, flag) in any::<(u64, u32, bool)>(),
        name in prop::collection::vec(any::<u8>(), 0..40),
        data in prop::collection::vec(any::<u8>(), 0..50),
        attributes in to_set(),
        lock_type in prop::sample::select(LockType::ALL),
        stable in prop::sample::select(StableHow::ALL),
    ) {
        let stateid = Stateid { seqid, other };
        let owner = StateOwner { client_id: ClientId { number }, owner: Opaque(&name) };
        let name = Opaque(&name[..]);
        round_trip!(WriteArgs, WriteArgs { stateid, offset: x, stable, data: views(&data) });
        round_trip!(ReadOk, ReadOk { eof: flag, data: views(&data) });
        round_trip!(SetattrArgs<Attributes<'_>>, SetattrArgs { stateid, attributes });
        let what = CreateType::Symlink(views(&data));
        round_trip!(CreateArgs<'_, Attributes<'_>>, CreateArgs { what, name, attributes });
        let create = flag.then_some(CreateHow::Exclusive41(x.to_be_bytes(), attributes));
        let claim = Claim::DelegateCur(stateid, name);
        round_trip!(OpenArgs<'_, Attributes<'_>>,
            OpenArgs { seqid, share_access: y, share_deny: y, owner, create, claim });
        let locker = Locker::New { open_seqid: y, open_stateid: stateid, lock_seqid: seqid, owner };
        round_trip!(LockArgs<'_>, LockArgs { lock_type, reclaim: flag, offset: x, length: number, locker });
        round_trip!(RenameArgs<'_>, RenameArgs { from: name, to: Opaque(&data) });
    }
}
