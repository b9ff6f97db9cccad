//! Settings of iSCSI targets, and the short form of a LUN on command lines.

use std::{os::unix::ffi::OsStrExt, path::PathBuf, str::FromStr};

use millrace_buffer::ByteSize;
use millrace_iscsi::{
    chap::Mutual,
    name::{IscsiName, NameError, TargetAddress},
};
use millrace_scsi::{BlockSize, InvalidLun, Lun};
use millrace_tls::TransportSecurity;

/// The prefix that completes a short name to the name of a target.
const NAME_PREFIX: &str = "iqn.2026-01.example.millrace:";
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 4096;

/// An iSCSI target: disks on files of exports, and who may use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSettings {
    /// Name of the target ([`target_name`] accepts a short form).
    pub name: IscsiName,
    /// The disks. At least one, at most 256.
    pub luns: Vec<LunSettings>,
    /// Names of the initiators that may log in; all if empty. Only CHAP authenticates a name.
    pub initiators: Vec<IscsiName>,
    /// Credentials of CHAP; `None` if initiators need not authenticate.
    pub chap: Option<Mutual>,
    /// The weakest protection of connections over which initiators discover the target and may log in.
    pub xprtsec: TransportSecurity,
    /// Addresses that discovery reports; if empty, the address that the initiator has used.
    pub addresses: Vec<TargetAddress>,
}

impl TargetSettings {
    /// A target that every initiator may use.
    pub fn new(name: IscsiName, luns: Vec<LunSettings>) -> Self {
        let xprtsec = TransportSecurity::None;
        Self { name, luns, initiators: Vec::new(), chap: None, xprtsec, addresses: Vec::new() }
    }

    /// The disks with their LUNs.
    pub fn numbered(&self) -> impl Iterator<Item = (Lun, &LunSettings)> {
        let positions = (0..).map_while(Lun::new);
        positions.zip(&self.luns).map(|(position, lun)| (lun.lun.unwrap_or(position), lun))
    }
}

/// The iSCSI name of a target: `text` if it is one (`iqn.`, `eui.`, `naa.`), otherwise
/// `iqn.2026-01.example.millrace:` and `text`.
///
/// # Errors
/// The result is not an iSCSI name.
pub fn target_name(text: &str) -> Result<IscsiName, NameError> {
    match ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind)) {
        true => text.parse(),
        false => format!("{NAME_PREFIX}{text}").parse(),
    }
}

/// A disk of a target: a regular file of an export.
///
/// The short form on a command line is `PATH[,OPTION]...`, for example `/data/disk0,size=1GiB,block=4096`. Options:
/// `block=512|4096`, `ro`, `size=SIZE`, `lun=N`. The short form cannot express a path that contains a comma.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LunSettings {
    /// Path of the file: the name of its export and the path in the export, without `.`, `..` and empty
    /// components. Symbolic links are not followed.
    pub path: PathBuf,
    /// Length of a logical block. The size of the file is a multiple of it.
    pub block_size: BlockSize,
    /// Refuse writes. A disk in a read-only export is always read-only.
    pub read_only: bool,
    /// Size with which the file is created if it does not exist, a multiple of the block length. `None`: the file
    /// must exist.
    pub size: Option<ByteSize>,
    /// The LUN. `None`: the position in the target's list, from 0.
    pub lun: Option<Lun>,
}

impl LunSettings {
    /// A writable disk with blocks of 512 bytes on an existing file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), block_size: BlockSize::default(), read_only: false, size: None, lun: None }
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            None if option == "ro" => self.read_only = true,
            Some(("block", "512")) => self.block_size = BlockSize::B512,
            Some(("block", "4096")) => self.block_size = BlockSize::B4096,
            Some(("size", size)) => {
                let size: Result<ByteSize, _> = size.parse();
                self.size = Some(size.map_err(|e| e.to_string())?);
            }
            Some(("lun", number)) => {
                self.lun = Some(number.parse().map_err(|e: InvalidLun| e.to_string())?);
            }
            _ => {
                return Err(format!(
                    "`{option}` is not an option of a LUN; there are block=512|4096, ro, size=SIZE, lun=N"
                ));
            }
        }
        Ok(())
    }

    /// Checks the size of the LUN's file in bytes; the error is the reason, with the required change.
    pub(crate) fn check_file_size(&self, size: u64) -> Result<(), String> {
        let block = self.block_size.bytes();
        if size > 0 && size.is_multiple_of(block.into()) {
            return Ok(());
        }
        Err(format!(
            "its size is {size} bytes; extend the file to a multiple of {block}, the length of a block"
        ))
    }

    /// Checks the settings; the error is the field and the reason.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let path = self.path.as_os_str().as_bytes();
        let parts = path.strip_prefix(b"/").map(|rest| rest.split(|b| *b == b'/'));
        let valid = parts.is_some_and(|mut p| p.all(|p| !matches!(p, b"" | b"." | b"..") && !p.contains(&0)));
        if !valid || path.len() > MAX_PATH {
            let reason = "its path is not absolute, or has `.`, `..` or empty parts; write /EXPORT/FILE";
            return Err(("path", reason.into()));
        }
        let block = self.block_size.bytes();
        match self.size {
            Some(ByteSize(size)) if size == 0 || !size.is_multiple_of(block.into()) => Err((
                "size",
                format!("its size is {size} bytes; it must be a multiple of {block}, and not 0"),
            )),
            _ => Ok(()),
        }
    }
}

impl FromStr for LunSettings {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let mut parts = s.split(',');
        let mut lun = Self::new(parts.next().unwrap_or_default());
        parts.try_for_each(|o| lun.option(o))?;
        lun.check().map_err(|(_, reason)| format!("the LUN {}: {reason}", lun.path.display()))?;
        Ok(lun)
    }
}

/// The reason why no export has the file of a LUN.
pub(crate) const NO_EXPORT: &str = "no export contains it; add an [[export]] or correct the path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_sets_path_and_options() {
        let lun: LunSettings = "/data/disk0,block=4096,ro,size=1GiB".parse().unwrap();
        assert_eq!(
            (lun.path.to_str(), lun.block_size, lun.read_only),
            (Some("/data/disk0"), BlockSize::B4096, true)
        );
        assert_eq!(lun.size, Some(ByteSize(1 << 30)));
        assert_eq!("/data/disk0,lun=7".parse::<LunSettings>().unwrap().lun, Lun::new(7));
        assert_eq!("/data/disk0".parse::<LunSettings>().unwrap(), LunSettings::new("/data/disk0"));
    }

    #[test]
    fn invalid_short_forms_are_explained() {
        for (text, expected) in [
            ("disk0", "not absolute"),
            ("/a/../b", "not absolute"),
            ("/a/", "not absolute"),
            ("/a/b,rw", "not an option of a LUN"),
            ("/a/b,block=1024", "block=512|4096"),
            ("/a/b,size=lots", "not a size"),
            ("/a/b,size=1000", "multiple of 512"),
            ("/a/b,size=0", "not 0"),
            ("/a/b,lun=16384", "0 to 16383"),
            ("/a/b,size=512,block=4096", "multiple of 4096"),
        ] {
            let e = text.parse::<LunSettings>().unwrap_err();
            assert!(e.contains(expected), "{text}: {e}");
        }
    }

    #[test]
    fn short_names_are_completed() {
        assert_eq!(target_name("disk0").unwrap().as_str(), "iqn.2026-01.example.millrace:disk0");
        assert_eq!(target_name("iqn.2001-04.com.example:x").unwrap().as_str(), "iqn.2001-04.com.example:x");
        assert!(target_name("eui.0").is_err() && target_name("a b").is_err());
    }
}
