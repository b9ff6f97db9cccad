//! verbs over siw in a guest, and the iWARP provider on the host.

use anyhow::Result;

use super::{
    super::Case,
    place::{EXPORT, make_tree, there_and_back},
};
use crate::{
    guest::GuestOptions,
    lab::Lab,
    network::{ETHERNET_MTU, HOST, LARGE_MTU},
    server::ServerOptions,
    tree::Manifest,
};

pub(super) fn cases() -> Vec<Case> {
    let case = |mtu| Case::new(format!("verbs/siw/to-iwarp-mtu-{mtu}"), move |lab| from_guest(lab, mtu));
    [LARGE_MTU, ETHERNET_MTU].into_iter().map(case).collect()
}

/// A client in the guest, over siw, and a server on the host, over iWARP in software.
fn from_guest(lab: &mut Lab, mtu: u32) -> Result<()> {
    let options = ServerOptions::default().local(EXPORT, &lab.directory("export")?, "");
    let server = lab.server(&options)?;
    let mut guest = lab.guest(&GuestOptions { memory: 1024, mtu })?;
    guest.add_siw()?;
    // The connection manager of this kernel takes 8 s to see that an address has been resolved, unless it is known.
    guest.must(&format!("ping -c 1 {HOST}"))?;
    let want = make_tree(lab, &mut guest, "/tmp/tree", 15)?;
    there_and_back(&mut guest, &want, &format!("nfs://{HOST}{EXPORT}"))?;
    want.expect_same(&Manifest::of(&lab.dir.join("export/tree"))?, "what the server has")?;
    lab.finish(vec![guest], &[&server])
}
