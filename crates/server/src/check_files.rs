//! The check that the files of a configuration exist.

use std::{ffi::OsStr, fs, io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

use millrace_tls::ServerConfig;

use crate::{
    config::{Backend, Config, ExportConfig},
    error::InvalidSetting,
    export::strip_export,
    target_settings::LunSettings,
};

impl Config {
    /// The settings whose directory or file does not exist or is unsuitable: of exports, the state directory and LUNs, as a
    /// start of the server finds them; and the certificate. Creates nothing. The file of a LUN that this process may not look up counts as
    /// existing.
    pub fn invalid_files(&self) -> Vec<InvalidSetting> {
        let exports = self.exports.iter().enumerate().filter_map(|(i, e)| match &e.backend {
            Backend::Local { path } => Some((format!("exports.{i}.backend"), path)),
            Backend::Memory { .. } => None,
        });
        let state = self.state_dir.iter().map(|dir| ("state_dir".to_owned(), dir));
        let missing = exports.chain(state).filter(|(_, path)| !path.is_dir());
        let mut invalid: Vec<_> = missing
            .map(|(field, path)| {
                let reason =
                    format!("there is no directory {}; make it, or correct the path", path.display());
                InvalidSetting::new(field, reason)
            })
            .collect();
        if let Some(files) = &self.tls
            && let Err(e) = ServerConfig::load(files)
        {
            let key = match e.file() {
                Some(file) if file == files.certificate => "certificate",
                Some(file) if files.client_ca.as_deref() == Some(file) => "client_ca",
                Some(file) if files.client_crl.as_deref() == Some(file) => "client_crl",
                _ => "key",
            };
            invalid.push(InvalidSetting::new(format!("tls.{key}"), e.to_string()));
        }
        for (i, target) in self.targets.iter().enumerate() {
            for (j, lun) in target.luns.iter().enumerate() {
                if let Err(reason) = check_lun(lun, &self.exports) {
                    let reason =
                        format!("the LUN {} of target {}: {reason}", lun.path.display(), target.name);
                    invalid.push(InvalidSetting::new(format!("targets.{i}.luns.{j}.path"), reason));
                }
            }
        }
        invalid
    }
}

/// Checks the file of a LUN; the error is the reason, as that of the start (`targets/locate.rs`).
fn check_lun(lun: &LunSettings, exports: &[ExportConfig]) -> Result<(), String> {
    let below = |e: &ExportConfig| strip_export(e.name.as_bytes(), lun.path.as_os_str().as_bytes());
    let above = exports.iter().filter_map(|e| Some((e, below(e)?)));
    let Some((export, rest)) = above.max_by_key(|(e, _)| e.name.len()) else { return Ok(()) };
    let is_created = lun.size.is_some() && !lun.read_only && !export.read_only;
    let Backend::Local { path } = &export.backend else {
        return if is_created { Ok(()) } else { Err(MEMORY.into()) };
    };
    let rest = rest.strip_prefix(b"/").unwrap_or(rest);
    let file = path.join(OsStr::from_bytes(rest));
    let found = match fs::symlink_metadata(&file) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let directory = file.parent().is_some_and(Path::is_dir);
            return if is_created && directory { Ok(()) } else { Err(missing(&file, directory)) };
        }
        Err(_) => return Ok(()),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Err(format!("{} is not a regular file; correct the path", file.display()));
    }
    lun.check_file_size(found.len())
}

/// The reason for a LUN without a size in an export in memory.
const MEMORY: &str = "an export in memory has no file at the start; give a writable LUN a size to create it";

fn missing(file: &Path, directory: bool) -> String {
    match directory {
        true => format!(
            "there is no file {0}; create it (`truncate --size 1G {0}`), or give a writable LUN a size to create it",
            file.display()
        ),
        false => {
            let parent = file.parent().unwrap_or(file);
            format!("there is no directory {}; create it, or correct the path", parent.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TargetSettings, target_name};

    #[test]
    fn missing_and_unsuitable_files_of_luns_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        fs::write(at.join("disk"), [0; 8192]).unwrap();
        fs::write(at.join("odd"), [0; 100]).unwrap();
        fs::create_dir(at.join("below")).unwrap();
        std::os::unix::fs::symlink("disk", at.join("link")).unwrap();
        let check = |lun: &str| {
            let target = TargetSettings::new(target_name("t").unwrap(), vec![lun.parse().unwrap()]);
            let exports = [
                format!("/data=local:{}", at.display()),
                format!("/data/ro=local:{},ro", at.join("below").display()),
                "/memory=memory:1MiB".into(),
            ];
            let exports = exports.iter().map(|e| e.parse().unwrap()).collect();
            Config { exports, targets: vec![target], ..Config::default() }.invalid_files()
        };
        for lun in ["/data/disk", "/data/disk,block=4096", "/data/new,size=1MiB", "/memory/x,size=1MiB"] {
            assert_eq!(check(lun), []);
        }
        for (lun, reason) in [
            ("/data/none", "there is no file"),
            ("/data/none,ro,size=1MiB", "there is no file"),
            ("/data/ro/new,size=1MiB", "there is no file"),
            ("/data/no/disk,size=1MiB", "there is no directory"),
            ("/data/odd", "multiple of 512"),
            ("/data/below", "not a regular file"),
            ("/data/link", "not a regular file"),
            ("/memory/x", "export in memory"),
        ] {
            let [e] = check(lun).try_into().unwrap();
            assert_eq!(e.field, "targets.0.luns.0.path");
            assert!(e.reason.contains(reason), "{lun}: {}", e.reason);
        }
    }
}
