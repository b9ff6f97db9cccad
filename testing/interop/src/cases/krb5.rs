//! Kerberos (RPCSEC_GSS) between Millrace and the Linux kernel, whose contexts its daemons rpc.gssd and rpc.svcgssd make.

mod kernel_client;
mod kernel_server;

use anyhow::Result;

use super::Case;
use crate::{
    guest::{Guest, GuestOptions},
    lab::{Lab, Skipped},
    realm::Realm,
};

/// The flavors, weakest first.
const FLAVORS: [&str; 3] = ["krb5", "krb5i", "krb5p"];

/// The cases of this group.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = kernel_client::cases();
    cases.extend(kernel_server::cases());
    cases
}

/// Starts a realm, and boots a guest with a siw device and the keys of these principals.
fn boot(lab: &mut Lab, principals: &[&str]) -> Result<(Realm, Guest)> {
    boot_with(lab, &GuestOptions { memory: 768, ..GuestOptions::default() }, principals)
}

fn boot_with(lab: &mut Lab, options: &GuestOptions, principals: &[&str]) -> Result<(Realm, Guest)> {
    let realm = Realm::new(lab)?;
    let mut guest = lab.guest(options)?;
    if guest.run("[ -e /proc/net/rpc/use-gss-proxy ]")?.status != 0 {
        return Err(Skipped("the guests' kernel has no Kerberos (CONFIG_RPCSEC_GSS_KRB5)".into()).into());
    }
    guest.add_siw()?;
    realm.add_guest(&mut guest, principals)?;
    Ok((realm, guest))
}
