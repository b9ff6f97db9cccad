//! OPEN, OPEN_DOWNGRADE and CLOSE.

use millrace_nfs::v4::{
    Bitmap, ChangeInfo, Claim, CloseArgs, CreateHow, Fattr, OpenArgs, OpenDowngradeArgs, OpenOk, StateidOk,
    Status, Verifier, open_flags, share_access,
};
use millrace_nfs4_state::OpenRequest;
use millrace_vfs::{Access, Created, FsError, Identity, SetAttr};

use super::{
    attributes::EXCLUSIVE,
    compound::Compound,
    convert,
    kind::{check_file, check_regular, directory_error},
    names::check_name,
    object::{File, Object},
    settable::VERIFIER,
    stateids::key,
};
use crate::nfs4_clients::now;

/// Number of attempts to open a file that others create and remove.
const ATTEMPTS: usize = 8;

/// A file found or created by OPEN.
struct Found {
    file: File,
    dir: ChangeInfo,
    /// Attributes that the creation has set.
    set: Bitmap,
    created: bool,
    /// Size to set of an existing file.
    truncate: Option<u64>,
}

impl Compound<'_> {
    pub(super) async fn open(&mut self, args: OpenArgs<'_, Fattr<'_>>) -> Result<(), Status> {
        let access = args.share_access & share_access::BOTH;
        if access == 0 || args.share_deny > share_access::BOTH {
            return Err(Status::Inval);
        }
        let reclaim = matches!(args.claim, Claim::Previous(_));
        let env = self.scope.env;
        // The grace period and the number of stateids are checked before a file is created.
        env.clients.state.admit(self.client()?, reclaim, now(&env.rt))?;
        let reserves = args.create.is_some().then_some(&args.owner.owner);
        let reserve = |owner| env.clients.state.reserve_stateid(self.client()?, owner, now(&env.rt));
        let reserved = reserves.map(|owner| reserve(owner)).transpose()?;
        let found = self.find(&args).await?;
        let file = &found.file;
        let writes = access & share_access::WRITE != 0;
        if found.truncate.is_some() && !writes {
            // Share reservations and delegations are checked for the access of the open. Linux's server refuses it, too.
            return Err(Status::Inval);
        }
        let caller = if writes { file.writer()? } else { file.caller()? };
        if reclaim {
            // The first OPEN has checked the rights, and each READ and WRITE checks them.
            check_file(file).await?;
        } else if !found.created {
            self.check_rights(file, caller, access).await?;
        }
        let (state, client, key) = (&env.clients.state, self.client()?, key(file));
        if let Claim::DelegateCur(delegation, _) | Claim::DelegCurFh(delegation) = &args.claim {
            self.check_delegation(file, delegation, access)?;
        }
        // An open file stays usable when it is unlinked. OPEN4_RESULT_PRESERVE_UNLINKED would promise that it survives
        // a restart of the server, too (RFC 8881 section 18.16.3).
        let hold = file.fs().hold(&file.handle).await.map_err(convert::status)?;
        let request = OpenRequest {
            owner: &args.owner.owner,
            file: &key,
            access,
            deny: args.share_deny,
            reclaim,
            reserved: reserved.as_ref(),
        };
        let stateid = state.open(client, &request, now(&env.rt))?;
        if let Some(hold) = hold {
            state.hold(&key, hold);
        }
        if let Some(size) = found.truncate {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            let truncated = match file.writer() {
                Ok(caller) => {
                    file.fs().setattr(caller, &file.handle, &set, None).await.map_err(convert::status)
                }
                Err(status) => Err(status),
            };
            if let Err(status) = truncated {
                // The seqid 1 shows that this OPEN created the open. Otherwise the file stays open by an earlier OPEN.
                if stateid.seqid == 1 {
                    state.close(client, &stateid, &key)?;
                }
                return Err(status);
            }
        }
        let delegation = self.delegate(&args, file).await?;
        self.reply.put(&OpenOk {
            stateid,
            dir: found.dir,
            flags: open_flags::LOCKTYPE_POSIX
                | if self.has_callbacks() { open_flags::MAY_NOTIFY_LOCK } else { 0 },
            set: found.set,
            delegation,
        });
        self.set_current(Object::File(found.file));
        self.current_stateid = Some(stateid);
        Ok(())
    }

    /// Checks the caller's rights to an existing file.
    async fn check_rights(&self, file: &File, caller: &Identity, access: u32) -> Result<(), Status> {
        let (any, attr) =
            file.fs().access(caller, &file.handle, Access(!0)).await.map_err(convert::status)?;
        check_regular(&attr)?;
        // To execute a file, clients read it.
        let reads = any.0 & (Access::READ | Access::EXECUTE) != 0;
        let writes = any.0 & Access::MODIFY != 0;
        let missing =
            (access & share_access::READ != 0 && !reads) || (access & share_access::WRITE != 0 && !writes);
        if missing { Err(Status::Access) } else { Ok(()) }
    }

    /// Finds or creates the file of the claim.
    async fn find(&self, args: &OpenArgs<'_, Fattr<'_>>) -> Result<Found, Status> {
        let current = self.current()?;
        let name = match args.claim {
            Claim::Null(name) => name,
            _ if args.create.is_some() => return Err(Status::Inval),
            Claim::DelegateCur(_, name) => name,
            Claim::Fh | Claim::Previous(_) | Claim::DelegCurFh(_) => {
                let file = current.file(Status::IsDir)?.clone();
                return Ok(existing(file, ChangeInfo::default()));
            }
            // Delegations do not outlast a restart of the client, which has lost its data.
            Claim::DelegatePrev(_) | Claim::DelegPrevFh => return Err(Status::NotSupp),
        };
        let Object::File(dir) = current else {
            let Object::Pseudo(at) = current else { return Err(Status::ServerFault) };
            self.scope.paths().pseudo_child(*at, check_name(&name)?)?;
            return Err(Status::IsDir);
        };
        let found = match (check_name(&name), &args.create) {
            (Err(status), _) => Err(status),
            (Ok(name), None) => self.lookup_file(dir, name).await,
            (Ok(name), Some(how)) => self.create_file(dir, name, how).await,
        };
        match found {
            Err(status) => Err(directory_error(dir, status).await),
            found => found,
        }
    }

    async fn lookup_file(&self, dir: &File, name: &[u8]) -> Result<Found, Status> {
        let (object, attr) = self.scope.paths().child(dir, name).await?;
        let file = object.file(Status::IsDir)?.clone();
        attr.as_ref().map_or(Ok(()), check_regular)?;
        let change = dir.fs().getattr(&dir.handle).await.map_err(convert::status)?.change;
        Ok(existing(file, ChangeInfo { atomic: false, before: change, after: change }))
    }

    async fn create_file(
        &self,
        dir: &File,
        name: &[u8],
        how: &CreateHow<Fattr<'_>>,
    ) -> Result<Found, Status> {
        let caller = dir.writer()?;
        let created = |created: Created, set| Found {
            file: dir.sibling(created.handle),
            dir: convert::change_info(&created.dir),
            set,
            created: true,
            truncate: None,
        };
        // The file may be one that exists with this verifier: its owner has the rights of a creator.
        let exclusively = |result: Created, set| {
            let owned = result.attr.uid == caller.uid;
            Found { created: owned, ..created(result, set) }
        };
        let (attributes, guarded) = match how {
            CreateHow::Exclusive(verifier) => {
                let result = exclusive(dir, name, *verifier, SetAttr::default()).await?;
                return Ok(exclusively(result, used_for_verifier(dir)));
            }
            CreateHow::Exclusive41(verifier, attributes) => {
                if !attributes.set.difference(EXCLUSIVE).is_empty() {
                    return Err(Status::Inval);
                }
                let set = self.scope.new_attr(attributes).await?;
                let result = exclusive(dir, name, *verifier, set).await?;
                return Ok(exclusively(result, attributes.set.union(used_for_verifier(dir))));
            }
            CreateHow::Unchecked(attributes) => (attributes, false),
            CreateHow::Guarded(attributes) => (attributes, true),
        };
        let set = self.scope.new_attr(attributes).await?;
        let how = millrace_vfs::CreateHow::Guarded(set);
        for _ in 0..ATTEMPTS {
            match dir.fs().create(caller, &dir.handle, name, &how).await {
                Ok(result) => return Ok(created(result, attributes.set)),
                Err(FsError::Exist) if !guarded => {}
                Err(e) => return Err(convert::status(e)),
            }
            match self.lookup_file(dir, name).await {
                // Of the attributes only a size of 0 concerns an existing file (RFC 8881 section 18.16.3).
                Ok(found) => {
                    let truncate = set.size.filter(|size| *size == 0);
                    let applied = if truncate.is_some() { SIZE } else { Bitmap::EMPTY };
                    return Ok(Found { truncate, set: applied, ..found });
                }
                Err(Status::NoEnt) => {}
                Err(status) => return Err(status),
            }
        }
        Err(Status::Delay)
    }

    pub(super) fn open_downgrade(&mut self, args: OpenDowngradeArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::BadStateid)?;
        let stateid = self.stateid(&args.stateid)?;
        let state = &self.scope.env.clients.state;
        let access = args.share_access & !share_access::WANT_MASK;
        let stateid = state.open_downgrade(self.client()?, &stateid, &key(file), access, args.share_deny)?;
        self.reply.put(&StateidOk { stateid });
        self.current_stateid = Some(stateid);
        Ok(())
    }

    pub(super) fn close(&mut self, args: CloseArgs) -> Result<(), Status> {
        let file = self.current()?.file(Status::BadStateid)?;
        let stateid = self.stateid(&args.stateid)?;
        let stateid = self.scope.env.clients.state.close(self.client()?, &stateid, &key(file))?;
        self.reply.put(&StateidOk { stateid });
        self.current_stateid = None;
        Ok(())
    }
}

/// Creates a file with a verifier.
async fn exclusive(dir: &File, name: &[u8], verifier: Verifier, set: SetAttr) -> Result<Created, Status> {
    let how = millrace_vfs::CreateHow::Exclusive(verifier, set);
    dir.fs().create(dir.writer()?, &dir.handle, name, &how).await.map_err(convert::status)
}

/// The attributes that an exclusive create in `dir` uses for its verifier. The result of OPEN names them, and the client then
/// sets them (RFC 8881 section 18.16.3).
fn used_for_verifier(dir: &File) -> Bitmap {
    if dir.export.info().verifier_in_times { VERIFIER } else { Bitmap::EMPTY }
}

/// The attribute that truncation sets.
const SIZE: Bitmap = Bitmap::of(&[millrace_nfs::v4::Attribute::Size]);

fn existing(file: File, dir: ChangeInfo) -> Found {
    Found { file, dir, set: Bitmap::EMPTY, created: false, truncate: None }
}
