//! Whole COMPOUNDs of NFS version 4: calls, replies and callbacks.
//!
//! Encodings are not unique (a bitmap may have words without bits), so that the properties are: decoding allocates
//! in proportion to the input; what was decoded is encoded in at most as many bytes; that encoding is decoded and
//! encoded again without a change, with payloads in the stream and beside it; and it is rejected without its last
//! byte.

pub(super) mod messages;

use ::millrace_xdr::{Decode, Decoder, Encode, Encoder, Message, Payload, XdrError};
use millrace_nfs::v4::*;

use super::xdr::{flat, message, received, view};
use crate::{bytes::Input, heap::bounded};

/// Decodes a value of `T` and encodes it.
fn copy<'a, T: Decode<'a> + Encode>(d: &mut Decoder<'a>, e: &mut Encoder) -> Result<(), XdrError> {
    d.get::<T>().map(|value| e.put(&value))
}

/// Decodes and encodes the arguments of `operation`; an error for one whose arguments have no type.
fn arguments<'a>(operation: Operation, d: &mut Decoder<'a>, e: &mut Encoder) -> Result<(), XdrError> {
    use Operation as Op;
    match operation {
        Op::Access => copy::<AccessArgs>(d, e),
        Op::Close => copy::<CloseArgs>(d, e),
        Op::Commit => copy::<CommitArgs>(d, e),
        Op::Create => copy::<CreateArgs<'_, Attributes<'_>>>(d, e),
        Op::Delegpurge => copy::<DelegpurgeArgs>(d, e),
        Op::Delegreturn => copy::<DelegreturnArgs>(d, e),
        Op::Getattr => copy::<GetattrArgs>(d, e),
        Op::Link => copy::<LinkArgs<'_>>(d, e),
        Op::Lock => copy::<LockArgs<'_>>(d, e),
        Op::Lockt => copy::<LocktArgs<'_>>(d, e),
        Op::Locku => copy::<LockuArgs>(d, e),
        Op::Lookup => copy::<LookupArgs<'_>>(d, e),
        Op::Open => copy::<OpenArgs<'_, Attributes<'_>>>(d, e),
        Op::Openattr => copy::<OpenattrArgs>(d, e),
        Op::OpenDowngrade => copy::<OpenDowngradeArgs>(d, e),
        Op::Putfh => copy::<PutfhArgs<'_>>(d, e),
        Op::Read | Op::ReadPlus => copy::<ReadArgs>(d, e),
        Op::Readdir => copy::<ReaddirArgs>(d, e),
        Op::Remove => copy::<RemoveArgs<'_>>(d, e),
        Op::Rename => copy::<RenameArgs<'_>>(d, e),
        Op::Secinfo => copy::<SecinfoArgs<'_>>(d, e),
        Op::Setattr => {
            check_fattr(d.clone().get::<SetattrArgs<Fattr<'_>>>()?.attributes);
            copy::<SetattrArgs<Attributes<'_>>>(d, e)
        }
        Op::Verify | Op::Nverify => {
            check_fattr(d.clone().get()?);
            copy::<Attributes<'_>>(d, e)
        }
        Op::Write => copy::<WriteArgs>(d, e),
        _ => arguments_of_later_versions(operation, d, e),
    }
}

fn arguments_of_later_versions<'a>(
    operation: Operation,
    d: &mut Decoder<'a>,
    e: &mut Encoder,
) -> Result<(), XdrError> {
    use Operation as Op;
    match operation {
        Op::BackchannelCtl => copy::<BackchannelCtlArgs<'_>>(d, e),
        Op::BindConnToSession => copy::<BindConnToSessionArgs>(d, e),
        Op::ExchangeId => copy::<ExchangeIdArgs<'_>>(d, e),
        Op::CreateSession => copy::<CreateSessionArgs<'_>>(d, e),
        Op::DestroySession => copy::<DestroySessionArgs>(d, e),
        Op::FreeStateid => copy::<FreeStateidArgs>(d, e),
        Op::SecinfoNoName => copy::<SecinfoNoNameArgs>(d, e),
        Op::Sequence => copy::<SequenceArgs>(d, e),
        Op::TestStateid => copy::<TestStateidArgs>(d, e),
        Op::DestroyClientid => copy::<DestroyClientidArgs>(d, e),
        Op::ReclaimComplete => copy::<ReclaimCompleteArgs>(d, e),
        Op::Allocate | Op::Deallocate => copy::<AllocateArgs>(d, e),
        Op::Copy => copy::<CopyArgs<'_>>(d, e),
        Op::IoAdvise => copy::<IoAdviseArgs>(d, e),
        Op::Seek => copy::<SeekArgs>(d, e),
        Op::Clone => copy::<CloneArgs>(d, e),
        Op::Getxattr => copy::<GetxattrArgs<'_>>(d, e),
        Op::Setxattr => copy::<SetxattrArgs<'_>>(d, e),
        Op::Listxattrs => copy::<ListxattrsArgs>(d, e),
        Op::Removexattr => copy::<RemovexattrArgs<'_>>(d, e),
        Op::Getfh
        | Op::Lookupp
        | Op::Putpubfh
        | Op::Putrootfh
        | Op::Readlink
        | Op::RestoreFh
        | Op::Savefh => Ok(()),
        _ => Err(d.invalid(operation.number())),
    }
}

