//! `millrace blk` on the host uses the Linux kernel's target.

use std::{
    fs::{self, File},
    io::{self, Read},
};

use anyhow::{Result, ensure};

use super::super::Case;
use crate::{
    guest::{Guest, GuestOptions},
    lab::{self, Lab},
};

/// The name of the target.
const TARGET: &str = "iqn.2026-01.example.lab:lio";
/// Serves a disk of 64 MiB in the guest's memory. Linux's target stores the state of reservations below `dbroot`.
const START: &str = "
set -e
t=/sys/kernel/config/target
mkdir -p $t /run/target/pr && echo /run/target > $t/dbroot
truncate -s 64M /dev/shm/disk
mkdir -p $t/core/fileio_0/disk
echo fd_dev_name=/dev/shm/disk,fd_dev_size=67108864,fd_buffered_io=1 > $t/core/fileio_0/disk/control
echo 1 > $t/core/fileio_0/disk/enable
p=$t/iscsi/$target/tpgt_1
mkdir -p $p/lun/lun_0 $p/np/0.0.0.0:3260
ln -s $t/core/fileio_0/disk $p/lun/lun_0/disk
echo 1 > $p/attrib/generate_node_acls
echo 1 > $p/attrib/cache_dynamic_acls
echo 0 > $p/attrib/demo_mode_write_protect
echo $authentication > $p/attrib/authentication
if [ $authentication = 1 ]; then
  for auth in $p/auth $t/iscsi/discovery_auth; do
    echo -n initiator > $auth/userid; echo -n secret-of-initiator > $auth/password
    echo -n target > $auth/userid_mutual; echo -n secret-of-target > $auth/password_mutual
  done
  echo 1 > $t/iscsi/discovery_auth/enforce_discovery_auth
fi
if [ $iser = 1 ]; then echo 1 > $p/np/0.0.0.0:3260/iser; fi
echo 1 > $p/enable";

/// Options of `millrace blk` for CHAP in both directions.
const CHAP: [&str; 4] = ["--chap-user", "initiator", "--target-user", "target"];

/// The port of the portal of iSER: siw's listener is a TCP socket, and the portal of TCP has its port. The lab's kernel is
/// patched so that LIO takes the next one.
const ISER_PORT: u16 = 3261;

pub(super) fn cases() -> Vec<Case> {
    let variants: [(&str, bool, &[&str]); 5] = [
        ("tcp/copy", false, &[]),
        ("tcp/digests", false, &["--digests"]),
        ("tcp/chap", true, &CHAP),
        ("iser/copy", false, &[]),
        ("iser/chap", true, &CHAP),
    ];
    variants
        .into_iter()
        .map(|(what, chap, options)| {
            let iser = what.starts_with("iser");
            Case::new(format!("lio/{what}"), move |lab| copy(lab, iser, chap, options))
        })
        .collect()
}

/// Boots a guest with the target.
pub(super) fn serve(lab: &mut Lab, iser: bool, chap: bool) -> Result<Guest> {
    for text in
        ["TARGET_CORE", "iSCSI/", "Unable to", "RX Data", "dbroot", "Rounding down", "failed to allocate"]
    {
        lab.expect_log(text);
    }
    let mut guest = lab.guest(&GuestOptions::default())?;
    if iser {
        guest.add_siw()?;
    }
    guest.must(&format!(
        "target={TARGET} iser={} authentication={}{START}",
        u8::from(iser),
        u8::from(chap)
    ))?;
    Ok(guest)
}

/// The URL of the portal.
fn portal(guest: &Guest, iser: bool) -> String {
    match iser {
        true => format!("iser://{}:{ISER_PORT}", guest.address()),
        false => format!("iscsi://{}", guest.address()),
    }
}

/// The URL of the disk.
pub(super) fn url(guest: &Guest, iser: bool) -> String {
    format!("{}/{TARGET}/0", portal(guest, iser))
}

/// Copies an image to the target and back.
fn copy(lab: &mut Lab, iser: bool, chap: bool, options: &[&str]) -> Result<()> {
    let mut guest = serve(lab, iser, chap)?;
    let (image, back) = (lab.dir.join("image"), lab.dir.join("back"));
    io::copy(&mut File::open("/dev/urandom")?.take(64 << 20), &mut File::create(&image)?)?;
    let secrets = secrets(lab, chap)?;
    let (portal, url) = (portal(&guest, iser), url(&guest, iser));
    let run = |command: &[&str]| -> Result<String> {
        let secrets = secrets.iter().map(String::as_str);
        let args: Vec<&str> = ["blk"]
            .into_iter()
            .chain(command.iter().copied())
            .chain(options.iter().copied())
            .chain(secrets)
            .collect();
        Ok(lab::millrace(&args)?.ok()?.stdout)
    };
    let list = run(&["ls", &portal])?;
    ensure!(list.contains(TARGET) && list.contains("64 MiB"), "the list of targets is {list}");
    run(&["cp", &image.display().to_string(), &url])?;
    guest.must(&format!("cmp {} /dev/shm/disk", guest.host_file(&image)))?;
    run(&["cp", &url, &back.display().to_string()])?;
    ensure!(fs::read(&image)? == fs::read(&back)?, "the image that was copied back differs");
    run(&["bench", "--destroy-data", "--seconds", "1", "--test", "randwrite", &url])?;
    lab.finish(vec![guest], &[])
}

/// The options that name files with the secrets of both sides.
fn secrets(lab: &Lab, chap: bool) -> Result<Vec<String>> {
    let mut options = Vec::new();
    if chap {
        for (option, secret) in
            [("--chap-secret-file", "secret-of-initiator"), ("--target-secret-file", "secret-of-target")]
        {
            let file = lab.dir.join(secret);
            fs::write(&file, secret)?;
            options.extend([option.to_owned(), file.display().to_string()]);
        }
    }
    Ok(options)
}
