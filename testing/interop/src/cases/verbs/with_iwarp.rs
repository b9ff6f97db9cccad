//! verbs over siw in a guest, and the iWARP provider on the host.

use anyhow::Result;

use super::{
    super::Case,
    common::{EXPORT, GuestServer, KEEP_ALL, make_tree, on_host, round_trip},
};
use crate::{
    guest::GuestOptions,
    lab::Lab,
    network::{ETHERNET_MTU, HOST, LARGE_MTU},
    server::ServerOptions,
    tree::{self, Manifest},
};

pub(super) fn cases() -> Vec<Case> {
    let per_mtu = |mtu| {
        [
            Case::new(format!("verbs/siw/from-iwarp-mtu-{mtu}"), move |lab| to_guest(lab, mtu)),
            Case::new(format!("verbs/siw/to-iwarp-mtu-{mtu}"), move |lab| from_guest(lab, mtu)),
        ]
    };
    [LARGE_MTU, ETHERNET_MTU].into_iter().flat_map(per_mtu).collect()
}

/// A client on the host, over iWARP in software, and a server in the guest, over siw.
fn to_guest(lab: &mut Lab, mtu: u32) -> Result<()> {
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu, ..GuestOptions::default() })?;
    guest.add_siw()?;
    let at = guest.address();
    let server = GuestServer::start(&mut guest, &at, "")?;
    let (from, back) = (lab.dir.join("tree"), lab.directory("back")?);
    tree::make(&from, 14, lab.quick)?;
    let want = Manifest::of(&from)?;
    let copy = |command, from: &str, to: &str| {
        let mut args = vec!["--provider", "iwarp", command];
        args.extend(KEEP_ALL.split(' ').chain([from, to]));
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let url = format!("nfs://{at}{EXPORT}");
    for (args, dir) in [
        (copy("put", &from.display().to_string(), &url), &from),
        (copy("get", &format!("{url}/tree"), &back.display().to_string()), &back.join("tree")),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        want.expect_same(&on_host(&args, dir)?, "the tree of the host")?;
    }
    server.finish(&mut guest)?;
    lab.finish(vec![guest], &[])
}

/// A client in the guest, over siw, and a server on the host, over iWARP in software.
fn from_guest(lab: &mut Lab, mtu: u32) -> Result<()> {
    let options = ServerOptions::default().local(EXPORT, &lab.directory("export")?, "");
    let server = lab.server(&options)?;
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu, ..GuestOptions::default() })?;
    guest.add_siw()?;
    // The connection manager of this kernel needs 8 s to notice that an address has been resolved, unless the
    // address is already in the neighbour table.
    guest.must(&format!("ping -c 1 {HOST}"))?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 15)?;
    round_trip(&mut guest, &want, &format!("nfs://{HOST}{EXPORT}"))?;
    want.expect_same(&Manifest::of(&lab.dir.join("export/tree"))?, "the tree of the server")?;
    lab.finish(vec![guest], &[&server])
}