/// Attributes that can be set are readable without an error, and equal to themselves unless write-only.
fn check_fattr(fattr: Fattr<'_>) {
    let Ok(values) = fattr.to_set(Attributes::KNOWN) else { return };
    assert_eq!(values.present(), fattr.set);
    let same = fattr.is_same(&values, Attributes::KNOWN);
    let expected = if fattr.set.intersects(Attributes::WRITE_ONLY) { Err(Status::Inval) } else { Ok(true) };
    assert_eq!(same, expected);
}

/// Decodes and encodes the result of `operation` after its status.
fn result<'a>(operation: Operation, d: &mut Decoder<'a>, e: &mut Encoder) -> Result<(), XdrError> {
    use Operation as Op;
    match operation {
        Op::Access => copy::<AccessOk>(d, e),
        Op::Close | Op::OpenDowngrade | Op::Lock | Op::Locku => copy::<StateidOk>(d, e),
        Op::Commit => copy::<CommitOk>(d, e),
        Op::Create => copy::<CreateOk>(d, e),
        Op::Getattr => copy::<Attributes<'_>>(d, e),
        Op::Getfh => copy::<GetfhOk<'_>>(d, e),
        Op::Link | Op::Remove | Op::Setxattr | Op::Removexattr => copy::<ChangeInfo>(d, e),
        Op::Open => copy::<OpenOk<'_>>(d, e),
        Op::Read => copy::<ReadOk>(d, e),
        Op::Readdir => readdir(&d.get()?, e).map_err(|_| d.invalid(0)),
        Op::Readlink => copy::<ReadlinkOk>(d, e),
        Op::Rename => copy::<RenameOk>(d, e),
        Op::Secinfo | Op::SecinfoNoName => copy::<SecinfoOk<'_>>(d, e),
        Op::Setattr => copy::<SetattrRes>(d, e),
        Op::Write => copy::<WriteOk>(d, e),
        Op::BindConnToSession => copy::<BindConnToSessionOk>(d, e),
        Op::ExchangeId => copy::<ExchangeIdOk<'_>>(d, e),
        Op::CreateSession => copy::<CreateSessionOk>(d, e),
        Op::Sequence => copy::<SequenceOk>(d, e),
        Op::TestStateid => copy::<TestStateidOk>(d, e),
        Op::Copy => copy::<CopyOk>(d, e),
        Op::IoAdvise => copy::<IoAdviseOk>(d, e),
        Op::ReadPlus => copy::<ReadPlusOk>(d, e),
        Op::Seek => copy::<SeekOk>(d, e),
        Op::Getxattr => copy::<GetxattrOk<'_>>(d, e),
        Op::Listxattrs => copy::<ListxattrsOk<'_>>(d, e),
        _ => Ok(()),
    }
}

fn readdir(ok: &ReaddirOk<'_>, e: &mut Encoder) -> Result<(), XdrError> {
    let args = ReaddirArgs {
        cookie: 0,
        verifier: [0; 8],
        dircount: 0,
        maxcount: u32::MAX,
        requested: Attributes::KNOWN,
    };
    let mut list = ReaddirEncoder::begin(e, &args, ok.verifier, usize::MAX);
    for entry in &ok.entries {
        assert!(list.push(entry.cookie, &entry.name, &entry.attributes.decode_values()?));
    }
    list.finish(ok.eof).expect("no limit");
    Ok(())
}

/// Decodes and encodes the data of a failure.
fn failure<'a>(
    operation: Operation,
    status: Status,
    d: &mut Decoder<'a>,
    e: &mut Encoder,
) -> Result<(), XdrError> {
    match (operation, status) {
        (Operation::Setattr, _) => copy::<SetattrRes>(d, e),
        (Operation::Lock | Operation::Lockt, Status::Denied) => copy::<LockDenied<'_>>(d, e),
        (Operation::Copy, Status::OffloadNoReqs) => copy::<CopyRequirements>(d, e),
        _ => Ok(()),
    }
}

fn callback_arguments<'a>(
    operation: CallbackOperation,
    d: &mut Decoder<'a>,
    e: &mut Encoder,
) -> Result<(), XdrError> {
    match operation {
        CallbackOperation::Sequence => copy::<CbSequenceArgs>(d, e),
        CallbackOperation::Recall => copy::<CbRecallArgs<'_>>(d, e),
        CallbackOperation::Getattr => copy::<CbGetattrArgs<'_>>(d, e),
        CallbackOperation::RecallAny => copy::<CbRecallAnyArgs>(d, e),
        CallbackOperation::NotifyLock => copy::<CbNotifyLockArgs<'_>>(d, e),
        other => Err(d.invalid(other.number())),
    }
}

