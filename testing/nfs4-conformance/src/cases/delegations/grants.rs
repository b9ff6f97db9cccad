//! Which delegations OPEN grants, by the setting of the export and by what the client wants (RFC 8881 section 18.16.3).

use millrace_nfs::v4::*;
use millrace_oncrpc::{AuthSys, Credential};

use super::{Clients, Granted, Setting, create_file, delegreturn, open_as, open_file};
use crate::{
    compound::{Call, putfh},
    group::Group,
    operations::{close, setattr},
};

/// What a client wants, and whether it accepts a read delegation and a write delegation.
const WANTS: [(&str, u32, bool, bool); 6] = [
    ("no preference", share_access::WANT_NO_PREFERENCE, true, true),
    ("WANT_READ_DELEG", share_access::WANT_READ_DELEG, true, false),
    ("WANT_WRITE_DELEG", share_access::WANT_WRITE_DELEG, false, true),
    ("WANT_ANY_DELEG", share_access::WANT_ANY_DELEG, true, true),
    ("WANT_NO_DELEG", share_access::WANT_NO_DELEG, false, false),
    ("WANT_CANCEL", share_access::WANT_CANCEL, false, false),
];

/// The result of Millrace.
fn expected(setting: Setting, access: u32, want: u32, read: bool, write: bool) -> &'static str {
    match want {
        share_access::WANT_NO_DELEG => "not wanted",
        share_access::WANT_CANCEL => "cancelled",
        _ if access == 1 && read && setting >= Setting::Read => "read",
        _ if access != 1 && write && setting == Setting::Write => "write",
        share_access::WANT_NO_PREFERENCE => "none",
        _ => "resource",
    }
}

/// Executes the cases. Returns the setting of the export, which the first opens show.
pub(super) async fn run(g: &mut Group<'_, impl Call>, clients: &Clients) -> Setting {
    let setting = match (granted(g, clients, "first", 1).await, granted(g, clients, "second", 3).await) {
        (_, "write") => Setting::Write,
        ("read", _) => Setting::Read,
        _ => Setting::None,
    };
    for (want, bits, read, write) in WANTS {
        for (access, name) in [(1, "reading"), (2, "writing"), (3, "both")] {
            let got = granted(g, clients, &format!("{name} {bits:x}"), access | bits).await;
            let expected = expected(setting, access, bits, read, write);
            g.record(&format!("OPEN for {name} with {want}"), expected, got);
        }
    }
    if setting >= Setting::Read {
        g.part("grants", async |g| shared(g, clients).await).await;
    }
    if setting == Setting::Write {
        g.part("grants for writing", async |g| unreadable(g, clients).await).await;
    }
    setting
}

/// The delegation that the holder gets by opening a new file. It is returned at once.
async fn granted(g: &Group<'_, impl Call>, clients: &Clients, name: &str, access: u32) -> &'static str {
    let file = create_file(g, name).await;
    let (stateid, granted) = open_file(g, &clients.holder, name, access).await.unwrap();
    end(g, clients, &file, (stateid, granted)).await;
    granted.kind()
}

/// Returns the delegation, if there is one, and closes the file.
async fn end(
    g: &Group<'_, impl Call>,
    clients: &Clients,
    file: &[u8],
    (stateid, granted): (Stateid, Granted),
) {
    if let Some(id) = granted.stateid() {
        assert_eq!(clients.status(g, file, delegreturn(id)).await, Status::Ok);
    }
    assert_eq!(clients.status(g, file, close(stateid)).await, Status::Ok);
}

/// Opens of a file that is open or delegated.
async fn shared(g: &mut Group<'_, impl Call>, clients: &Clients) {
    let want = share_access::WANT_READ_DELEG;
    let file = create_file(g, "shared").await;
    let first = open_file(g, &clients.holder, "shared", 1 | want).await.unwrap();
    assert_eq!(first.1.kind(), "read");
    let (_, again) = open_file(g, &clients.holder, "shared", 1 | want).await.unwrap();
    g.record("a second OPEN of the holder", "resource", again.kind());
    let (theirs, other) = open_file(g, &clients.other, "shared", 1 | want).await.unwrap();
    g.record("OPEN for reading by another client", "read", other.kind());
    if let Some(id) = other.stateid() {
        let returned = [putfh(&file), delegreturn(id)];
        assert_eq!(clients.other.status(g.c, returned).await, Status::Ok);
    }
    assert_eq!(clients.other.status(g.c, [putfh(&file), close(theirs)]).await, Status::Ok);
    let latest = Stateid { seqid: 0, ..first.0 };
    end(g, clients, &file, (latest, first.1)).await;

    let file = create_file(g, "written").await;
    let (writer, _) = open_file(g, &clients.other, "written", 3 | share_access::WANT_NO_DELEG).await.unwrap();
    let reader = open_file(g, &clients.holder, "written", 1 | want).await.unwrap();
    g.record("OPEN of a file that another client has open for writing", "contention", reader.1.kind());
    end(g, clients, &file, reader).await;
    assert_eq!(clients.other.status(g.c, [putfh(&file), close(writer)]).await, Status::Ok);
}

/// OPEN for writing by a user that may read the file, and by one that may not.
async fn unreadable(g: &mut Group<'_, impl Call>, clients: &Clients) {
    let user = g.c.with(Credential::Sys(AuthSys { uid: 1111, gid: 37, ..AuthSys::default() }));
    for (case, mode, expected) in [("may read", 0o606, "write"), ("may not read", 0o602, "none")] {
        let file = create_file(g, case).await;
        let mode = Attributes { mode: Some(mode), ..Attributes::default() };
        let set = clients.status(g, &file, setattr(Stateid::ANONYMOUS, mode)).await;
        assert_eq!(set, Status::Ok);
        let opened = open_as(&user, &clients.holder, &g.dir, (case, 2)).await.unwrap();
        g.record(&format!("OPEN for writing by a user that {case} the file"), expected, opened.1.kind());
        end(g, clients, &file, opened).await;
    }
}
