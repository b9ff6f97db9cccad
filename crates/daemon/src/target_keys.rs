//! The keys of `[[target]]`: a mirror of [`millrace_server::TargetSettings`] for serde.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use millrace_iscsi::{
    chap::{Credentials, MAX_SECRET, Mutual, Secret},
    name::{IscsiName, TargetAddress},
};
use millrace_scsi::{self as scsi, BlockSize};
use millrace_server::{ByteSize, LunSettings, TargetSettings, TransportSecurity, target_name};
use serde::{Deserialize, Deserializer, de};

use crate::values::{optional_byte_size, optional_path, parsed_list, path, xprtsec};

/// A wrapper, so that an error has the place of the target and not of the list.
#[derive(Deserialize)]
pub(crate) struct Target(#[serde(deserialize_with = "target")] pub(crate) TargetSettings);

fn target<'de, D: Deserializer<'de>>(d: D) -> Result<TargetSettings, D::Error> {
    settings(TargetKeys::deserialize(d)?).map_err(de::Error::custom)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetKeys {
    #[serde(deserialize_with = "name")]
    name: IscsiName,
    #[serde(default, rename = "lun")]
    luns: Vec<Lun>,
    #[serde(default, deserialize_with = "parsed_list")]
    initiators: Vec<IscsiName>,
    incoming_user: Option<User>,
    outgoing_user: Option<User>,
    #[serde(default, deserialize_with = "xprtsec")]
    xprtsec: TransportSecurity,
    #[serde(default, deserialize_with = "parsed_list")]
    addresses: Vec<TargetAddress>,
}

fn settings(keys: TargetKeys) -> Result<TargetSettings, String> {
    let TargetKeys { name, luns, initiators, incoming_user, outgoing_user, xprtsec, addresses } = keys;
    let chap = match (incoming_user, outgoing_user) {
        (None, None) => None,
        (Some(User(incoming)), outgoing) => {
            Some(Mutual::new(incoming, outgoing.map(|User(u)| u)).map_err(|e| e.to_string())?)
        }
        (None, Some(_)) => {
            return Err("outgoing_user needs incoming_user: a target authenticates only to initiators that \
                        authenticate; add incoming_user"
                .into());
        }
    };
    let luns = luns.into_iter().map(|Lun(lun)| lun).collect();
    Ok(TargetSettings { name, luns, initiators, chap, xprtsec, addresses })
}

/// The name of a target, in the short form or not.
fn name<'de, D: Deserializer<'de>>(d: D) -> Result<IscsiName, D::Error> {
    target_name(&String::deserialize(d)?).map_err(de::Error::custom)
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Lun(#[serde(with = "LunKeys")] LunSettings);

#[derive(Deserialize)]
#[serde(remote = "LunSettings", deny_unknown_fields)]
struct LunKeys {
    #[serde(deserialize_with = "path")]
    path: PathBuf,
    #[serde(default, deserialize_with = "block_size")]
    block_size: BlockSize,
    #[serde(default)]
    read_only: bool,
    #[serde(default, deserialize_with = "optional_byte_size")]
    size: Option<ByteSize>,
    #[serde(default, deserialize_with = "lun")]
    lun: Option<scsi::Lun>,
}

fn lun<'de, D: Deserializer<'de>>(d: D) -> Result<Option<scsi::Lun>, D::Error> {
    u16::deserialize(d)?.try_into().map_err(de::Error::custom).map(Some)
}

fn block_size<'de, D: Deserializer<'de>>(d: D) -> Result<BlockSize, D::Error> {
    match u32::deserialize(d)? {
        512 => Ok(BlockSize::B512),
        4096 => Ok(BlockSize::B4096),
        other => Err(de::Error::custom(format_args!("block_size is {other}; it must be 512 or 4096"))),
    }
}

/// A name and a secret of CHAP.
#[derive(Deserialize)]
#[serde(try_from = "UserKeys")]
struct User(Credentials);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserKeys {
    name: String,
    #[serde(default, deserialize_with = "text")]
    secret: Option<String>,
    #[serde(default, deserialize_with = "optional_path")]
    secret_file: Option<PathBuf>,
}

/// Text that no error message contains.
fn text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    match toml::Value::deserialize(d)? {
        toml::Value::String(text) => Ok(Some(text)),
        _ => Err(de::Error::custom("a secret is text; write it in quotation marks")),
    }
}

impl TryFrom<UserKeys> for User {
    type Error = String;

    fn try_from(UserKeys { name, secret, secret_file }: UserKeys) -> Result<Self, String> {
        let secret = match (secret, secret_file) {
            (Some(secret), None) => secret.into_bytes(),
            (None, Some(path)) => read_secret(&path).map_err(|e| {
                let path = path.display();
                format!("cannot read the secret file {path}: {e}; correct secret_file or the file")
            })?,
            _ => return Err(format!("user {name}: give either secret or secret_file")),
        };
        let secret = Secret::new(&secret).map_err(|e| format!("user {name}: {e}"))?;
        if name.is_empty() || name.len() > 255 || name.contains(char::is_control) {
            return Err("the name of a user has 1 to 255 bytes, without control characters".into());
        }
        Ok(Self(Credentials { name, secret }))
    }
}

/// Reads a file without the line feed at its end; of a file that is too long for a secret only the beginning.
fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_SECRET as u64 + 2).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}