/// Decodes and encodes the results of COMPOUND or CB_COMPOUND, with `data` for what follows a status.
fn results<'a, O: Decode<'a> + Encode + Copy>(
    d: &mut Decoder<'a>,
    e: &mut Encoder,
    data: fn(O, Status, &mut Decoder<'a>, &mut Encoder) -> Result<(), XdrError>,
) -> Result<(), XdrError> {
    let frame: CompoundRes<'_> = d.get()?;
    e.put(&frame);
    (0..frame.results).try_for_each(|_| {
        let operation = d.get()?;
        let status = d.get()?;
        e.put(&operation);
        e.put(&status);
        data(operation, status, d, e)
    })
}

/// Number of kinds of inputs.
const KINDS: u8 = 4;

/// Decodes a message and encodes it: the arguments (0) or results (1) of COMPOUND, the arguments (2) or results (3) of
/// CB_COMPOUND.
fn transcode<'a>(kind: u8, d: &mut Decoder<'a>, e: &mut Encoder) -> Result<(), XdrError> {
    match kind {
        0 => {
            let frame: CompoundArgs<'_> = d.get()?;
            e.put(&frame);
            (0..frame.operations).try_for_each(|_| {
                let operation = d.get()?;
                e.put(&operation);
                arguments(operation, d, e)
            })
        }
        1 => results(d, e, |operation, status, d, e| match status {
            Status::Ok => result(operation, d, e),
            _ => failure(operation, status, d, e),
        }),
        2 => {
            let frame: CallbackArgs<'_> = d.get()?;
            e.put(&frame);
            (0..frame.operations).try_for_each(|_| {
                let operation = d.get()?;
                e.put(&operation);
                callback_arguments(operation, d, e)
            })
        }
        _ => results(d, e, |operation, status, d, e| match (operation, status) {
            (CallbackOperation::Sequence, Status::Ok) => copy::<CbSequenceOk>(d, e),
            (CallbackOperation::Getattr, Status::Ok) => copy::<Attributes<'_>>(d, e),
            _ => Ok(()),
        }),
    }
}

/// The decoded message encoded again, and the number of bytes that were decoded.
fn again(kind: u8, input: &Message) -> Result<(Message, usize), XdrError> {
    let mut d = Decoder::new(input);
    let mut outcome = Ok(());
    let output = message(|e| outcome = transcode(kind, &mut d, e));
    outcome.map(|()| (output, d.position()))
}

/// Executes the target with `input`: what the message is; the position and the length of a payload beside it (none
/// if the length is 0); and the bytes.
pub(super) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let (kind, at, beside) = (input.u8() % KINDS, input.u8(), input.u8());
    let beside = input.take(beside.into());
    let bytes = input.rest();
    let mut received_message = received(bytes);
    if !beside.is_empty() {
        received_message.payloads.push(Payload { position: usize::from(at) * 4, data: view(beside).into() });
    }
    let decoded = bounded(bytes.len() + beside.len(), || again(kind, &received_message));
    let Ok((parts, used)) = decoded else { return };
    let stream = flat(&parts);
    if beside.is_empty() {
        assert!(stream.len() <= used, "{} bytes became {}", used, stream.len());
    }
    for form in [&received(&stream), &parts] {
        let (same, used) = again(kind, form).expect("an encoded message is decoded");
        assert_eq!(used, form.head.len(), "bytes remain");
        assert_eq!(flat(&same), stream, "the message has changed");
    }
    let cut = received(&stream[..stream.len() - 1]);
    assert!(again(kind, &cut).is_err(), "a truncated message is accepted");
}

/// Correct messages of each kind, with every operation.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let arguments = messages::calls().into_iter().map(|call| (0, call));
    let results = messages::replies().into_iter().map(|reply| (1, reply));
    let callbacks = [(2, messages::callback()), (3, messages::callback_reply())];
    let flat = arguments.chain(results).chain(callbacks);
    let flat = flat.map(|(kind, bytes)| [&[kind, 0, 0][..], &bytes].concat());
    // WRITE with its data beside the head: tag, minor version, count, number, 28 bytes of arguments, length.
    let write = messages::write();
    let (head, data) = write.split_at(write.len() - 12);
    let beside = [&[0, 12, 12][..], data, head].concat();
    flat.chain([beside]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_accepted() {
        for seed in seeds() {
            if seed[2] == 0 {
                let input = received(&seed[3..]);
                assert_eq!(again(seed[0], &input).map(|(_, used)| used), Ok(seed.len() - 3), "{seed:?}");
            }
            run(&seed);
        }
    }
}
